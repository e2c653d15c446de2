"""Tells offices of enters and leaves: an effect of the log, not of a handler.

All registries share one durable consumer on the `members` bucket's own stream. It hands out one record at a time, to
any of them, and the next one after that was acknowledged; a registry that dies in between loses nothing, since after
`ACK_WAIT_S` another gets the same record. So a notification may come twice or late; its epoch tells.
"""

import contextlib
import logging
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api
from nats.js.errors import NotFoundError
from pydantic import ValidationError

from smcp_bus import subjects
from smcp_bus.bus import Bus
from smcp_bus.cancellation import raise_if_cancelled
from smcp_bus.errors import BodyTooLarge
from smcp_bus.headers import EPOCH
from smcp_registry.records import MemberRecord, announcements
from smcp_registry.store import Bucket, StoreUnusable

_log = logging.getLogger("smcp_registry.announcer")

CONSUMER: Final = "announcer"
ACK_WAIT_S: Final = 2.0
FETCH_S: Final = 2.0
CHECKED: Final = (
    "max_ack_pending", "ack_policy", "ack_wait", "backoff", "max_deliver", "deliver_policy", "filter_subject",
    "filter_subjects", "deliver_subject", "headers_only",
)  # fmt: skip
"""What of a consumer's configuration decides what is told, how often and in which order."""


class Announcer:
    """The registries share one consumer: whichever gets a record publishes what it says, and then acknowledges it."""

    def __init__(self, bus: Bus, js: JetStreamContext, members: Bucket) -> None:
        self._bus = bus
        self._js = js
        self._members = members
        self.ready = False
        """Whether this registry takes records to announce now."""
        self.announced = 0
        """Records that this registry announced."""
        self.behind = 0
        """Records that none has taken, when this registry took its last one; 0 where it waited for one in vain."""

    async def prepare(self) -> None:
        """Make the shared consumer if it is missing; any number of registries may do so at once.

        Raises:
            StoreUnusable: there is one with another configuration: it would tell out of order, or not all.
            nats.errors.Error, TimeoutError: JetStream does not answer.
        """
        plan = api.ConsumerConfig(
            name=CONSUMER,
            durable_name=CONSUMER,
            description="A2C-SMCP: announces enters and leaves, in order",
            filter_subject=self._members.subject(">"),
            deliver_policy=api.DeliverPolicy.ALL,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_S,
            max_ack_pending=1,
            max_deliver=-1,
        )
        stream = self._members.stream
        try:
            found = await self._js.consumer_info(stream, CONSUMER)
        except NotFoundError:
            found = await self._js.add_consumer(stream, plan)
        if wrong := _differences(found.config, plan):
            raise StoreUnusable(
                f"the consumer {CONSUMER} of the stream {stream} exists, but not as this registry needs it: "
                f"{'; '.join(wrong)}: stop the registries and delete it (what it told is told again; receivers "
                "drop what they know)"
            )

    async def run(self) -> None:
        """Announce until the connection or the consumer is lost.

        Raises:
            nats.errors.Error, BusError, TimeoutError: begin anew.
        """
        await self.prepare()
        subscription = await self._js.pull_subscribe_bind(consumer=CONSUMER, stream=self._members.stream)
        self.ready = True
        try:
            while True:
                raise_if_cancelled()
                try:
                    messages = await subscription.fetch(1, timeout=FETCH_S)
                except TimeoutError:
                    self.behind = 0
                    continue  # nothing to announce
                for message in messages:
                    await self._announce(message)
        finally:
            self.ready = False
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def announced_upto(self) -> int:
        """The revision up to which everything was announced.

        Raises:
            nats.errors.Error, TimeoutError: JetStream does not answer.
        """
        info = await self._js.consumer_info(self._members.stream, CONSUMER)
        return info.ack_floor.stream_seq if info.ack_floor is not None else 0

    async def _announce(self, message: Msg) -> None:
        revision = message.metadata.sequence.stream
        self.behind = message.metadata.num_pending
        await self._publish(message, revision)
        self.announced += 1
        # It goes over the same connection after the notifications, so the server has them when it has this. Whether it
        # arrived is not waited for: where it did not, the record is told again, with the epoch that it had.
        await message.ack()

    async def _publish(self, message: Msg, revision: int) -> None:
        if not message.data:
            return  # a marker of a removal: its leave was announced long ago
        try:
            record = MemberRecord.model_validate_json(message.data)
            for told in announcements(record, revision):
                subject = subjects.notify(record.office, told.verb)
                await self._bus.publish(subject, told.body, headers={EPOCH: str(told.epoch)})
        except (ValidationError, BodyTooLarge):
            _log.exception("revision %d cannot be announced; it is passed over", revision)


def _differences(found: api.ConsumerConfig, plan: api.ConsumerConfig) -> list[str]:
    wrong = []
    for field in CHECKED:
        has, needed = getattr(found, field) or None, getattr(plan, field) or None
        if has != needed:
            wrong.append(f"its {field} is {_shown(has)}, {_shown(needed)} is needed")
    return wrong


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(getattr(value, "value", value))
