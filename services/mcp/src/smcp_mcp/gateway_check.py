"""Whether a gateway accepts this service's token, known before the first office is joined."""

import asyncio

from smcp_agent.connecting.addresses import Addresses, delay
from smcp_agent.connecting.options import ConnectionOptions
from smcp_agent.errors import NotAllowed, NotAuthenticated, SmcpError
from smcp_bus.callers import DELEGATES
from smcp_mcp.settings import McpSettings
from smcp_proto.backoff import Backoff
from smcp_service.logging import get_logger

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0
"""Between two attempts."""

_log = get_logger(__name__)


class GatewayCheck:
    """Connects until a gateway lets it in, and joins nothing. The token may be renewed meanwhile."""

    def __init__(self, settings: McpSettings) -> None:
        self._settings = settings
        self.problem: str | None = "not connected to a gateway yet"
        """Why no gateway has let this service in; None: one has."""

    async def run(self) -> None:
        addresses, backoff = Addresses(self._settings.gateways), Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        auth = {DELEGATES: True} if self._settings.auth_configured else {}
        while self.problem is not None:
            try:
                options = ConnectionOptions(auth=auth, token=self._settings.gateway_token)
                connection = await addresses.connect(options, lambda event, data: None)
            except SmcpError as error:
                refused = isinstance(error, NotAuthenticated | NotAllowed)
                why = f"the gateway refuses SMCP_TOKEN: {error.message}" if refused else error.message
                if why != self.problem:
                    _log.error("not ready", why=why)
                self.problem = why
                await asyncio.sleep(max(backoff.next(), delay(error)))
            else:
                self.problem = None
                await connection.close()
