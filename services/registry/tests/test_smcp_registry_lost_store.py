"""NATS loses its store while registries run: an office is listed once its former members are back."""

import asyncio
from collections.abc import Set
from functools import partial

import pytest

from smcp_bus.bus import BusError
from smcp_proto.errors import Unavailable
from smcp_proto.member_names import Role
from smcp_testing.member_process import MemberProcess, member_process
from smcp_testing.nats_process import NatsServer
from smcp_testing.registry_world import registries
from smcp_testing.waiting import BOUND_S, eventually

WORDS = "the registry is rebuilding the list of members; retry"
LEASE_S = 3.0


async def comes_back(member: MemberProcess, name: str) -> None:
    async def joined() -> bool:
        try:
            await member.join("lab", "computer", name)
        except (Unavailable, BusError):
            return False
        return True

    await eventually(joined)


async def listed(member: MemberProcess, name: str) -> set[str] | str:
    """The names in the room, or why they are not told."""
    try:
        return {name for _, name in await member.room("lab", "computer", name)}
    except Unavailable as refused:
        return refused.message


async def all_list(member: MemberProcess, name: str, names: set[str]) -> bool:
    """Whichever registry is asked."""
    return [await listed(member, name) for _ in range(8)] == [names] * 8


async def all_put_off(member: MemberProcess, name: str, role: Role = "computer") -> bool:
    """Whether each registry lets a member wait that has not come back; NotInOffice: it says that it is not a member."""

    async def put_off() -> bool:
        try:
            if role == "agent":
                await member.registry.find(("lab", role, name), "late", timeout=30)
            else:
                await member.room("lab", role, name)
        except (Unavailable, BusError) as refused:
            return str(refused) == WORDS
        return False  # that registry has not noticed yet that the store is lost

    return [await put_off() for _ in range(8)] == [True] * 8


async def test_after_the_store_is_lost_an_office_is_listed_once_all_its_members_are_back(
    nats_server: NatsServer,
) -> None:
    url = nats_server.url
    # none is given up before it is back, however busy this machine is
    async with registries(url, lease_s=60.0) as opened, member_process(url) as early, member_process(url) as late:
        await early.join("lab", "computer", "early")
        await early.join("den", "computer", "alone", early.claim("s2"))
        await early.join("lab", "agent", "alice", early.claim("s3"))
        revision = (await late.join("lab", "computer", "late")).revision
        for registry in opened:
            assert await registry.view.reached(revision, BOUND_S)
        await nats_server.restart_empty()
        await comes_back(early, "early")
        await eventually(partial(all_put_off, early, "alice", role="agent"))
        await early.join("den", "computer", "alone", early.claim("s2"))
        await early.join("lab", "agent", "alice", early.claim("s3"))
        # whichever registry is asked
        assert {str(await listed(early, "early")) for _ in range(8)} == {WORDS}
        await eventually(partial(all_put_off, late, "late"))
        assert await early.room("den", "computer", "alone") == {("computer", "alone")}
        for _ in range(8):
            assert (await early.registry.find(("lab", "agent", "alice"), "late", timeout=30)).member
        assert not (await early.registry.find(("lab", "agent", "alice"), "nobody", timeout=30)).member
        await comes_back(late, "late")
        await eventually(partial(all_list, early, "early", {"alice", "early", "late"}))


async def test_a_member_is_put_off_where_the_loss_is_noticed_right_after_it_was_looked_for(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = nats_server.url
    async with registries(url, lease_s=60.0, count=1) as [registry], member_process(url) as member:
        await member.join("lab", "agent", "alice")
        revision = (await member.join("lab", "computer", "pc", member.claim("s2"))).revision
        assert await registry.view.reached(revision, BOUND_S)
        await member.bus.jetstream().purge_stream("KV_members")  # which no view is told
        view, awaited = registry.view, registry.view.awaited

        def then_emptied(office: str) -> Set[str]:
            asyncio.get_running_loop().call_soon(view.reset, [])
            return awaited(office)

        monkeypatch.setattr(view, "awaited", then_emptied)
        assert (await member.registry.find(("lab", "agent", "alice"), "pc", timeout=30)).member
        with pytest.raises(Unavailable, match=WORDS):
            await member.registry.find(("lab", "agent", "alice"), "pc", timeout=30)


async def test_members_stay_listed_while_the_bucket_of_leases_is_made_anew(nats_server: NatsServer) -> None:
    url = nats_server.url
    async with registries(url, lease_s=60.0) as opened, member_process(url) as member:
        await member.join("lab", "computer", "pc")
        assert await member.renew() is False
        await member.bus.jetstream().delete_stream("KV_leases")

        async def has_a_lease_again() -> bool:
            try:
                await member.renew()
            except (Unavailable, BusError):
                return False
            return all(registry.leases.revision("open", member.process) is not None for registry in opened)

        await eventually(has_a_lease_again)
        assert await all_list(member, "pc", {"pc"})
        await member.join("lab", "computer", "new", member.claim("s2"))
        await eventually(partial(all_list, member, "pc", {"pc", "new"}))


async def test_an_office_waits_one_lease_for_a_member_that_died_with_the_store(nats_server: NatsServer) -> None:
    url = nats_server.url
    async with registries(url, lease_s=LEASE_S) as opened, member_process(url) as member:
        async with member_process(url) as dying:
            await member.join("lab", "computer", "lives")
            revision = (await dying.join("lab", "computer", "died")).revision
            for registry in opened:
                assert await registry.view.reached(revision, BOUND_S)
        loop = asyncio.get_running_loop()

        async def lists_itself() -> bool:
            return await listed(member, "lives") == {"lives"}

        lost = loop.time()
        await nats_server.restart_empty()
        await comes_back(member, "lives")
        await eventually(lists_itself)
        assert loop.time() - lost >= LEASE_S
        await eventually(partial(all_list, member, "lives", {"lives"}))
