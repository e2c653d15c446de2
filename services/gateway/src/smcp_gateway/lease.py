"""The gateway's lease: taken as soon as a registry can be reached, then kept."""

import asyncio
from collections.abc import Callable
from typing import Final

from smcp_bus.errors import BusError
from smcp_bus.lease import LeaseKeeper
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import LeaseRenewal, LeaseState
from smcp_proto.errors import SmcpError
from smcp_service.logging import get_logger

LEASE_PAUSE_S: Final = 0.5

_log = get_logger("smcp_gateway.lease")


class Lease:
    """Args:
    describe: what goes with each renewal.
    lapsed: told where it had run out.
    renewed: told what the registry said; must not block.
    """

    def __init__(
        self,
        registry: RegistryClient,
        describe: Callable[[], LeaseRenewal],
        lapsed: Callable[[], None],
        renewed: Callable[[LeaseState], None],
        *,
        lease_s: float,
    ) -> None:
        async def on_lapsed() -> None:
            lapsed()

        self._keeper = LeaseKeeper(
            registry, lease_s=lease_s, describe=describe, on_lapsed=on_lapsed, on_renewed=renewed
        )
        self.acquired = False

    @property
    def held(self) -> bool:
        """Whether the last renewal succeeded."""
        return self._keeper.held

    @property
    def age(self) -> float:
        """As `LeaseKeeper.age`."""
        return self._keeper.age

    @property
    def renewals(self) -> int:
        """As `LeaseKeeper.renewals`."""
        return self._keeper.renewals

    def renew_soon(self) -> None:
        """What goes with a renewal has changed: say so now."""
        self._keeper.renew_soon()

    async def run(self) -> None:
        """Take it, and keep it until cancelled."""
        said = False
        while not self.acquired:
            try:
                await self._keeper.acquire()
            except (BusError, SmcpError) as error:
                if not said:
                    _log.warning("no registry gives a lease yet; asking on", error=type(error).__name__)
                said = True
                await asyncio.sleep(LEASE_PAUSE_S)
            else:
                self.acquired = True
        await self._keeper.run()
