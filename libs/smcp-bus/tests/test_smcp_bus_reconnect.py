"""The bus while nats-server goes, is suspended, comes back, or reports an error."""

import asyncio
import time
from functools import partial
from urllib.parse import urlparse

import pytest
from nats.aio.client import Server

from smcp_bus.bus import (
    BusError,
    ConnectionLost,
    ConnectionState,
    Incoming,
    NoResponder,
    NotConnected,
    Reply,
    RequestTimedOut,
)
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_bus.nats.receiving import Serving
from smcp_testing.leaks import assert_no_tasks_beside
from smcp_testing.nats_process import NatsServer
from smcp_testing.tcp_proxy import Line, open_line
from smcp_testing.waiting import eventually, within

MIB = 1024 * 1024


async def echo(incoming: Incoming) -> Reply:
    return Reply(incoming.body)


@pytest.mark.rule("computer.reconnect.forever")
async def test_the_bus_reconnects_after_every_restart_of_the_server(nats_server: NatsServer) -> None:
    async with open_bus(BusConfig(url=nats_server.url)) as bus:
        await bus.serve("echo", echo)
        told: list[ConnectionState] = []
        bus.watch(told.append)
        for _ in range(4):
            await nats_server.kill()
            await eventually(lambda: not bus.connected)
            await nats_server.start()
            await eventually(lambda: bus.connected)
            assert (await bus.request("echo", b"x", timeout=30)).body == b"x"
        assert told == [ConnectionState.DOWN, ConnectionState.UP] * 4


async def test_pending_requests_fail_after_the_watchers_were_called(nats_server: NatsServer) -> None:
    async with open_bus(BusConfig(url=nats_server.url)) as bus:
        order: list[str] = []
        hold = asyncio.Event()

        async def handler(incoming: Incoming) -> Reply:
            await hold.wait()
            return Reply()

        async def ask() -> None:
            with pytest.raises(ConnectionLost):
                await bus.request("hold", b"", timeout=60)
            order.append("lost")

        await bus.serve("hold", handler)
        bus.watch(lambda what: order.append(what.value))
        asking = asyncio.create_task(ask())
        await eventually(lambda: bus.stats()["running"] == 1)
        await nats_server.restart()
        await asking
        await eventually(lambda: bus.connected)
        assert order == ["down", "lost", "up"] or order == ["down", "up", "lost"]
        hold.set()


async def test_watchers_see_up_before_any_message_of_the_new_connection(nats_server: NatsServer) -> None:
    async with open_bus(BusConfig(url=nats_server.url)) as early, open_bus(BusConfig(url=nats_server.url)) as late:
        order: list[str] = []

        async def hear(incoming: Incoming) -> None:
            order.append("notice")

        await late.listen("n", hear)
        late.watch(lambda what: order.append(what.value))
        for _ in range(5):
            order.clear()
            await nats_server.restart()

            async def told() -> bool:
                if early.connected:
                    await early.publish("n", b"")
                return "notice" in order

            await eventually(told)
            assert order[:3] == ["down", "up", "notice"]
            await early.flush()
            await late.flush()


async def test_unsent_messages_are_not_sent_after_a_reconnect(nats_server: NatsServer) -> None:
    async with open_bus(BusConfig(url=nats_server.url)) as bus:
        heard: list[bytes] = []

        async def hear(incoming: Incoming) -> None:
            heard.append(incoming.body[:5])

        await bus.listen("n", hear)
        nats_server.pause()
        with pytest.raises(TimeoutError):  # until the buffers of the kernel, of the transport and our own are full
            while True:
                await asyncio.wait_for(bus.publish("n", b"stale" + bytes(500_000)), 0.2)
        await nats_server.kill()
        await eventually(lambda: not bus.connected)
        await nats_server.start()
        await eventually(lambda: bus.connected)
        await bus.publish("n", b"fresh")
        await eventually(lambda: b"fresh" in heard)
        assert heard == [b"fresh"]


