"""The network of a world, which its parts leave and come back to at the same address."""

import random
from collections.abc import Iterator
from ipaddress import IPv4Network
from types import TracebackType

from docker.types import IPAMConfig, IPAMPool
from testcontainers.core.network import Network

from tests.e2e.worlds.engine import engine, options, told


class CutNetwork(Network):
    """One with a subnet of its own: only there a container may come back to its address.

    Args:
        labels: of what is made.
    """

    def __init__(self, name: str, labels: dict[str, str]) -> None:
        pool = IPAMPool(subnet=_free_subnet())
        super().__init__(
            docker_client_kw=options(),
            docker_network_kw={"labels": labels, "ipam": IPAMConfig(pool_configs=[pool])},
        )
        self.name = name

    def join(self, container: str, *, alias: str | None = None, address: str | None = None) -> None:
        """A container is on it from now on, under that name, and at that address where one is said."""
        aliases = None if alias is None else [alias]
        with told():
            self._unwrap_network.connect(container, aliases=aliases, ipv4_address=address)

    def leave(self, container: str) -> None:
        with told():
            self._unwrap_network.disconnect(container)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        with told():
            super().__exit__(exc_type, exc_val, exc_tb)
        self._docker.client.close()


def _free_subnet() -> str:
    """One that no network of the engine has."""
    with engine() as asked, told():
        networks = asked.client.networks.list()
    pools = [pool for network in networks for pool in network.attrs["IPAM"]["Config"] or ()]
    taken = [IPv4Network(pool["Subnet"]) for pool in pools if ":" not in pool["Subnet"]]
    return next(str(subnet) for subnet in _candidates() if not any(subnet.overlaps(other) for other in taken))


def _candidates() -> Iterator[IPv4Network]:
    while True:
        yield IPv4Network((random.randrange(0x0AC80000, 0x0AFF0000) & ~0xFF, 24))  # of 10.200.0.0 to 10.254.255.0
