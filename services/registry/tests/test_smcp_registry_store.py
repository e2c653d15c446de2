"""The buckets on a real nats-server: made once, compared and set, never overwritten."""

import asyncio
import time
from pathlib import Path

import pytest
from nats.js import api
from nats.js.errors import BadRequestError, BucketNotFoundError, KeyNotFoundError
from nats.js.kv import KeyValue

from smcp_bus.bus import OWN_LAG_S
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_bus.registry_contract import LeaseRenewal
from smcp_proto.errors import Unavailable
from smcp_registry.app import open_registry
from smcp_registry.leases import Leases
from smcp_registry.settings import RegistrySettings
from smcp_registry.store import ANSWER_S as STORE_S
from smcp_registry.store import (
    AT_ONCE,
    ATTEMPTS,
    HISTORY,
    NO_PEERS,
    Bucket,
    Conflict,
    Store,
    Stored,
    StoreUnusable,
    open_store,
)
from smcp_testing.guarded_nats import GuardedUrl
from smcp_testing.nats_cluster import NODES, open_cluster
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import BOUND_S, eventually, within


async def opened(bus: Bus, lease_s: float = 10, replicas: int = 1) -> Store:
    return await open_store(bus, bus.jetstream(), lease_s=lease_s, replicas=replicas)