async def test_a_suspended_server_is_noticed_by_missing_pongs(nats_server: NatsServer) -> None:
    async with open_bus(BusConfig(url=nats_server.url, ping_interval=0.1)) as bus:
        await bus.serve("echo", echo)
        told: list[ConnectionState] = []
        bus.watch(told.append)
        nats_server.pause()
        # More than the kernel buffers: closing the old connection must not wait for it to be taken.
        asked = [asyncio.create_task(bus.request("echo", bytes(8 * MIB), timeout=60)) for _ in range(1)]
        asked += [asyncio.create_task(bus.request("echo", bytes(500_000), timeout=60)) for _ in range(30)]
        async with within(3):
            results = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(result) for result in results} <= {ConnectionLost, NotConnected}
        assert told == [ConnectionState.DOWN]
        nats_server.resume()
        await eventually(lambda: bus.connected)
        assert (await bus.request("echo", b"x", timeout=30)).body == b"x"


async def test_sending_to_a_server_that_stops_reading_waits_and_fails_in_time(nats_server: NatsServer) -> None:
    async with open_bus(BusConfig(url=nats_server.url)) as bus:
        nats_server.pause()
        asked = [asyncio.create_task(bus.request("a", bytes(500_000), timeout=0.5)) for _ in range(60)]
        await eventually(lambda: bus.stats()["pending"] > 0)
        async with within(2):
            await asyncio.wait(asked)
        assert {type(each.exception()) for each in asked} == {NotConnected, RequestTimedOut}
        assert bus.stats()["pending"] == 0
        assert bus.connected
        nats_server.resume()
        await bus.flush()


async def test_an_unanswered_flush_ends_in_time(nats_server: NatsServer) -> None:
    async with open_bus(BusConfig(url=nats_server.url)) as bus:
        await bus.serve("echo", echo)
        nats_server.pause()
        with pytest.raises(BusError):
            await bus.flush(timeout=0.1)
        cancelled = asyncio.create_task(bus.flush())
        await eventually(lambda: bus.connected)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        nats_server.resume()
        await bus.flush()
        assert (await bus.request("echo", b"x", timeout=30)).body == b"x"


async def test_an_error_line_of_the_server_causes_a_reconnect(nats_server: NatsServer) -> None:
    async with open_bus(BusConfig(url=nats_server.url)) as bus:
        await bus.serve("echo", echo)
        told: list[ConnectionState] = []
        bus.watch(told.append)
        # What nats-server takes for a broken client: it says -ERR and hangs up.
        bus._socket.send(b"NONSENSE\r\n")
        await eventually(lambda: told == [ConnectionState.DOWN, ConnectionState.UP])
        assert (await bus.request("echo", b"x", timeout=30)).body == b"x"


async def test_closing_while_the_server_is_away_ends_at_once(nats_server: NatsServer) -> None:
    async with within(3):
        async with open_bus(BusConfig(url=nats_server.url)) as bus:
            await bus.serve("echo", echo)
            await nats_server.kill()
            await eventually(lambda: not bus.connected)


async def test_closing_while_the_server_is_suspended_ends_in_time(nats_server: NatsServer) -> None:
    async with within(10):
        async with open_bus(BusConfig(url=nats_server.url, drain_timeout=0.2)) as bus:
            await bus.serve("echo", echo)
            nats_server.pause()
            await bus.publish("n", bytes(1_000_000))
    nats_server.resume()


