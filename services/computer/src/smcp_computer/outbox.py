"""The notifications of a native Computer: of changes of itself, and of its MCP servers' resources."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, Protocol

import orjson

from smcp_bus.outbox import LIST_CHANGED, RESOURCES, UPDATED, Key, Notification, Outbox, resources_body
from smcp_proto.member_names import Role
from smcp_service.lifecycle import Background

TOOL_LIST: Final = "update_tool_list"
CONFIG: Final = "update_config"
DESKTOP: Final = "update_desktop"
FINDER: Final = "update_finder"
CAPABILITIES: Final = "update_capabilities"

MAX_TITLE: Final = 1000
"""Characters of a title in a notification."""


class OfficeClient(Protocol):
    """The registry over NATS, or a gateway."""

    async def tell(self, office: str, role: Role, name: str, verb: str, body: bytes) -> None:
        """Send an event that becomes a notification. Raises SmcpError (refused), BusError (it may have been taken)."""


class ComputerOutbox(Outbox):
    def __init__(
        self,
        client: OfficeClient,
        tasks: Background,
        *,
        office: str,
        computer: str,
        may_tell: Callable[[], bool],
        gather_s: float,
    ) -> None:
        self._holding = 0
        self._held: dict[str, bytes] = {}
        super().__init__(
            partial(client.tell, office, "computer", computer),
            lambda work: tasks.start(work(), name="outbox"),
            office=office,
            computer=computer,
            may_tell=may_tell,
            gather_s=gather_s,
        )

    @property
    def untold(self) -> frozenset[str]:
        """The verbs of the notifications that wait, or are being sent."""
        return frozenset(each.key.verb for each in self.waiting)

    def held(self) -> dict[str, int]:
        """How many notifications wait, or are being sent, and how often `release` is still to be called."""
        return {"untold": len(self) + self._holding}

    def state(self) -> frozenset[Notification]:
        """The waiting updates of this Computer itself. Agents that see it enter ask for everything, and need none."""
        return frozenset(each for each in self.waiting if each.key.verb not in RESOURCES)

    def changed(self, verb: str, **content: Any) -> None:
        """An `update_*` of this Computer itself, with `content` beside its name."""
        body = orjson.dumps({"computer": self.computer, **content})
        if self._holding and verb != CONFIG:
            self._held[verb] = body
        else:
            self.put(Key(verb), body)

    def hold(self) -> None:
        """Keep `changed` back, except for the configuration, until `release` was called as often: of each verb there is
        one then."""
        self._holding += 1

    def release(self, *, without: Collection[str] = ()) -> None:
        """`without`: verbs of what is as it was before."""
        self._holding -= 1
        for verb in without:
            self._held.pop(verb, None)
        if not self._holding:
            held, self._held = self._held, {}
            for verb, body in held.items():
                self.put(Key(verb), body)

    def changed_all(self, capabilities: Mapping[str, Any]) -> None:
        """Another process was this Computer before: all that Agents know of it may be old."""
        for verb in (CONFIG, TOOL_LIST, DESKTOP, FINDER):
            self.changed(verb)
        self.changed(CAPABILITIES, capabilities=capabilities)
        self.missed()

    def resource_updated(self, agent: str | None, server: str, uri: str, title: str | None) -> None:
        """A resource changed that the Agent has subscribed to. `title`: as the server's list has it."""
        params = {"uri": uri}
        if title is not None:
            params["title"] = title[:MAX_TITLE].encode(errors="ignore").decode()
        named = {"serverId": server} if agent is None else {"serverId": server, "agent": agent}
        body = resources_body(self.office, self.computer, "updated", named, params)
        self.put(Key(UPDATED, server, uri, agent), body)

    def list_changed(self, server: str) -> None:
        body = resources_body(self.office, self.computer, "list_changed", {"serverId": server})
        self.put(Key(LIST_CHANGED, server), body)