async def test_registries_that_start_at_once_make_each_bucket_once(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus, open_bus(BusConfig(url=nats_url)) as other:
        await asyncio.gather(*(opened(each) for each in (bus, other) * 8))
        streams = {stream.config.name: stream.config for stream in await bus.jetstream().streams_info()}
        assert set(streams) == {"KV_members", "KV_leases", "KV_moving"}
        assert streams["KV_members"].max_msgs_per_subject == HISTORY == 64
        assert not streams["KV_members"].max_age
        assert streams["KV_leases"].max_age == 10
        assert streams["KV_leases"].subject_delete_marker_ttl


@pytest.mark.parametrize("absent", [1, 3])
async def test_a_bucket_that_another_registry_is_making_is_waited_for(
    nats_url: str, absent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a cluster, where another registry makes it at the same moment."""
    async with open_bus(BusConfig(url=nats_url)) as bus:
        await opened(bus)
        js, asked = bus.jetstream(), 0
        look = js.key_value

        async def key_value(bucket: str) -> KeyValue:
            nonlocal asked
            asked += 1
            if asked <= absent:
                raise BucketNotFoundError
            return await look(bucket)

        monkeypatch.setattr(js, "key_value", key_value)
        store = await open_store(bus, js, lease_s=10, replicas=1)
        assert await store.members.read("o.agent") == Stored(None, 0)
        asked, absent = 0, 100
        with pytest.raises(StoreUnusable, match="leases cannot be opened"):
            await open_store(bus, js, lease_s=10, replicas=1, start_s=0.3)


async def test_a_bucket_of_another_configuration_is_changed_and_keeps_its_records(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        js = bus.jetstream()
        older = await js.create_key_value(api.KeyValueConfig(bucket="members", history=1, ttl=60))
        await js.create_key_value(api.KeyValueConfig(bucket="leases", history=1, ttl=10))
        revision = await older.put("o.agent", b"1")
        for lease_s in (10, 2):
            store = await opened(bus, lease_s=lease_s)
            assert await store.members.read("o.agent") == Stored(b"1", revision)
            assert (await leases_of(store, lease_s).renew("c", "p", LeaseRenewal())).lease_s == lease_s
            members, leases = [(await js.stream_info(f"KV_{name}")).config for name in ("members", "leases")]
            assert (members.max_msgs_per_subject, members.max_age) == (64, 0)
            assert (leases.max_age, leases.subject_delete_marker_ttl) == (lease_s, lease_s)


async def test_a_registry_with_fewer_replicas_leaves_a_bucket_on_its_servers(tmp_path: Path) -> None:
    async with open_cluster(tmp_path) as (first, *_), open_bus(BusConfig(url=first.url)) as bus:
        for replicas in (NODES, 1):
            await opened(bus, replicas=replicas)
            assert (await bus.jetstream().stream_info("KV_members")).config.num_replicas == NODES


async def test_more_replicas_than_servers_are_refused(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        with pytest.raises(StoreUnusable, match=r"SMCP_KV_REPLICAS=3: .*replicas"):
            await opened(bus, replicas=3)


async def test_a_nats_server_without_jetstream_is_refused_and_says_what_to_do_and_the_log_waits_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = NatsServer(tmp_path / "plain", jetstream=False)
    await server.start()
    try:
        async with open_bus(BusConfig(url=server.url)) as bus:
            with pytest.raises(StoreUnusable, match=r"JetStream does not answer \(is it enabled,"):
                await open_store(bus, bus.jetstream(), lease_s=10, replicas=1, start_s=1.0)
    finally:
        await server.stop()
    (line,) = (each for each in caplog.messages if each.endswith("; retrying"))
    assert line.endswith("?): nobody takes the request; retrying")


async def test_a_write_succeeds_only_over_the_revision_that_was_read(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        members = (await opened(bus)).members
        assert await members.read("o.agent") == Stored(None, 0)
        first = await members.write("o.agent", b"1", last=0)
        with pytest.raises(Conflict):
            await members.write("o.agent", b"2", last=0)
        assert await members.read("o.agent") == Stored(b"1", first)
        second = await members.write("o.agent", b"2", last=first)
        assert second > first
        with pytest.raises(Conflict):
            await members.write("o.agent", b"3", last=first)


async def test_a_purge_keeps_newer_revisions(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        members = (await opened(bus)).members
        seen = await members.write("o.agent", b"1", last=0)
        newer = await members.write("o.agent", b"2", last=seen)
        await members.purge("o.agent", upto=seen)
        assert await members.read("o.agent") == Stored(b"2", newer)
        await members.purge("o.agent", upto=newer)
        assert await members.read("o.agent") == Stored(None, 0)
        assert await members.write("o.agent", b"3", last=0)


async def test_without_nats_the_store_is_unavailable_at_once_and_sends_nothing_later(nats_server: NatsServer) -> None:
    async with open_bus(BusConfig(url=nats_server.url)) as bus:
        members = (await opened(bus)).members
        await nats_server.kill()
        await eventually(lambda: not bus.connected)
        async with within(0.5):
            with pytest.raises(Unavailable) as unsent:
                await members.write("o.agent", b"1", last=0)
            assert unsent.value.details == {}
            with pytest.raises(Unavailable):
                await members.read("o.agent")
        await nats_server.start()
        await eventually(lambda: bus.connected)
        assert await members.read("o.agent") == Stored(None, 0)


@pytest.mark.rule("answers.rooms.admission.no-quorum")
async def test_a_store_that_does_not_answer_is_unavailable_within_its_bound(nats_server: NatsServer) -> None:
    async with open_bus(BusConfig(url=nats_server.url)) as bus:
        members = (await opened(bus)).members
        nats_server.pause()
        try:
            async with within(6):
                with pytest.raises(Unavailable) as unknown:
                    await members.write("o.agent", b"1", last=0)
                assert unknown.value.details == {"may_have_run": True}
                with pytest.raises(Unavailable) as unread:
                    await members.read("o.agent")
                assert unread.value.details == {}
        finally:
            nats_server.resume()


async def test_hundreds_of_requests_at_once_are_answered_also_by_a_store_that_takes_its_time(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        members = (await opened(bus)).members
        sent, most = 0, 0

        async def slow(get: KeyValue, key: str) -> KeyValue.Entry:
            nonlocal sent, most
            sent += 1
            most = max(most, sent)
            await asyncio.sleep(0.05)
            sent -= 1
            raise KeyNotFoundError

        monkeypatch.setattr(KeyValue, "get", slow)
        assert await asyncio.gather(*(members.read(f"o.{n}") for n in range(500))) == 500 * [Stored(None, 0)]
        assert most == AT_ONCE


async def test_requests_behind_one_without_an_answer_are_not_sent(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        members = (await opened(bus)).members
        sent: list[str] = []

        async def silent(get: KeyValue, key: str) -> KeyValue.Entry:
            sent.append(key)
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr("smcp_registry.store.ANSWER_S", 0.2)
        monkeypatch.setattr("smcp_registry.store.OWN_LAG_S", BOUND_S)  # the test may stand still
        monkeypatch.setattr(KeyValue, "get", silent)
        outcomes = await asyncio.gather(*(members.read(f"o.{n}") for n in range(500)), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {Unavailable}
        assert len(sent) == AT_ONCE


async def test_a_process_that_stands_still_does_not_take_the_store_for_silent(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        members = (await opened(bus)).members
        first = await members.write("o.agent", b"1", last=0)
        loop = asyncio.get_running_loop()

        def stand_still() -> None:
            time.sleep(STORE_S + 2 * OWN_LAG_S)

        loop.call_soon(stand_still)
        assert (await members.read("o.agent")).revision == first
        loop.call_soon(stand_still)
        with pytest.raises(Conflict):  # it was written, and is asked for once more
            await members.write("o.agent", b"2", last=first)
        assert (await members.read("o.agent")).value == b"2"


async def test_a_request_is_given_up_by_a_process_that_is_suspended_again_and_again(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        members = (await opened(bus)).members
        sent = 0

        async def silent(get: KeyValue, key: str) -> KeyValue.Entry:
            nonlocal sent
            sent += 1
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr("smcp_registry.store.ANSWER_S", 0.01)
        monkeypatch.setattr("smcp_registry.store.OWN_LAG_S", -BOUND_S)  # each time-out looks like a suspension
        monkeypatch.setattr(KeyValue, "get", silent)
        async with asyncio.timeout(BOUND_S):
            with pytest.raises(Unavailable):
                await members.read("o.agent")
        assert sent == ATTEMPTS


async def test_members_are_read_while_nats_server_reads_its_configuration_again(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(nats_url, GuardedUrl)
    monkeypatch.setattr("smcp_registry.store.ANSWER_S", BOUND_S)  # a busy machine must not look like a silent store
    async with open_bus(BusConfig(url=nats_url)) as bus:
        members = (await opened(bus)).members
        revision, ended = await members.write("o.agent", b"1", last=0), False
        reads = [0] * 16

        async def read(reader: int) -> None:
            while not ended:
                assert (await members.read("o.agent")).revision == revision
                reads[reader] += 1

        async def all_have_read(times: int) -> None:
            await eventually(lambda: min(reads) >= times)

        async with asyncio.TaskGroup() as reading:
            for reader in range(len(reads)):
                reading.create_task(read(reader))
            for times in range(1, 101):  # without repeats, a read in fifty had no responder
                await all_have_read(times)
                await nats_url.nats.allow()
            ended = True


async def test_a_mark_expires_after_its_own_time_and_not_after_a_lease(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        store = await opened(bus, lease_s=1)
        began = asyncio.get_running_loop().time()
        await store.moving.mark("o.agent", b"s", ttl_s=0.2)
        await store.moving.mark("o.computer.pc", b"s", ttl_s=2.5)
        await store.moving.mark("o.computer.stays", b"s", ttl_s=600)
        await eventually(lambda: _gone(store.moving, "o.agent"))
        assert (await store.moving.read("o.computer.stays")).value == b"s"
        await eventually(lambda: _gone(store.moving, "o.computer.pc"))
        assert asyncio.get_running_loop().time() - began > 2.5


async def _gone(bucket: Bucket, key: str) -> bool:
    return (await bucket.read(key)).value is None


async def test_a_registry_waits_for_the_nodes_of_a_cluster_that_is_starting(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        js, refusals = bus.jetstream(), 2
        add = js.add_stream

        async def add_stream(config: api.StreamConfig) -> api.StreamInfo:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise BadRequestError(
                    code=400, err_code=NO_PEERS, description="no suitable peers for placement, peer offline"
                )
            return await add(config)

        monkeypatch.setattr(js, "add_stream", add_stream)
        store = await open_store(bus, js, lease_s=10, replicas=1)
        assert await store.members.read("o.agent") == Stored(None, 0)
        refusals = 1_000_000
        with pytest.raises(StoreUnusable, match="leases cannot be opened with SMCP_KV_REPLICAS=1: no suitable peers"):
            await open_store(bus, js, lease_s=10, replicas=1, start_s=0.5)


@pytest.mark.parametrize("method", ["account_info", "add_stream", "stream_info"])
async def test_a_store_that_stays_without_an_answer_is_unusable_and_says_so(
    nats_server: NatsServer, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bus(BusConfig(url=nats_server.url)) as bus:
        js = bus.jetstream(timeout=0.3)
        ask = getattr(js, method)

        async def unanswered(*given: object) -> object:
            nats_server.pause()
            return await ask(*given)

        monkeypatch.setattr(js, method, unanswered)
        try:
            with pytest.raises(StoreUnusable, match=r"(JetStream does not answer|leases cannot be opened).*no answer"):
                await open_store(bus, js, lease_s=10, replicas=1, start_s=1)
        finally:
            nats_server.resume()


def leases_of(store: Store, lease_s: float) -> Leases:
    return Leases(store.leases, lease_s=lease_s)


async def test_a_lease_is_given_renewed_and_given_again_after_it_ran_out(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        leases = leases_of(await opened(bus, lease_s=1), 1)
        assert not (await leases.renew("c", "p", LeaseRenewal())).renewed

        async def lives() -> bool:  # a second may be over between any two of these
            state = await leases.renew("c", "p", LeaseRenewal(sockets=3))
            assert state.lease_s == 1
            return state.renewed and await leases.lives("c", "p")

        await eventually(lives)
        assert not await leases.lives("c", "another")

        async def ran_out() -> bool:
            return not await leases.lives("c", "p")

        await eventually(ran_out)
        # the server's marker stands there now: a create would fail
        assert not (await leases.renew("c", "p", LeaseRenewal())).renewed
        await eventually(lives)


async def test_concurrent_renewals_of_a_lease_all_succeed(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        leases = leases_of(await opened(bus), 10)
        states = await asyncio.gather(*(leases.renew("c", "p", LeaseRenewal()) for _ in range(3)))
        assert [state.renewed for state in states].count(False) == 1


ANSWER_S = 0.5
"""How long nats-py waits for an answer of JetStream here; its default is 5 s."""


@pytest.mark.parametrize("method", ["account_info", "add_stream", "stream_info", "add_consumer", "subscribe"])
async def test_a_registry_asks_again_when_nats_server_was_suspended_during_its_start(
    nats_server: NatsServer, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suspended server carries out the first request after it was given up: a stream is then there already."""
    async with open_bus(BusConfig(url=nats_server.url)) as bus:
        js = bus.jetstream(timeout=ANSWER_S)
        ask, asked = getattr(js, method), 0

        async def suspended_at_first(*given: object, **named: object) -> object:
            nonlocal asked
            asked += 1
            if asked > 1:
                return await ask(*given, **named)
            nats_server.pause()
            try:
                return await ask(*given, **named)
            finally:
                nats_server.resume()

        monkeypatch.setattr(js, method, suspended_at_first)
        monkeypatch.setattr(bus, "jetstream", lambda: js)
        async with open_registry(RegistrySettings(nats_url=nats_server.url), bus) as registry:
            assert registry.view.synced.is_set()
            assert registry.leases.synced.is_set()
        assert asked > 1
