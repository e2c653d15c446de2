"""How long an Agent that was refused stays away, so that no gateway is stormed."""

import random
from typing import Final

from smcp_agent.errors import NotAuthenticated, RateLimited, SmcpError

FIRST_S: Final = 1.0
LONGEST_S: Final = 60.0
"""A gateway shuts out an address after 20 wrong tokens in a minute; Agents may share one."""


def respite(error: SmcpError, refusals: int) -> float:
    """Seconds to wait at least after this refusal to connect; 0: the usual pauses do.

    Args:
        refusals: how often in a row the token was not accepted, this time included.
    """
    match error:
        case NotAuthenticated():
            pause = min(FIRST_S * 4.0 ** min(refusals - 1, 10), LONGEST_S)
        case RateLimited(details={"retry_after_s": int(wait)}):
            pause = float(min(max(wait, 1), 3600))
        case RateLimited():
            pause = LONGEST_S
        case _:
            return 0.0
    return pause * random.uniform(1.0, 1.5)  # noqa: S311 -- so that not all come at once
