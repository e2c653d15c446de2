"""Which MCP servers and tools of this Computer a caller may see and use.

`allow` of a server decides, and the rights of the caller's key or token, which its gateway told (`smcp_bus.callers`).
What is not allowed is not listed, and is 403 where it is named. Whether a call needs approval is for `confirmation`.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from smcp_bus.callers import Caller
from smcp_computer.settings import HostSettings
from smcp_computer.tools import Catalogue, Target
from smcp_proto import tool_results
from smcp_proto.errors import NotAllowed
from smcp_proto.member_names import matches
from smcp_proto.printable import did_you_mean
from smcp_proto.schemas.tools import SMCPTool


def not_allowed(field: str) -> NotAllowed:
    """The refusal of a request that names a server which `allow` keeps from its caller."""
    return NotAllowed("this Computer does not let you use that MCP server", details={"field": field})


@dataclass(eq=False)
class Access:
    """`settings` has the servers of the configuration as it is now."""

    _settings: Callable[[], Mapping[str, HostSettings]]
    _catalogue: Catalogue
    _office: str

    def hidden(self, caller: Caller) -> frozenset[str]:
        """The servers that this caller may neither see nor use."""
        if caller.local:
            return frozenset()
        return frozenset(name for name, host in self._settings().items() if not self._is_allowed(host, caller))

    def check(self, caller: Caller, target: Target) -> None:
        """Raises NotAllowed: the caller may not call this tool (`details.field`)."""
        if not caller.local and not self._is_allowed(target.host, caller):
            raise not_allowed("tool_name")
        if caller.rights is not None and caller.rights.restricts_tools:
            # patterns mean the name that is listed: of other names a tool has several
            hints = target.tool.annotations
            caller.rights.check_tool(
                self._catalogue.listed_name(target.ref), read_only=hints is not None and hints.read_only_hint is True
            )

    def listed(self, caller: Caller, tools: Iterable[SMCPTool]) -> list[SMCPTool]:
        """Those of the listed tools that the caller may call."""
        if not self.hidden(caller) and (caller.rights is None or not caller.rights.restricts_tools):
            return list(tools)
        return [tool for tool in tools if self._may_call(caller, tool.name)]

    def unknown_tool(self, name: str, caller: Caller) -> dict[str, Any]:
        """The result of a call of a tool that is not there: it names those that the caller may have meant, and the MCP
        servers that may have it."""
        hidden = self.hidden(caller)
        others = [each for each in self._catalogue.candidates(name) if self._may_call(caller, each)]
        if not others and self._catalogue.is_forbidden(name, hidden):
            return tool_results.failed(f"the tool {name!r} is forbidden on this Computer", a2c_forbidden=True)
        if others:
            hint = f"; it is listed as {' and '.join(map(repr, others))}"
        else:
            hint = did_you_mean(name, (tool.name for tool in self.listed(caller, self._catalogue.listing)))
        if away := [f"{server!r} ({state})" for server, state in self._catalogue.away.items() if server not in hidden]:
            hint += f"; not ready: {', '.join(away)}"
        return tool_results.failed(f"this Computer has no tool {name!r}{hint}")

    def _may_call(self, caller: Caller, name: str) -> bool:
        with suppress(NotAllowed):
            if (target := self._catalogue.find(name)) is not None:
                self.check(caller, target)
                return True
        return False

    def _is_allowed(self, host: HostSettings, caller: Caller) -> bool:
        allow = host.allow
        if allow is None:
            return True
        if allow.offices is not None and not any(matches(pattern, self._office) for pattern in allow.offices):
            return False
        # a gateway without authentication does not say who calls
        holder = "" if caller.rights is None else caller.rights.holder
        return allow.subjects is None or (holder != "" and any(matches(each, holder) for each in allow.subjects))
