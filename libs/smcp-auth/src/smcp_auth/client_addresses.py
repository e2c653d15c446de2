"""The addresses of clients, as requests are counted under them."""

import ipaddress
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

_V6_NETWORK: Final = 64
"""Bits of an IPv6 address that count: its holder chooses the rest."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def read_networks(text: str) -> tuple[Network, ...]:
    """Addresses and networks with commas between them: `10.0.0.0/8, ::1`. Raises ValueError: it names the wrong one."""
    networks = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ipaddress.ip_network(part))
        except ValueError:
            raise ValueError(f"{part!r} is not an IP address or a network like 10.0.0.0/8") from None
    return tuple(networks)


def client_address(remote: str | None, forwarded: Sequence[str], trusted: Sequence[Network]) -> str:
    """The address of a client: the TCP peer (`remote`), unless that is a trusted proxy. Then it is the last address of
    `X-Forwarded-For` (`forwarded`) that is not a trusted proxy; the client may have written those before it."""
    address = remote or ""
    hops = [hop.strip() for value in forwarded for hop in value.split(",")]
    while hops and (parsed := _parsed(address)) is not None and any(parsed in network for network in trusted):
        if not (hop := hops.pop()):
            break
        address = _without_port(hop)
    return address


@lru_cache(maxsize=128)  # for each request
def counted_as(address: str, trusted: tuple[Network, ...] = ()) -> str | None:
    """What connections from an address count as: an IPv6 address as its network, a trusted proxy as nothing (None)."""
    parsed = _parsed(address)
    if parsed is not None and any(parsed in network for network in trusted):
        return None
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, _V6_NETWORK), strict=False))
    return address[:64] if parsed is None else str(parsed)


def source_of(remote: str | None, forwarded: Sequence[str], trusted: Sequence[Network]) -> str:
    """The address that a request is counted under. Arguments: those of `client_address`."""
    address = client_address(remote, forwarded, trusted)
    return counted_as(address) or address


def _without_port(hop: str) -> str:
    # some proxies add the port, by which each connection would count as another address
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    host, _, port = hop.partition(":")
    return host if port.isdecimal() else hop  # an IPv6 address without brackets has no port


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return (parsed.ipv4_mapped or parsed) if isinstance(parsed, ipaddress.IPv6Address) else parsed