async def test_closing_waits_for_handlers_and_answers_for_those_that_hang(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as asker:
        go = asyncio.Event()

        async def handler(incoming: Incoming) -> Reply:
            if incoming.body == b"short":
                await go.wait()
                return Reply(b"done")
            await asyncio.get_running_loop().create_future()
            raise AssertionError("it goes on for ever")

        async with open_bus(BusConfig(url=nats_url, drain_timeout=0.3)) as bus:
            await bus.serve("a", handler)
            short = asyncio.create_task(asker.request("a", b"short", timeout=20))
            endless = asyncio.create_task(asker.request("a", b"endless", timeout=20))
            await eventually(lambda: bus.stats()["running"] == 2)
            asyncio.get_running_loop().call_soon(go.set)  # once the closing has begun
        assert (await short).body == b"done"
        assert (await endless).headers["Smcp-Error"] == "503"


async def test_closing_fails_pending_requests(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as other:
        waits = asyncio.Event()

        async def handler(incoming: Incoming) -> Reply:
            waits.set()
            await asyncio.get_running_loop().create_future()
            raise AssertionError("it goes on for ever")

        await other.serve("a", handler)
        async with open_bus(BusConfig(url=nats_url)) as bus:
            asking = asyncio.create_task(bus.request("a", b"", timeout=60))
            await waits.wait()
        with pytest.raises(ConnectionLost):
            await asking
        await other._received[next(iter(other._received))].abandon()


@pytest.mark.parametrize(("messages", "size"), [(10, 1), (1000, 100_000)])
async def test_a_slow_consumer_is_reported_to_the_watchers(nats_url: str, messages: int, size: int) -> None:
    config = BusConfig(url=nats_url, backlog_messages=messages, backlog_bytes=200_000)
    async with open_bus(config) as bus:
        go = asyncio.Event()
        told: list[ConnectionState] = []
        handled = 0

        async def hear(incoming: Incoming) -> None:
            nonlocal handled
            await go.wait()
            handled += 1

        bus.watch(told.append)
        await bus.listen("n", hear)
        # At least two are dropped, also where the first one is in hand before the others come: one more is kept then.
        for _ in range(14):
            await bus.publish("n", bytes(size))
        await bus.flush()
        await eventually(lambda: told)
        kept = bus.stats()["waiting"] + 1
        assert kept <= 11
        go.set()
        await eventually(lambda: handled == kept)
        assert set(told) == {ConnectionState.SLOW}


async def test_each_overflow_of_a_subscription_is_logged_once(nats_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with open_bus(BusConfig(url=nats_url, backlog_messages=1)) as bus:
        go = asyncio.Event()
        told: list[ConnectionState] = []

        async def hear(_: Incoming) -> None:
            await go.wait()

        bus.watch(told.append)
        await bus.listen("n", hear)
        for overflow in (1, 2):
            go.clear()
            for _ in range(5):
                await bus.publish("n", b"")
            await eventually(lambda: len(told) == overflow)  # noqa: B023 -- awaited here
            go.set()
            await eventually(lambda: bus.stats()["waiting"] == bus.stats()["running"] == 0)
        logged = [record for record in caplog.records if "messages on n are dropped" in record.getMessage()]
        assert len(logged) == 2


@pytest.mark.parametrize("subject", ["smcp.v1.{}.server.agent.anna.{}", "smcp.hosts.v1.{}.{}.lease"])
async def test_offices_take_turns_where_requests_wait_and_the_one_with_the_most_loses_what_is_too_much(
    nats_url: str, subject: str
) -> None:
    async with (
        open_bus(BusConfig(url=nats_url, backlog_messages=100)) as bus,
        open_bus(BusConfig(url=nats_url)) as peer,
    ):
        go = asyncio.Event()
        handled: list[str] = []

        async def answer(incoming: Incoming) -> Reply:
            await go.wait()
            handled.append(incoming.subject)
            return Reply(b"")

        await bus.serve(subject.format("*", "*"), answer, limit=1)
        flood = subject.format("flood", "x")
        others = [subject.format(office, verb) for office in "ab" for verb in ("join", "leave")]
        for sent in (*[flood] * 300, *others):
            peer.send(sent, "_INBOX.nobody", b"", b"")
        await peer.flush()
        await bus.flush()  # it has all that came to nats-server before
        assert bus.stats()["waiting"] == 100
        go.set()
        await eventually(lambda: len(handled) == 101)
        assert [each for each in handled[:8] if each != flood] == [others[at] for at in (0, 2, 1, 3)]
        assert handled.count(flood) == 97


async def test_a_flood_costs_little_where_many_offices_wait_and_the_request_that_waits_longest_is_kept(
    nats_url: str,
) -> None:
    async with open_bus(BusConfig(url=nats_url, backlog_messages=10_000)) as bus:
        go = asyncio.Event()
        handled: list[str] = []

        async def answer(incoming: Incoming) -> Reply:
            await go.wait()
            handled.append(incoming.subject)
            return Reply(b"")

        serving = await bus.serve("smcp.v1.*.server.*.*.*", answer, limit=1)
        assert isinstance(serving, Serving)

        def arrives(office: str) -> None:
            serving.receive(b"smcp.v1.%b.server.computer.pc.join" % office.encode(), b"_INBOX.nobody", b"", b"")

        began = time.thread_time()
        for number in range(12_000):
            arrives(f"office-{number}")
        for _ in range(3000):
            arrives("flood")
        arrives("office-1")
        assert time.thread_time() - began < 1, "each that is dropped took 1 ms"
        assert serving.waiting == 10_000
        go.set()
        await eventually(lambda: len(handled) == 10_001)
        assert [subject.split(".")[2] for subject in handled[:10_000]] == [f"office-{at}" for at in range(10_000)]


async def test_subjects_with_white_space_and_headers_with_line_breaks_are_refused(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        for subject in ("", "a b", "a\r\nPUB b 0\r\n", "a" * 4096):
            with pytest.raises(ValueError, match="subject"):
                await bus.request(subject, b"", timeout=1)
            with pytest.raises(ValueError, match="subject"):
                await bus.publish(subject, b"")
            with pytest.raises(ValueError, match="subject"):
                await bus.serve(subject, echo)
        with pytest.raises(ValueError, match="line break"):
            await bus.request("a", b"", timeout=1, headers={"a": "b\r\nc: d"})
        assert bus.connected


async def _served(bus: Bus, subject: str) -> bool:
    try:
        await bus.request(subject, b"", timeout=30)
    except NoResponder:
        return False
    return True


async def test_the_lost_server_is_tried_last_of_several(
    nats_server: NatsServer,
) -> None:
    urls = (nats_server.url, "nats://127.0.0.1:1", "nats://127.0.0.1:2")
    async with open_bus(BusConfig(url=",".join(urls))) as bus:
        client = bus
        servers = [Server(uri=urlparse(url)) for url in urls]
        broke = servers[0].uri.netloc
        for _ in range(3):
            await nats_server.kill()
            await eventually(lambda: not bus.connected)
            client._tried = {broke}  # what it has tried by itself meanwhile
            chosen = [client.choose_server(servers, {})[0] for _ in servers]
            assert sorted(each.uri.netloc for each in chosen[:2] if each) == ["127.0.0.1:1", "127.0.0.1:2"]
            await nats_server.start()
            await eventually(lambda: bus.connected)


async def test_a_silently_closed_socket_counts_as_a_broken_connection(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop's raises then; the services run on it."""

    def write(_: bytes) -> None:
        raise RuntimeError("unable to perform operation: the handler is closed")

    async with open_bus(BusConfig(url=nats_server.url)) as bus:
        await bus.serve("echo", echo)
        line = bus._socket._line
        assert line is not None
        with monkeypatch.context() as closed:
            closed.setattr(line.transport, "write", write)
            with pytest.raises(ConnectionLost):
                await bus.request("echo", b"x", timeout=60)
            assert not bus.connected
        await nats_server.restart()
        await eventually(lambda: bus.connected)
        assert (await bus.request("echo", b"x", timeout=60)).body == b"x"


async def test_a_drained_subscription_is_not_restored_by_a_reconnect(nats_server: NatsServer) -> None:
    async with open_bus(BusConfig(url=nats_server.url)) as bus:
        gone, stays = await bus.serve("gone", echo), await bus.serve("stays", echo)
        while_away = await bus.serve("away", echo)
        await gone.drain()
        await nats_server.kill()
        await eventually(lambda: not bus.connected)
        await while_away.drain()
        await nats_server.start()
        await eventually(lambda: bus.connected)
        assert [await _served(bus, each) for each in ("gone", "away", "stays")] == [False, False, True]
        await stays.drain()


async def test_a_bus_that_is_closed_while_it_connects_again_leaves_nothing_running(nats_server: NatsServer) -> None:
    async with open_line(nats_server.port) as line:
        before = asyncio.all_tasks()
        for steps in range(0, 60, 3):  # closed at another step of connecting each time
            async with open_bus(BusConfig(url=f"nats://{urlparse(line.url).netloc}", drain_timeout=0)):
                carried = len(line.carried)
                line.cut()
                await eventually(partial(_more, line, carried))
                for _ in range(steps):
                    await asyncio.sleep(0)
        await assert_no_tasks_beside(before)


def _more(line: Line, than: int) -> bool:
    return len(line.carried) > than
