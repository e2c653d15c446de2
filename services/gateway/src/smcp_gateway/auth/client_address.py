"""From which address a client comes, also behind a proxy that is trusted to say so."""

import ipaddress
from collections.abc import Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def read_networks(text: str) -> tuple[Network, ...]:
    """Addresses and networks with commas between them: `10.0.0.0/8, ::1`.

    Raises:
        ValueError: one of them is none; it is named.
    """
    networks = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        try:
            networks.append(ipaddress.ip_network(part))
        except ValueError:
            raise ValueError(f"{part!r} is not an IP address or a network like 10.0.0.0/8") from None
    return tuple(networks)


def client_address(remote: str | None, forwarded: Sequence[str], trusted: Sequence[Network]) -> str:
    """The address of the client.

    It is who opened the TCP connection (`remote`), unless that is a trusted proxy: then the last of `X-Forwarded-For`
    that is none itself. What stands before that one the client may have written, and it does not count.

    Args:
        forwarded: the values of all headers `X-Forwarded-For`, in their order.
    """
    address = remote or ""
    hops = [hop.strip() for value in forwarded for hop in value.split(",")]
    while hops and _is_trusted(address, trusted):
        said = hops.pop()
        if not said:
            break
        address = _without_port(said)
    return address


def _without_port(hop: str) -> str:
    """The address of a hop. Some proxies write its port, too, which is another one for each connection, and whoever
    guesses would be somebody else each time."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    host, _, port = hop.partition(":")
    return host if port.isdecimal() else hop  # of an IPv6 address without brackets all colons are its own


def _is_trusted(address: str, trusted: Sequence[Network]) -> bool:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return any(parsed.version == network.version and parsed in network for network in trusted)
