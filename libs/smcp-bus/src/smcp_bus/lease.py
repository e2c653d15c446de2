"""The lease of a process, renewed for as long as the process lives."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

from smcp_bus.errors import BusError
from smcp_bus.registry_client import Hedges, RegistryClient
from smcp_bus.registry_contract import LeaseRenewal, LeaseState
from smcp_proto.errors import SmcpError

_log = logging.getLogger("smcp_bus.lease")

RENEW_AT: Final = 1 / 3
"""Share of a lease after which it is renewed, at the latest."""
HEDGE: Final = 1 / 20
"""Share of a lease after which a renewal that has no answer is asked for once more.

A renewal may take what is left of the lease, two thirds: 13 tries, each at a registry that NATS picks at random. With
one of two registries standing still all of them miss once in 2**13 renewals (0.01 %), with one of three once in 3**13.
Where all registries are slow, that is all that they get more of: 13 tries in place of one renewal.
"""


class LeaseKeeper:
    """Renews this process's lease every third of it, and has what is left of the lease for that.

    A registry that does not answer, or that has no quorum, is asked again: the members are not lost by that, since the
    registries ask a process before they let its members go.

    Args:
        lease_s: how long the registries let a lease live, in seconds. Where they say another time, the shorter counts,
            and a warning says so.
        describe: what goes with each renewal.
        on_lapsed: called after a renewal that found no lease (any more): the members are to be asserted.
        on_renewed: told what the registry said to each renewal; must not block.
    """

    def __init__(
        self,
        registry: RegistryClient,
        *,
        lease_s: float,
        describe: Callable[[], LeaseRenewal],
        on_lapsed: Callable[[], Awaitable[None]],
        on_renewed: Callable[[LeaseState], None] | None = None,
    ) -> None:
        self._registry = registry
        self._configured_s = self._told_s = lease_s
        self._describe = describe
        self._on_lapsed = on_lapsed
        self._on_renewed = on_renewed
        self._held = False
        self._had_one = False
        self._failing = False
        self._wake = asyncio.Event()
        self._renewed_at: float | None = None
        self.renewals = 0
        """Those that succeeded, the first one among them."""

    @property
    def held(self) -> bool:
        """Whether the last renewal succeeded."""
        return self._held

    @property
    def age(self) -> float:
        """Seconds since the last renewal that succeeded; 0 before the first."""
        return 0.0 if self._renewed_at is None else time.monotonic() - self._renewed_at

    async def acquire(self) -> None:
        """Take the lease; called once, before the first member is claimed.

        Raises:
            SmcpError, BusError: no registry could be reached, or there is no quorum.
        """
        self._told(await self._registry.renew_lease(self._describe()))
        self._held = self._had_one = True

    def renew_soon(self) -> None:
        """Renew now instead of at the next turn: after a reconnect, or after a pause."""
        self._wake.set()

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            lease_s = min(self._configured_s, self._told_s)
            left = lease_s * (1 - RENEW_AT)
            hedges = Hedges(lease_s * HEDGE, lease_s * HEDGE)
            # jitter: replicas that were started together do not renew together
            await self._sleep(lease_s * RENEW_AT * random.uniform(0.8, 1.0))  # noqa: S311 -- not a secret
            try:
                state = await self._registry.renew_lease(self._describe(), timeout=left, hedges=hedges)
            except (BusError, SmcpError) as error:
                self._held = False
                if not self._failing:  # once for each outage
                    _log.warning("the lease could not be renewed: %s; trying on", str(error) or type(error).__name__)
                self._failing = True
                continue
            if self._failing:
                _log.info("the lease is renewed again")
            self._held, self._failing = True, False
            self._told(state)
            if not state.renewed:
                if self._had_one:
                    _log.warning("the lease had run out; asserting the members again")
                await self._on_lapsed()
            self._had_one = True

    def _told(self, state: LeaseState) -> None:
        self.renewals += 1
        self._renewed_at = time.monotonic()
        if state.lease_s not in (self._told_s, self._configured_s):  # once for each difference
            _log.warning(
                "SMCP_LEASE_S is %g here and %g at the registries: the shorter one counts; set it alike everywhere",
                self._configured_s,
                state.lease_s,
            )
        self._told_s = state.lease_s
        if self._on_renewed is not None:
            self._on_renewed(state)

    async def _sleep(self, seconds: float) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
