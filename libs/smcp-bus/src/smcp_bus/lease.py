"""The lease of a process: taken as soon as a registry can be reached, then renewed until the process ends."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from smcp_bus.errors import BusError, describe
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import LeaseRenewal, LeaseState
from smcp_proto.backoff import jittered
from smcp_proto.errors import SmcpError

_log = logging.getLogger("smcp_bus.lease")

RENEW_AT: Final = 1 / 3
"""Share of a lease after which it is renewed, at the latest. A renewal may take the rest of the lease."""
FIRST_AGAIN_S: Final = 0.5
"""Between two attempts to get the first lease (seconds)."""


@dataclass(eq=False, repr=False)
class LeaseKeeper:
    """Renews this process's lease every third of it.

    A failed renewal loses no member: the registries ask a process before they remove its members.
    """

    registry: RegistryClient
    _: KW_ONLY
    lease_s: float
    """How long the registries let a lease live, in seconds. Where they say another time, the shorter counts, and a
    warning says so."""
    describe: Callable[[], LeaseRenewal]
    """What goes with each renewal."""
    on_lapsed: Callable[[], None]
    """Called after a renewal that found no lease (any more): the members are to be asserted."""
    on_renewed: Callable[[LeaseState], None] | None = None
    """Given what the registry said to each renewal."""
    acquired: bool = field(default=False, init=False)
    held: bool = field(default=False, init=False)
    """Whether the last renewal succeeded."""
    renewals: int = field(default=0, init=False)
    _registry_s: float = field(init=False)
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _renewed_at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._registry_s = self.lease_s

    @property
    def age(self) -> float:
        """Seconds since the last renewal that succeeded; 0 before the first."""
        return 0.0 if self._renewed_at is None else time.monotonic() - self._renewed_at

    async def acquire(self) -> None:
        """Raises SmcpError, BusError: no registry could be reached, or there is no quorum."""
        self._renewed(await self.registry.renew_lease(self.describe()))

    def renew_soon(self) -> None:
        """Renew now instead of at the next turn: after a reconnect, or where what goes with it has changed."""
        self._wake.set()

    async def run(self) -> None:
        failing = False
        while True:
            lease_s = min(self.lease_s, self._registry_s)
            if self.acquired:
                # jitter: replicas that were started together do not renew together
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(jittered(lease_s * RENEW_AT)):
                        await self._wake.wait()
            timeout = lease_s * (1 - RENEW_AT) if self.acquired else None
            try:
                state = await self.registry.renew_lease(self.describe(), timeout=timeout)
            except (BusError, SmcpError) as error:
                self.held = False
                if not failing:  # once for each outage
                    _log.warning("the lease could not be renewed: %s; trying on", describe(error))
                failing = True
                if not self.acquired:
                    await asyncio.sleep(jittered(FIRST_AGAIN_S))
                continue
            if failing:
                _log.info("the lease is renewed again")
            failing = False
            lapsed = self.acquired and not state.renewed
            self._renewed(state)
            if lapsed:
                _log.warning("the lease had run out; asserting the members again")
                self.on_lapsed()

    def _renewed(self, state: LeaseState) -> None:
        self.held = self.acquired = True
        self.renewals += 1
        self._renewed_at = time.monotonic()
        if state.lease_s not in (self._registry_s, self.lease_s):  # once for each difference
            _log.warning(
                "SMCP_LEASE_S is %g here and %g at the registries: the shorter one counts; set it alike everywhere",
                self.lease_s,
                state.lease_s,
            )
        self._registry_s = state.lease_s
        if self.on_renewed is not None:
            self.on_renewed(state)
