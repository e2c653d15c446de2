"""The issuer's keys over real HTTP: kept, rotated, gone; and an issuer that is slow, wrong or away."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from smcp_auth.jwts import BadKeySet, Jwks, find_key, load_of, read_key_set
from smcp_proto.errors import Unavailable
from smcp_testing.issuer import Issuer, key_set, open_issuer, signing_key
from smcp_testing.waiting import Stopwatch, eventually

OLD, NEW, RSA = signing_key("old"), signing_key("new"), signing_key("rsa", "RS256")


def fetched_from(issuer: Issuer, *, lifetime_s: float = 60.0, refetch_s: float = 0.0) -> Jwks:
    return Jwks(load_of(issuer.url), lifetime_s=lifetime_s, refetch_s=refetch_s)


async def test_a_set_is_fetched_once_for_many_tokens() -> None:
    async with open_issuer(OLD, RSA) as issuer:
        jwks = fetched_from(issuer)
        found = await asyncio.gather(*(jwks.find("old", "ES256") for _ in range(100)))
        assert all(key is not None and key.key_id == "old" for key in found)
        assert await jwks.find("rsa", "RS256") is not None
        assert await jwks.find("rsa", "ES256") is None
        assert issuer.fetched <= 2  # the second for a key that is not there


async def test_a_new_key_is_fetched_when_a_token_names_it() -> None:
    async with open_issuer(OLD) as issuer:
        jwks = fetched_from(issuer)
        assert await jwks.find("old", "ES256") is not None
        issuer.keys = (OLD, NEW)
        assert await jwks.find("new", "ES256") is not None
        assert issuer.fetched == 2


async def test_concurrent_tokens_with_a_new_key_share_one_fetch() -> None:
    async with open_issuer(OLD) as issuer:
        jwks = fetched_from(issuer, refetch_s=0.2)
        assert await jwks.find("old", "ES256") is not None
        issuer.keys = (OLD, NEW)

        async def asked() -> bool:
            found = await asyncio.gather(*(jwks.find("new", "ES256") for _ in range(30)))
            assert len({key is None for key in found}) == 1, "all or none"
            return found[0] is not None

        await eventually(asked)
        assert issuer.fetched == 2


async def test_unknown_kids_cause_at_most_one_fetch_per_interval() -> None:
    async with open_issuer(OLD) as issuer:
        jwks = fetched_from(issuer, refetch_s=60)
        assert await jwks.find("old", "ES256") is not None
        for number in range(50):
            assert await jwks.find(f"made up {number}", "ES256") is None
        assert issuer.fetched == 1
    async with open_issuer(OLD) as issuer:
        jwks = fetched_from(issuer, refetch_s=0.3)
        assert await jwks.find("old", "ES256") is not None
        loop = asyncio.get_running_loop()
        until = loop.time() + 1
        while loop.time() < until:
            assert await jwks.find("made up", "ES256") is None
            await asyncio.sleep(0)
        assert 2 <= issuer.fetched <= 5


async def test_a_removed_key_is_accepted_until_the_lifetime_of_the_set_ends() -> None:
    async with open_issuer(OLD, NEW) as issuer:
        jwks = fetched_from(issuer, lifetime_s=1)
        assert await jwks.find("old", "ES256") is not None
        issuer.keys = (NEW,)
        watch = Stopwatch()

        async def gone() -> bool:
            return await jwks.find("old", "ES256") is None

        await eventually(gone)
        assert watch.undisturbed < 2
        assert await jwks.find("new", "ES256") is not None


async def test_a_short_outage_of_the_issuer_is_bridged_and_a_long_one_is_503() -> None:
    async with open_issuer(OLD) as issuer:
        jwks = fetched_from(issuer, lifetime_s=6)
        assert await jwks.find("old", "ES256") is not None
        issuer.status = 503

        async def is_accepted_and_the_set_was_asked_for() -> bool:
            assert await jwks.find("old", "ES256") is not None
            return issuer.fetched >= 2

        await eventually(is_accepted_and_the_set_was_asked_for)

        async def unavailable() -> bool:
            try:
                await jwks.find("old", "ES256")
            except Unavailable:
                return True
            return False

        await eventually(unavailable)
        issuer.status = 200

        async def back() -> bool:
            return not await unavailable()

        await eventually(back)


async def test_a_slow_issuer_delays_only_tokens_with_unknown_keys() -> None:
    async with open_issuer(OLD) as issuer:
        jwks = fetched_from(issuer, lifetime_s=60)
        assert await jwks.find("old", "ES256") is not None
        issuer.held.clear()
        stranger = asyncio.create_task(jwks.find("unknown", "ES256"))
        await eventually(lambda: issuer.fetched == 2)
        watch = Stopwatch()
        assert await jwks.find("old", "ES256") is not None
        assert watch.undisturbed < 0.1
        assert not stranger.done()
        issuer.held.set()
        assert await stranger is None


async def test_a_cancelled_login_does_not_cancel_the_fetch() -> None:
    async with open_issuer(OLD) as issuer:
        issuer.held.clear()
        jwks = fetched_from(issuer)
        waiting = [asyncio.create_task(jwks.find("old", "ES256")) for _ in range(2)]
        await eventually(lambda: issuer.fetched == 1)
        waiting[0].cancel()
        issuer.held.set()
        assert await waiting[1] is not None
        assert issuer.fetched == 1


async def test_a_login_that_is_cancelled_while_it_fetches_the_keys_does_not_fail_the_next_one() -> None:
    async with open_issuer(OLD) as issuer:
        issuer.held.clear()
        jwks = Jwks(load_of(issuer.url))
        first = asyncio.create_task(jwks.find("old", "ES256"))
        await eventually(lambda: issuer.fetched == 1)
        first.cancel()
        await asyncio.wait([first])
        issuer.held.set()
        assert await jwks.find("old", "ES256") is not None
        assert issuer.fetched == 1


async def test_a_key_set_file_is_read_again_like_a_url(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(key_set(OLD))
    jwks = Jwks(load_of(str(path)), lifetime_s=60, refetch_s=0)
    assert await jwks.find("old", "ES256") is not None
    path.write_text(key_set(NEW))
    assert await jwks.find("new", "ES256") is not None
    assert await jwks.find("old", "ES256") is None


EC_JWK, RSA_JWK = OLD.jwk, RSA.jwk


@pytest.mark.parametrize(
    "jwk",
    [
        {**EC_JWK, "use": "enc"},
        {**EC_JWK, "key_ops": ["sign"]},
        {**EC_JWK, "key_ops": "verify"},
        {**EC_JWK, "alg": "RS256"},
        {**EC_JWK, "alg": "ES384"},
        {**EC_JWK, "alg": "none"},
        {"kty": "oct"},
        {**EC_JWK, "x": "AAAA"},
        {**EC_JWK, "x": 5},
        {**EC_JWK, "crv": "P-384"},
        {**RSA_JWK, "alg": "RS512"},
        {**RSA_JWK, "n": "!"},
        {**RSA_JWK, "e": None},
        {"kty": "oct", "k": "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlY3JldA", "kid": "old", "alg": "HS256"},
        {"kty": "none"},
        {},
        "key",
        None,
    ],
)
def test_a_key_of_another_kind_is_skipped(jwk: Any) -> None:
    found = read_key_set(json.dumps({"keys": [jwk, NEW.jwk]}).encode())
    assert [key.key_id for key in found] == ["new"]


def test_a_short_rsa_key_is_skipped() -> None:
    with pytest.raises(BadKeySet, match="has no key"):
        read_key_set(key_set(signing_key("short", "RS256", bits=1024)).encode())


def test_a_kid_of_two_keys_matches_none() -> None:
    twice = {**NEW.jwk, "kid": "old"}
    found = read_key_set(json.dumps({"keys": [OLD.jwk, twice]}).encode())
    assert find_key(found, "old", "ES256") is None


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"keys": {}}', b"\xff", b"[" * 100_000])
def test_an_invalid_key_set_is_refused(text: bytes) -> None:
    with pytest.raises(BadKeySet):
        read_key_set(text)
