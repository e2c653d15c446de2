"""Announces enters and leaves to offices, from the log of records.

All registries share one durable consumer on the `members` bucket's own stream. It hands out one record at a time, to
any of them; if that registry dies, another gets the same record. A notification that comes twice has the same epoch.
"""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api
from pydantic import ValidationError

from smcp_bus import subjects
from smcp_bus.bus import BodyTooLarge, raise_if_cancelled
from smcp_bus.exact_json import written
from smcp_bus.headers import EPOCH
from smcp_bus.nats.bus import Bus
from smcp_registry.member_records import Announce, MemberRecord
from smcp_registry.store import Bucket

_log = logging.getLogger("smcp_registry.announcer")

CONSUMER: Final = "announcer"
ACK_WAIT_S: Final = 2.0
"""After so long another registry gets the record of one that died; a fetch waits as long for a record."""


@dataclass(eq=False, repr=False)
class Announcer:
    bus: Bus
    js: JetStreamContext
    members: Bucket
    ready: bool = field(default=False, init=False)
    behind: int = field(default=0, init=False)
    """Records that none has taken, when this registry took its last one; 0 where it waited for one in vain."""

    async def prepare(self) -> None:
        """Raises nats.errors.Error, TimeoutError: JetStream does not answer, or has a consumer that cannot change."""
        plan = api.ConsumerConfig(
            name=CONSUMER,
            durable_name=CONSUMER,
            filter_subject=self.members.subject(">"),
            deliver_policy=api.DeliverPolicy.ALL,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_S,
            max_ack_pending=1,
        )
        await self.js.add_consumer(self.members.stream, plan)

    async def run(self) -> None:
        """Raises nats.errors.Error, BusError, TimeoutError where the connection or the consumer is lost: begin anew."""
        await self.prepare()
        subscription = await self.js.pull_subscribe_bind(consumer=CONSUMER, stream=self.members.stream)
        self.ready = True
        try:
            while True:
                raise_if_cancelled()
                try:
                    messages = await subscription.fetch(1, timeout=ACK_WAIT_S)
                except TimeoutError:
                    self.behind = 0
                    continue  # nothing to announce
                for message in messages:
                    self.behind = message.metadata.num_pending
                    await self._publish(message)
                    # It goes over the same connection after the notifications, so the server has them when it has this.
                    # Where it does not arrive, the record is announced again, with the same epochs.
                    await message.ack()
        finally:
            self.ready = False
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def announced_upto(self) -> int:
        """The revision. Raises nats.errors.Error, TimeoutError: JetStream does not answer."""
        info = await self.js.consumer_info(self.members.stream, CONSUMER)
        return info.ack_floor.stream_seq if info.ack_floor is not None else 0

    async def _publish(self, message: Msg) -> None:
        if not message.data:
            return  # a marker of a removal: its leave was announced long ago
        revision = message.metadata.sequence.stream
        try:
            record = MemberRecord.model_validate_json(message.data)
            for verb, body, epoch in announcements(record, revision):
                await self.bus.publish(subjects.notify(record.office, verb), body, headers={EPOCH: str(epoch)})
        except (ValidationError, BodyTooLarge):
            _log.exception("revision %d cannot be announced; it is passed over", revision)


def announcements(record: MemberRecord, revision: int) -> Iterator[tuple[str, bytes, int]]:
    """Verb, body and epoch of each notification, in order. Epochs grow with every change of the seat."""
    if record.announce in (Announce.LEAVE, Announce.LEAVE_ENTER):
        who = {"office_id": record.office, record.role: record.left_name or record.name}
        yield "leave_office", written(who), 2 * revision
    if record.announce in (Announce.ENTER, Announce.LEAVE_ENTER):
        who = {"office_id": record.office, record.role: record.name}
        yield "enter_office", written(who), 2 * revision + 1
