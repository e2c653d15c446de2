"""Whether a gateway accepts this service's token: known before the first office is joined, and checked again later."""

import asyncio

from smcp_agent.connecting.addresses import Addresses, delay
from smcp_agent.connecting.options import ConnectionOptions
from smcp_agent.errors import NotAllowed, NotAuthenticated, RateLimited, SmcpError
from smcp_bus.callers import DELEGATES
from smcp_mcp.settings import McpSettings
from smcp_proto.backoff import Backoff, jittered
from smcp_service.logging import get_logger

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0
"""Between two attempts while no gateway lets this service in."""
AGAIN_S = 30.0
"""Between two checks while all is well."""

_log = get_logger(__name__)


class GatewayCheck:
    """Connects, joins nothing, and closes. The token may be renewed meanwhile."""

    def __init__(self, settings: McpSettings) -> None:
        self._settings = settings
        self.problem: str | None = "not connected to a gateway yet"
        """Why no gateway let this service in at the last check; None: one did."""

    async def run(self) -> None:
        """Check until cancelled."""
        addresses, backoff = Addresses(self._settings.gateways), Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        auth = {DELEGATES: True} if self._settings.auth_configured else {}
        while True:
            least = 0.0
            try:
                options = ConnectionOptions(auth=auth, token=self._settings.gateway_token)
                connection = await addresses.connect(options, lambda event, data: None)
            except SmcpError as error:
                why, least = _problem(error), delay(error)
            else:
                why = None
                await connection.close()
            if why is not None and why != self.problem:
                _log.error("not ready", why=why)
            self.problem = why
            if why is None:
                backoff.reset()
            await asyncio.sleep(max(least, jittered(AGAIN_S) if why is None else backoff.next()))


def _problem(error: SmcpError) -> str | None:
    if isinstance(error, RateLimited) and "quota" in error.details:
        return None  # the token is accepted: the connections of this service's offices have used up its quota
    if isinstance(error, NotAuthenticated | NotAllowed):
        return f"the gateway refuses SMCP_TOKEN: {error.message}"
    return error.message
