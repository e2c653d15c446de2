"""How often an address may be wrong, and which address that is."""

from itertools import pairwise

import pytest

from smcp_auth.client_addresses import ADDRESSES, LoginThrottle, client_address, counted_as, read_networks


def test_an_address_has_to_wait_after_20_failures_in_a_minute() -> None:
    attempts = LoginThrottle()
    for second in range(20):
        assert attempts.retry_after("10.0.0.1", second) == 0
        attempts.failed("10.0.0.1", second)
    assert attempts.retry_after("10.0.0.1", 19) == 41
    assert attempts.retry_after("10.0.0.2", 19) == 0
    assert attempts.retry_after("10.0.0.1", 59.5) == 1
    assert attempts.retry_after("10.0.0.1", 60) == 0


def test_an_address_that_goes_on_failing_stays_blocked() -> None:
    attempts = LoginThrottle()
    taken = []
    for second in range(6 * 60):
        if attempts.retry_after("a", second) == 0:
            attempts.failed("a", second)
            taken.append(second)
    assert len(taken) == 6 * 20
    assert all(later - earlier <= 41 for earlier, later in pairwise(taken))


def test_the_number_of_remembered_addresses_is_bounded() -> None:
    attempts = LoginThrottle()
    for number in range(20 * ADDRESSES + 20):
        attempts.failed(f"10.{number // 20 // 2500}.{number // 20 // 250 % 10}.{number // 20 % 250}", number / 10**6)
    assert len(attempts) == ADDRESSES
    assert attempts.retry_after("10.4.0.0", 1.0) > 0
    assert attempts.retry_after("10.0.0.0", 1.0) == 0


def test_old_failures_are_forgotten() -> None:
    attempts = LoginThrottle()
    attempts.failed("10.0.0.1", 0)
    assert attempts.retry_after("10.0.0.1", 61) == 0
    assert len(attempts) == 0


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
