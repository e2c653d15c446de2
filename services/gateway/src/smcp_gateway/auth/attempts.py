"""How often an address was wrong lately: who was wrong too often is not listened to for a while."""

import ipaddress
import math
from collections import OrderedDict, deque
from typing import Final

LIMIT: Final = 20
WINDOW_S: Final = 60.0
ADDRESSES: Final = 10_000
"""That are remembered; of more the one that was wrong longest ago is forgotten."""
_V6_NETWORK: Final = 64
"""Bits of an IPv6 address that count: the rest is its holder's to choose."""


class Attempts:
    """Args:
    limit: wrong tries in `window_s` seconds after which an address has to wait.
    addresses: how many are remembered.
    """

    def __init__(self, *, limit: int = LIMIT, window_s: float = WINDOW_S, addresses: int = ADDRESSES) -> None:
        self._limit = limit
        self._window_s = window_s
        self._addresses = addresses
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failed)

    def failed(self, address: str, now: float) -> None:
        """Count a wrong try (`now`: a monotonic clock, seconds)."""
        key = _key(address)
        tries = self._failed.setdefault(key, deque(maxlen=self._limit))
        tries.append(now)
        self._failed.move_to_end(key)
        if len(self._failed) > self._addresses:
            self._failed.popitem(last=False)

    def retry_after(self, address: str, now: float) -> int:
        """Whole seconds until the address is listened to again; 0: it is."""
        key = _key(address)
        tries = self._failed.get(key)
        if tries is None:
            return 0
        while tries and tries[0] <= now - self._window_s:
            tries.popleft()
        if not tries:
            del self._failed[key]
        if len(tries) < self._limit:
            return 0
        return max(math.ceil(tries[0] + self._window_s - now), 1)


def _key(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, _V6_NETWORK), strict=False))
    return str(parsed)
