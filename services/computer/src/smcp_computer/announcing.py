"""Tells the office that this Computer changed: `server:update_tool_list`, `server:update_desktop` and so on."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import orjson

from smcp_computer.office_client import OfficeClient
from smcp_computer.outbox import Key, Outbox

_log = logging.getLogger("smcp_computer.announcing")

TOOL_LIST: Final = "update_tool_list"
CONFIG: Final = "update_config"
DESKTOP: Final = "update_desktop"
FINDER: Final = "update_finder"
CAPABILITIES: Final = "update_capabilities"


class Announcer:
    """Keeps what is still to be told, until it was told (see `Outbox`). `run` must be running.

    Args:
        may_tell: whether this Computer is a member now.
        gather_s: changes of one kind that come within so many seconds are told as one.
        content: what is told beside this Computer's name, by kind.
    """

    def __init__(
        self,
        registry: OfficeClient,
        office: str,
        name: str,
        *,
        may_tell: Callable[[], bool],
        gather_s: float,
        content: Mapping[str, Callable[[], Mapping[str, Any]]] = MappingProxyType({}),
    ) -> None:
        self._name = name
        self._content = content
        self._outbox = Outbox(registry, office, name, may_tell=may_tell, gather_s=gather_s, log=_log)

    @property
    def untold(self) -> frozenset[str]:
        """Verbs of the updates that the registry has not taken yet."""
        return frozenset(key.verb for key in self._outbox)

    def held(self) -> dict[str, int]:
        """How many updates are still to be told."""
        return self._outbox.held()

    def changed(self, *verbs: str) -> None:
        """Tell it soon."""
        for verb in verbs:
            self._outbox.add(Key(verb), partial(self._body, verb))

    def forget(self) -> frozenset[str]:
        """Who enters an office is asked for everything anyway. Returns what was to be told."""
        untold = self.untold
        self._outbox.drop(lambda _: True)
        return untold

    def resume(self) -> None:
        """This Computer is a member (again): tell what was left."""
        self._outbox.resume()

    async def run(self) -> None:
        """Tell until cancelled."""
        await self._outbox.run()

    def _body(self, verb: str) -> bytes:
        more = self._content[verb]() if verb in self._content else {}
        return orjson.dumps({"computer": self._name, **more})
