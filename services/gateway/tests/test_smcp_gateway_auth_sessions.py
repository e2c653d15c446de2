"""What a token allows while its session lives, and when that ends."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from socketio.exceptions import ConnectionError as Refused

from smcp_auth import api_keys as key_file
from smcp_auth.api_keys import KeyEntry, new_key
from smcp_bus import subjects
from smcp_bus.bus import Incoming
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import Assertion, AssertionResult
from smcp_gateway.rooms import memberships
from smcp_testing import issuer
from smcp_testing.gateway_world import Client, connected, gateway_world, reply
from smcp_testing.issuer import shared_token
from smcp_testing.leaving_gateway import gone, in_time, two_gateways
from smcp_testing.waiting import eventually

SECRET = "a shared secret of the tests, long enough"
SETTINGS = issuer.settings(auth_secret=SECRET)
VALID_S = 4
"""Of a token that is to expire in a session: to connect and to join took up to a second on a busy machine."""
TRANSPORTS = ["polling", "websocket"]


def token(**claims: Any) -> dict[str, str]:
    return {"token": shared_token(SECRET, **claims)}


def refused(answer: Any, about: str) -> None:
    done, why, details = answer
    assert done is False
    assert why.startswith("403 ")
    assert about in why
    assert details == {"field": "office_id" if about == "office" else about}


@pytest.mark.rule("answers.connect.token.place")
async def test_a_token_allows_only_its_offices_roles_and_names(nats_url: str) -> None:
    grants = {"offices": ["lab-*"], "roles": ["computer"], "names": ["rack ?"]}
    async with gateway_world(nats_url, settings=SETTINGS) as world:
        async with connected(world.url, auth=token(smcp=grants)) as rack:
            refused(await rack.join("computer", "rack 1", "kitchen"), "office")
            refused(await rack.join("agent", "rack 1", "lab-1"), "role")
            refused(await rack.join("computer", "rack 10", "lab-1"), "name")
            assert await rack.join("computer", "rack 1", "lab-1") == [True, None]
            assert await rack.join("computer", "rack 1", "lab-2") == [True, None]
            refused(await rack.join("computer", "rack 1", "kitchen"), "office")
            room = await rack.call("server:list_room", {"agent": "rack 1", "req_id": "1", "office_id": "lab-2"})
            assert [session["name"] for session in room["sessions"]] == ["rack 1"]  # a refused switch changes nothing


@pytest.mark.rule("answers.connect.token.end")
async def test_a_session_ends_when_its_token_expires(nats_url: str) -> None:
    async with gateway_world(nats_url, settings=SETTINGS, move_s=1.0) as world:

        async def ends(transport: str) -> None:
            office = f"office by {transport}"
            async with connected(world.url, auth=token(sub="box")) as box:
                assert await box.join("computer", "box", office) == [True, None]
                until = time.time() + VALID_S
                async with connected(world.url, auth=token(exp=until), transports=[transport]) as anna:
                    assert await anna.join("agent", "anna", office) == [True, None]
                    await gone(anna)
                    assert until <= time.time() <= until + 5, transport
                await eventually(lambda: box.told("notify:leave_office") == [{"office_id": office, "agent": "anna"}])
                async with connected(world.url, auth=token()) as again:
                    assert await again.join("agent", "anna", office) == [True, None]

        await asyncio.gather(*map(ends, TRANSPORTS))


async def test_the_seat_of_an_expired_token_is_kept_for_its_subject_and_nothing_is_announced(
    nats_url: str,
) -> None:
    async with (
        gateway_world(nats_url, settings=SETTINGS) as world,
        connected(world.url, auth=token(sub="car")) as car,
        connected(world.url, auth=token(sub="holder of box", exp=time.time() + VALID_S)) as box,
    ):
        assert await car.join("computer", "car", "office") == [True, None]
        assert await box.join("computer", "box", "office") == [True, None]
        await eventually(lambda: len(car.told("notify:enter_office")) == 1)
        await gone(box)
        async with connected(world.url, auth=token(sub="somebody else")) as thief:
            assert (await thief.join("computer", "box", "office"))[0] is False
        async with connected(world.url, auth=token(sub="holder of box")) as again:
            assert await again.join("computer", "box", "office") == [True, None]
            assert await listed(car, "car") == {"car", "box"}
            assert car.told("notify:leave_office") == []
            assert len(car.told("notify:enter_office")) == 1


async def test_a_seat_that_takes_long_to_keep_delays_the_end_of_no_other_session(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering = asyncio.Event()
    assert_members = RegistryClient.assert_members

    async def slowly(registry: RegistryClient, assertion: Assertion, **how: Any) -> AssertionResult:
        await answering.wait()
        return await assert_members(registry, assertion, **how)

    until = time.time() + VALID_S
    async with (
        gateway_world(nats_url, settings=SETTINGS) as world,
        connected(world.url, auth=token(exp=until)) as box,
        connected(world.url, auth=token(exp=until + 2)) as later,
    ):
        assert await box.join("computer", "box", "office") == [True, None]
        monkeypatch.setattr(RegistryClient, "assert_members", slowly)
        await gone(later)
        assert not box.gone.is_set()
        answering.set()
        await gone(box)


def changed(path: Path, entry: KeyEntry, **fields: Any) -> None:
    key_file.remove(path, entry.id)
    key_file.add(path, entry.model_copy(update=fields))


async def test_removing_or_changing_a_key_ends_only_its_own_sessions(nats_url: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    made = [
        new_key(subject=name, offices=["*"], roles=["agent", "computer"], names=["*"])
        for name in ("anna", "box", "car")
    ]
    for _, entry in made:
        key_file.add(path, entry)
    (anna_key, anna_entry), (box_key, box_entry), (car_key, _) = made
    async with (
        gateway_world(nats_url, settings={"auth_keys": path}) as world,
        connected(world.url, auth={"token": anna_key}) as anna,
        connected(world.url, auth={"token": box_key}) as box,
        connected(world.url, auth={"token": car_key}) as car,
    ):
        for client, role, name in ((anna, "agent", "anna"), (box, "computer", "box"), (car, "computer", "car")):
            assert await client.join(role, name, "office") == [True, None]
        key_file.remove(path, anna_entry.id)
        await gone(anna)
        await eventually(lambda: {"office_id": "office", "agent": "anna"} in car.told("notify:leave_office"))
        changed(path, box_entry, offices=("elsewhere",))
        await gone(box)
        assert not car.gone.is_set()
        assert await car.join("computer", "car", "office") == [True, None]
        with pytest.raises(Refused, match="/smcp"):
            async with connected(world.url, auth={"token": anna_key}):
                raise AssertionError("it was let in")
        async with connected(world.url, auth={"token": box_key}) as back:
            refused(await back.join("computer", "box", "office"), "office")


async def test_an_invalid_change_of_the_key_file_ends_no_session(
    nats_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    key, entry = new_key(subject="anna", offices=["*"], roles=["agent"], names=["*"])
    key_file.add(path, entry)
    async with gateway_world(nats_url, settings={"auth_keys": path}) as world:
        async with connected(world.url, auth={"token": key}) as anna:
            path.write_text("{")
            await eventually(lambda: "cannot be used" in caplog.text)
            assert await anna.join("agent", "anna", "office") == [True, None]
            async with connected(world.url, auth={"token": key}) as second:
                assert (await second.join("agent", "bert", "another"))[0] is True


async def listed(client: Client, name: str) -> set[str]:
    room = await client.call("server:list_room", {"agent": name, "req_id": "1", "office_id": "office"})
    return {session["name"] for session in room["sessions"]}


async def test_a_moving_members_seat_is_kept_only_for_its_own_subject(nats_url: str) -> None:
    async with (
        two_gateways(nats_url, settings=SETTINGS) as (staying, leaving, leave),
        connected(staying.url, auth=token(sub="car")) as car,
        connected(leaving.url, auth=token(sub="holder of box")) as box,
    ):
        assert await car.join("computer", "car", "office") == [True, None]
        assert await box.join("computer", "box", "office") == [True, None]
        await eventually(lambda: len(car.told("notify:enter_office")) == 1)
        left = leave()
        await gone(box)
        await in_time(left)
        async with connected(staying.url, auth=token(sub="somebody else")) as thief:
            done, why, *_ = await thief.join("computer", "box", "office")
            assert done is False
            assert "already" in why
        # another token of the same holder
        async with connected(staying.url, auth=token(sub="holder of box", exp=time.time() + 60)) as again:
            assert await again.join("computer", "box", "office") == [True, None]
            assert await listed(car, "car") == {"car", "box"}
            assert car.told("notify:leave_office") == []
            assert len(car.told("notify:enter_office")) == 1


async def test_a_call_that_runs_when_the_token_expires_is_cancelled(nats_url: str) -> None:
    asked, cancelled = asyncio.Event(), asyncio.Event()

    async def serve(verb: str, _: Any) -> Any:
        asked.set()
        await asyncio.sleep(30)
        return reply({"content": []})

    async with (
        gateway_world(nats_url, settings=SETTINGS) as world,
        world.computer("office", "native", serve) as native,
    ):

        async def told(_: Any) -> None:
            cancelled.set()

        await native.bus.listen(subjects.notify("office", "tool_call_cancel"), told)
        async with connected(world.url, auth=token(exp=time.time() + VALID_S)) as anna:
            assert await anna.join("agent", "anna", "office") == [True, None]
            request = {"agent": "anna", "req_id": "1", "computer": "native", "tool_name": "t", "params": {}}
            await anna.sio.emit("client:tool_call", {**request, "timeout": 30}, namespace="/smcp")
            await in_time(asyncio.ensure_future(asked.wait()))
            await gone(anna)
            await in_time(asyncio.ensure_future(cancelled.wait()), 15)


async def test_a_call_that_runs_when_its_token_is_revoked_is_cancelled_if_its_subject_does_not_come_back(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memberships, "ABSENT_S", 0.2)
    asked, cancelled = asyncio.Event(), list[Any]()
    path = tmp_path / "revoked.json"
    path.write_text("{}")

    async def serve(verb: str, _: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    async with (
        gateway_world(nats_url, settings={**SETTINGS, "auth_revoked": path}) as world,
        world.computer("office", "native", serve) as native,
        connected(world.url, auth=token(sub="car")) as car,
        connected(world.url, auth=token(sub="mallory", jti="lost")) as mallory,
    ):

        async def told(incoming: Incoming) -> None:
            cancelled.append(json.loads(incoming.body))

        await native.bus.listen(subjects.notify("office", "tool_call_cancel"), told)
        assert await car.join("computer", "car", "office") == [True, None]
        assert await mallory.join("agent", "mallory", "office") == [True, None]
        request = {"agent": "mallory", "req_id": "1", "computer": "native", "tool_name": "t", "params": {}}
        await mallory.sio.emit("client:tool_call", {**request, "timeout": 600}, namespace="/smcp")
        await in_time(asyncio.ensure_future(asked.wait()))
        path.write_text('{"jti": ["lost"]}')
        await gone(mallory)
        await eventually(lambda: cancelled == [{"agent": "mallory", "req_id": "1"}])
        await eventually(lambda: {"office_id": "office", "agent": "mallory"} in car.told("notify:leave_office"))


@pytest.mark.rule("answers.connect.token.revoked")
async def test_revoking_a_token_or_a_subject_ends_its_sessions_and_no_others(
    nats_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "smcp_auth")
    path = tmp_path / "revoked.json"
    path.write_text('{"jti": ["lost long ago"]}')
    by_id, by_subject, other = token(sub="box", jti="lost"), token(sub="mallory"), token(sub="box", jti="kept")
    async with (
        gateway_world(nats_url, settings={**SETTINGS, "auth_revoked": path}) as world,
        connected(world.url, auth=other) as car,
        connected(world.url, auth=by_id) as box,
        connected(world.url, auth=by_subject) as mallory,
    ):
        for client, role, name in ((car, "computer", "car"), (box, "computer", "box"), (mallory, "agent", "mallory")):
            assert await client.join(role, name, "office") == [True, None]
        path.write_text('{"jti": ["lost"], "sub": ["mallory"]}')
        for client in (box, mallory):
            await gone(client)
        left = [{"office_id": "office", "agent": "mallory"}, {"office_id": "office", "computer": "box"}]
        await eventually(lambda: all(each in car.told("notify:leave_office") for each in left))
        for revoked in (by_id, by_subject, token(sub="mallory", exp=time.time() + 900)):
            for how in ({"auth": revoked}, {"headers": {"Authorization": f"Bearer {revoked['token']}"}}):
                with pytest.raises(Refused):
                    async with connected(world.url, **how):  # type: ignore[arg-type]
                        raise AssertionError("it was let in")
        assert not car.gone.is_set()
        path.write_text('{"jti": ["lost"]}')
        await eventually(lambda: caplog.text.count("the file of revoked tokens has changed, and was read") == 2)
        async with connected(world.url, auth=by_subject) as back:
            assert (await back.join("agent", "mallory", "office"))[0] is True


async def test_an_invalid_file_of_revoked_tokens_lets_nobody_back_in(
    nats_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "revoked.json"
    path.write_text('{"sub": ["mallory"]}')
    async with gateway_world(nats_url, settings={**SETTINGS, "auth_revoked": path}) as world:
        path.write_text('{"sub": "mallory"}')
        await eventually(lambda: "the changed file of revoked tokens cannot be used" in caplog.text)
        with pytest.raises(Refused):
            async with connected(world.url, auth=token(sub="mallory")):
                raise AssertionError("it was let in")
