"""What an application hands over for a call, as it goes over the wire. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from smcp_agent.errors import Malformed

SHORTEST_S: Final = 1
LONGEST_S: Final = 3600
SECONDS: Final = f"whole seconds from {SHORTEST_S} to {LONGEST_S}"


def whole_seconds(timeout: object) -> int:
    """The `timeout` of a call; `30.0` is 30.

    Raises:
        Malformed: it is not in whole seconds from 1 to 3600 (events.txt, `client:tool_call`).
    """
    if isinstance(timeout, float) and timeout.is_integer():
        timeout = int(timeout)
    if not isinstance(timeout, int) or isinstance(timeout, bool) or not SHORTEST_S <= timeout <= LONGEST_S:
        raise _refused("timeout", SECONDS)
    return timeout


def params_of(params: object) -> dict[str, Any]:
    """The `params` of a call; None is none.

    Raises:
        Malformed: they are no mapping by name.
    """
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise _refused("params", f"a mapping of parameters by name, not {type(params).__name__}")
    return dict(params)


def arguments_of(chosen: object) -> dict[str, Any]:
    """The `chosen` arguments of a completion; None is none.

    Raises:
        Malformed: they are no mapping by name.
    """
    if chosen is None:
        return {}
    if not isinstance(chosen, Mapping):
        raise _refused("chosen", f"a mapping of arguments by name, not {type(chosen).__name__}")
    return dict(chosen)


def _refused(field: str, reason: str) -> Malformed:
    return Malformed(f"{field}: {reason}", details={"field": field, "reason": reason})
