"""Which address a request is counted under."""

import pytest

from smcp_auth.client_addresses import client_address, counted_as, read_networks


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("10.0.0.1", "10.0.0.2", False),
    ],
)
def test_addresses_of_one_ipv6_network_count_together(one: str, other: str, same: bool) -> None:
    assert (counted_as(one) == counted_as(other)) is same


def test_a_trusted_proxy_counts_as_nothing() -> None:
    assert counted_as("10.1.1.1", read_networks("10.0.0.0/8")) is None


PROXIES = read_networks("10.0.0.0/8, ::1")


@pytest.mark.parametrize(
    ("remote", "forwarded", "client"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["198.51.100.7"], "192.0.2.1"),
        ("10.1.1.1", [], "10.1.1.1"),
        ("10.1.1.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.1.1.1", ["6.6.6.6, 198.51.100.7"], "198.51.100.7"),
        ("10.1.1.1", ["6.6.6.6, 198.51.100.7, 10.2.2.2"], "198.51.100.7"),
        ("10.1.1.1", ["6.6.6.6", "198.51.100.7"], "198.51.100.7"),
        ("::1", ["10.2.2.2"], "10.2.2.2"),
        ("::ffff:10.1.1.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.1.1.1", ["6.6.6.6,"], "10.1.1.1"),
        (None, ["198.51.100.7"], ""),
        ("10.1.1.1", ["198.51.100.7:40001"], "198.51.100.7"),
        ("10.1.1.1", ["198.51.100.7:40001, 10.2.2.2:40002"], "198.51.100.7"),
        ("10.1.1.1", ["[2001:db8::7]:40001"], "2001:db8::7"),
        ("10.1.1.1", ["[2001:db8::7]"], "2001:db8::7"),
        ("10.1.1.1", ["2001:db8::7"], "2001:db8::7"),
        ("10.1.1.1", ["6.6.6.6, [::1]:40001"], "6.6.6.6"),
    ],
)
def test_only_trusted_proxies_determine_the_client_address(
    remote: str | None, forwarded: list[str], client: str
) -> None:
    assert client_address(remote, forwarded, PROXIES) == client


@pytest.mark.parametrize("text", ["10.0.0.1/8", "proxy", "10.0.0.0/8; ::1"])
def test_an_invalid_network_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not an IP address or a network"):
        read_networks(text)
