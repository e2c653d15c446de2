"""The lease of a process, renewed for as long as the process lives."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from smcp_bus.errors import BusError
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import LeaseRenewal
from smcp_proto.errors import SmcpError

_log = logging.getLogger("smcp_bus.lease")


class LeaseKeeper:
    """Renews this process's lease every third of it.

    A registry that does not answer, or that has no quorum, is asked again: the members are not lost by that, since the
    registries ask a process before they let its members go.

    Args:
        lease_s: how long the registries let a lease live, in seconds.
        describe: what goes with each renewal.
        on_lapsed: called after a renewal that found no lease (any more): the members are to be asserted.
    """

    def __init__(
        self,
        registry: RegistryClient,
        *,
        lease_s: float,
        describe: Callable[[], LeaseRenewal],
        on_lapsed: Callable[[], Awaitable[None]],
    ) -> None:
        self._registry = registry
        self._lease_s = lease_s
        self._describe = describe
        self._on_lapsed = on_lapsed
        self._held = False
        self._had_one = False
        self._failing = False
        self._wake = asyncio.Event()

    @property
    def held(self) -> bool:
        """Whether the last renewal succeeded."""
        return self._held

    async def acquire(self) -> None:
        """Take the lease; called once, before the first member is claimed.

        Raises:
            SmcpError, BusError: no registry could be reached, or there is no quorum.
        """
        await self._registry.renew_lease(self._describe())
        self._held = self._had_one = True

    def renew_soon(self) -> None:
        """Renew now instead of at the next turn: after a reconnect, or after a pause."""
        self._wake.set()

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            # jitter: replicas that were started together do not renew together
            await self._sleep(self._lease_s / 3 * random.uniform(0.8, 1.0))  # noqa: S311 -- not a secret
            try:
                state = await self._registry.renew_lease(self._describe(), timeout=self._lease_s / 3)
            except (BusError, SmcpError) as error:
                self._held = False
                if not self._failing:  # once for each outage
                    _log.warning("the lease could not be renewed: %s; trying on", str(error) or type(error).__name__)
                self._failing = True
                continue
            if self._failing:
                _log.info("the lease is renewed again")
            self._held, self._failing = True, False
            if not state.renewed:
                if self._had_one:
                    _log.warning("the lease had run out; asserting the members again")
                await self._on_lapsed()
            self._had_one = True

    async def _sleep(self, seconds: float) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
