"""The audit trail of a process: its records, their chain, and what becomes of those that are not taken."""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import pytest

from smcp_bus import subjects
from smcp_bus.audit import FIELDS, Batch, Event, Sink, Trail, sha256
from smcp_bus.audit_sinks import MESSAGE_ID, FileSink, StreamSink
from smcp_bus.limits import Rate
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_proto.errors import Unavailable
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually

LOG = logging.getLogger("test.audit")


class Kept(Sink):
    """A sink that remembers, and answers when it is told to. `round_ends` is what sends, where it gathers."""

    def __init__(self, *, gathers: bool) -> None:
        self.gathers = gathers
        self.sent: list[tuple[int, str, bytes]] = []

    def later(self, leave: Callable[[], None]) -> None:
        self.round_ends = leave
        if not self.gathers:
            leave()

    def send(self, batch: Batch) -> None:
        self.sent.append((batch.number, batch.subject, batch.body))

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(record) for _, _, record in self.sent]


def trail(*, required: bool = False, content: bool = False, gathers: bool = False) -> tuple[Trail, Kept]:
    sink = Kept(gathers=gathers)
    return Trail(LOG, writer="gateway-1/a", open_sink=lambda _: sink, required=required, content=content), sink


async def test_each_record_holds_the_hash_of_the_one_before_it() -> None:
    written, sink = trail()
    for outcome in ("ok", "tool_error", "timeout"):
        written.write(Event("call", outcome, office="lab"))
    assert [record["seq"] for record in sink.records()] == [1, 2, 3]
    assert sink.records()[0]["prev"] == ""
    assert [record["prev"] for record in sink.records()[1:]] == [sha256(record) for _, _, record in sink.sent[:2]]


async def test_a_record_has_the_fixed_fields_also_where_they_are_not_known() -> None:
    written, sink = trail()
    written.write(Event("refusal", "401", address="192.0.2.1"))
    [record] = sink.records()
    assert set(FIELDS) <= record.keys()
    assert record["subject"] is None
    assert record["address"] == "192.0.2.1"
    assert "trace_id" not in record
    assert sink.sent[0][1] == "smcp.v1.=.audit.refusal"


async def test_arguments_are_recorded_as_a_hash_that_does_not_depend_on_their_order() -> None:
    written, sink = trail()
    written.write(Event("call", "ok", arguments={"b": 1, "a": {"d": "geheim", "c": 2**70}}))
    written.write(Event("call", "ok", arguments={"a": {"c": 2**70, "d": "geheim"}, "b": 1}))
    first, second = sink.records()
    assert first["args_sha256"] == second["args_sha256"]
    assert len(first["args_sha256"]) == 64
    assert b"geheim" not in sink.sent[0][2]


async def test_arguments_that_are_asked_for_are_without_secrets() -> None:
    written, sink = trail(content=True)
    said = {"user": "eve", "password": "hunter2", "deep": [{"api_key": "k1"}], "note": "my key is smcp_1_abcdef"}
    said |= {"pwd": "p1234", "private_key": "PEM", "text": "run it with password=hunter3 and sk-abcdefghijklmnop0"}
    written.write(Event("call", "ok", arguments=said, result=b'{"token":"t0p","content":[]}'))
    [record] = sink.records()
    assert record["arguments"]["user"] == "eve"
    assert record["arguments"]["text"] == "run it with password=<redacted> and <redacted>"
    assert record["result"]["content"] == []
    for secret in (b"hunter", b"k1", b"smcp_1_abcdef", b"t0p", b"p1234", b"PEM", b"sk-abc"):
        assert secret not in sink.sent[0][2]


async def test_what_a_client_says_is_cut_and_printable(caplog: pytest.LogCaptureFixture) -> None:
    written, sink = trail()
    nasty = "x\n\x1b[31m\u202e" + "y" * 10_000
    with caplog.at_level(logging.INFO, logger=LOG.name):
        written.write(Event("refusal", "400", office=nasty, name=nasty, tool=nasty, req_id=nasty, event=nasty))
    [record] = sink.records()
    for name in ("office", "name", "tool", "req_id", "event"):
        assert len(record[name].encode()) <= (512 if name in ("office", "name") else 256)
        assert record[name].isprintable()
    assert len(sink.sent[0][1]) < 2048
    assert " " not in sink.sent[0][1]
    [line] = caplog.records
    assert line.__dict__["tool"].isprintable()


async def test_the_line_of_the_log_has_no_arguments_and_says_calls_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    written, _ = trail()
    with caplog.at_level(logging.INFO, logger=LOG.name):
        written.write(Event("call", "ok", office="lab", req_id="r1", arguments={"a": "geheim"}))
        written.write(Event("join", "ok", office="lab", role="agent", name="eve", req_id="r2", trace_id=7))
    with caplog.at_level(logging.DEBUG, logger=LOG.name):
        written.write(Event("call", "ok", office="lab", req_id="r3", arguments={"a": "geheim"}))
    assert [(line.message, line.__dict__["req_id"]) for line in caplog.records] == [("join", "r2"), ("call", "r3")]
    assert caplog.records[0].__dict__["trace_id"] == f"{7:032x}"
    assert not any("geheim" in str(line.__dict__) for line in caplog.records)


async def test_the_line_of_the_log_is_written_at_once_where_the_record_leaves_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger=LOG.name)
    written, sink = trail(gathers=True)
    written.write(Event("join", "ok", office="lab"))
    assert (len(caplog.records), sink.sent) == (1, [])
    sink.round_ends()
    assert (len(caplog.records), len(sink.sent)) == (1, 1)


async def test_the_line_of_the_log_says_refused_of_a_refusal_alone(caplog: pytest.LogCaptureFixture) -> None:
    written, _ = trail()
    with caplog.at_level(logging.INFO, logger=LOG.name):
        written.write(Event("refusal", "403", event="server:join_office"))
        written.write(Event("key", "added", event="a1b2"))
    refusal, key = (line.__dict__ for line in caplog.records)
    assert (refusal["refused"], key["detail"]) == ("server:join_office", "a1b2")
    assert "detail" not in refusal
    assert "refused" not in key


async def test_texts_are_cut_at_bytes_and_the_longest_legal_names_are_whole() -> None:
    written, sink = trail()
    written.write(Event("call", "ok", office="\U0001f600" * 128, computer="\U0001f600" * 128, tool="\U0001f600" * 128))
    [record] = sink.records()
    assert record["office"] == record["computer"] == "\U0001f600" * 128
    assert record["tool"] == "\U0001f600" * 63 + "…"


async def test_refusals_of_one_sender_fill_neither_the_trail_nor_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    written, sink = trail()

    def refused(count: int, office: str, subject: str | None = None, by: str | None = None) -> None:
        for number in range(count):
            said = f"office {number}"  # what a request says gives it no bucket of its own
            written.write_refusal(Event("refusal", "429", office=said, subject=subject, by=by, why="too many"), office)

    with caplog.at_level(logging.INFO, logger=LOG.name):
        refused(300, "lab", "eve")
        assert len(sink.sent) == len(caplog.records) == 250
        refused(1, "lab", "anna")
        refused(1, "home", "eve")
        assert [record["why"] for record in sink.records()[250:]] == ["too many"] * 2
        refused(300, "lab", "any user", by="mcp")
        refused(300, "lab", "another user", by="mcp")
        assert len(sink.sent) == 502
        now += 6
        refused(2, "lab", "eve")
        assert [record["why"] for record in sink.records()[502:]] == [
            "50 refusals before it are not recorded; too many"
        ]
    await written.close(0)
    missing = [record["why"].partition(" ")[0] for record in sink.records()[503:]]
    assert missing == ["349", "too"], "what is missing is said at the end"


async def test_how_many_refusals_are_missing_is_said_as_soon_as_one_may_be_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("smcp_bus.audit.REFUSAL_RATE", Rate(10, 0.1))
    monkeypatch.setattr("smcp_bus.audit.ANSWER_S", 0.2)
    written, sink = trail()
    for _ in range(10):
        written.write_refusal(Event("refusal", "429", why="too many"), "lab")
    running = asyncio.create_task(written.run())
    await eventually(lambda: len(sink.sent) == 2)
    running.cancel()
    assert sink.records()[1]["why"] == "8 refusals before it are not recorded; too many"


async def test_a_record_that_is_not_taken_is_counted_once_and_kept() -> None:
    written, sink = trail()
    written.write(Event("call", "ok"))
    written.refused(1, "full")
    written.refused(1, "full")
    assert (written.failures, written.waiting, written.problem) == (1, 1, "full")
    written.check()  # calls go on
    written.send_again()
    assert [number for number, _, _ in sink.sent] == [1, 1]
    assert sink.sent[0][2] == sink.sent[1][2]
    written.taken(1)
    assert (written.written, written.waiting, written.problem) == (1, 0, None)


async def test_required_says_whether_it_is_written_and_refuses_until_it_is() -> None:
    written, _ = trail(required=True)
    first, second = (written.write(Event("call", "ok")) for _ in range(2))
    assert first is not None
    assert second is not None
    written.taken(1)
    assert await first
    written.refused(2, "maximum bytes exceeded")
    assert not await second
    assert written.problem == "maximum bytes exceeded"
    with pytest.raises(Unavailable) as refused:
        written.check()
    assert "maximum" not in refused.value.message, "what the sink says is for operators"
    written.taken(2)
    written.check()


async def test_what_becomes_of_a_message_becomes_of_each_record_in_it() -> None:
    written, sink = trail(required=True, gathers=True)
    answers = [written.write(Event("call", "ok")) for _ in range(3)]
    sink.round_ends()
    assert [number for number, _, _ in sink.sent] == [1]
    assert written.waiting == 3
    written.refused(1, "full")
    assert [await answer for answer in answers if answer is not None] == [False] * 3
    assert (written.failures, written.waiting) == (3, 3)
    written.send_again()
    assert len(sink.sent[1][2].splitlines()) == 3
    written.taken(1)
    assert (written.written, written.waiting, written.problem) == (3, 0, None)


async def test_what_waits_is_sent_again_in_portions_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_bus.audit.SENT_AGAIN", 4)
    written, sink = trail(gathers=True)
    for _ in range(4):
        for _ in range(3):
            written.write(Event("call", "ok"))
        sink.round_ends()
    sent = list(sink.sent)
    written.send_again()
    again = sink.sent[len(sent) :]
    assert again[0][0] == 1
    assert 4 <= sum(len(records.splitlines()) for _, _, records in again) < 8, "the last message is whole"


async def test_the_next_record_says_how_many_were_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_bus.audit.MOST_WAITING", 2)
    written, sink = trail()
    for _ in range(5):
        written.write(Event("call", "ok"))
    written.taken(1)
    written.write(Event("call", "ok"))
    assert written.lost == 3
    assert [record.get("lost") for record in sink.records()] == [None, None, 3]
    assert [record["seq"] for record in sink.records()] == [1, 2, 3]


async def test_required_says_that_a_record_without_room_is_lost_also_to_a_caller_that_waits_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("smcp_bus.audit.MOST_WAITING", 0)
    written, _ = trail(required=True)
    written.write(Event("approval", "withdrawn"))  # what it returns is not awaited
    lost = written.write(Event("call", "ok"))
    assert lost is not None
    assert not await lost
    assert (written.lost, written.failures) == (2, 2)


async def test_bytes_that_wait_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_bus.audit.MOST_WAITING_BYTES", 1)
    written, sink = trail()
    written.write(Event("call", "ok"))
    written.write(Event("call", "ok"))
    assert (len(sink.sent), written.lost) == (1, 1)
    written.taken(1)
    written.write(Event("call", "ok"))
    assert (len(sink.sent), written.lost) == (2, 1)


async def test_without_answers_all_records_are_refused_and_the_oldest_is_sent_again_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("smcp_bus.audit.ANSWER_S", 0.1)
    monkeypatch.setattr("smcp_bus.audit.SENT_AGAIN", 3)
    written, sink = trail(required=True)
    waits = [written.write(Event("call", "ok")) for _ in range(8)]
    running = asyncio.create_task(written.run())
    async with asyncio.timeout(10):
        assert [await wait for wait in waits if wait is not None] == [False] * 8
    running.cancel()
    assert sink.sent[8][0] == 1


async def test_what_has_failed_is_sent_once_more_at_the_end_and_waited_for() -> None:
    written, sink = trail()
    written.write(Event("call", "ok"))
    written.refused(1, "full")
    closing = asyncio.create_task(written.close(30))
    async with asyncio.timeout(10):
        await eventually(lambda: len(sink.sent) == 2)
        assert not closing.done()
        written.taken(1)
        await closing


async def test_content_that_is_too_long_is_not_searched_for_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    written, sink = trail(content=True)
    monkeypatch.setattr("smcp_bus.audit.redacted", None)
    written.write(Event("call", "ok", arguments={"a": "x" * 70_000}, result=b'"%b"' % (b"y" * 70_000)))
    [record] = sink.records()
    assert (record["arguments"], record["result"]) == ("<too long>", "<too long>")
    assert record["args_sha256"]


async def test_a_file_is_rotated_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written = Trail(LOG, writer="a", open_sink=lambda made: FileSink(path, made, max_bytes=2000, kept=50))
    other = Trail(LOG, writer="b", open_sink=lambda made: FileSink(path, made, max_bytes=2000, kept=50))
    for _ in range(20):
        written.write(Event("call", "ok", office="lab"))
        other.write(Event("join", "ok", office="lab"))
    files = list(tmp_path.iterdir())
    assert len(files) > 3
    records = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert sorted((each["writer"], each["seq"]) for each in records) == [(w, n) for w in "ab" for n in range(1, 21)]
    assert (written.written, written.failures) == (20, 0)


async def test_a_file_that_cannot_be_written_is_a_failure_and_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "no" / "audit.jsonl"
    written = Trail(LOG, writer="a", open_sink=lambda made: FileSink(path, made))
    written.write(Event("call", "ok"))
    assert written.failures == 1
    assert "audit.jsonl" in (written.problem or "")
    path.parent.mkdir()
    written.send_again()
    assert not written.problem
    assert len(path.read_text().splitlines()) == 1


async def test_a_record_after_one_that_was_cut_begins_a_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"kind":"call","at')
    Trail(LOG, writer="a", open_sink=lambda made: FileSink(path, made)).write(Event("call", "ok"))
    assert json.loads(path.read_text().splitlines()[1])["seq"] == 1


async def test_records_of_one_round_of_the_loop_are_one_message_also_when_it_is_sent_again(nats_url: str) -> None:
    client = await nats.connect(nats_url)
    subscription = await client.subscribe(subjects.AUDIT_ALL)
    await client.flush()
    try:
        async with open_bus(BusConfig(url=nats_url)) as bus:
            written = Trail(LOG, writer="gateway-1/a", open_sink=lambda made: StreamSink(bus, made))
            for office in ("lab", "lab", "attic"):
                written.write(Event("call", "ok", office=office))
            first = await subscription.next_msg(timeout=10)
            written.write(Event("call", "ok", office="lab"))
            assert (await subscription.next_msg(timeout=10)).subject == subjects.audit("lab", "call")
            written.send_again()
            again = await subscription.next_msg(timeout=10)
            assert (again.subject, again.data, again.headers) == (first.subject, first.data, first.headers)
            assert first.subject == subjects.AUDIT_OF_SEVERAL
            assert [json.loads(line)["seq"] for line in first.data.splitlines()] == [1, 2, 3]
            await client.jetstream().add_stream(name="AUDIT", subjects=[subjects.AUDIT_ALL])
            written.send_again()
            await written.close(10)
            assert (written.waiting, written.written) == (0, 4)
    finally:
        await client.close()


async def test_records_that_are_too_long_for_one_message_are_several(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        await bus.jetstream().add_stream(name="AUDIT", subjects=[subjects.AUDIT_ALL])
        written = Trail(LOG, writer="a", open_sink=lambda made: StreamSink(bus, made), content=True)
        for _ in range(20):
            written.write(Event("call", "ok", office="lab", arguments={"a": "x" * 60_000}))
        await written.close(10)
        assert (written.waiting, written.written) == (0, 20)
        assert (await bus.jetstream().stream_info("AUDIT")).state.messages == 10


async def test_a_server_with_small_messages_takes_all_records_of_a_round_of_the_loop(tmp_path: Path) -> None:
    config = tmp_path / "small.conf"
    config.write_text("max_payload: 16384\n")
    server = NatsServer(tmp_path / "nats", config=config)
    await server.start()
    try:
        async with open_bus(BusConfig(url=server.url)) as bus:
            await bus.jetstream().add_stream(name="AUDIT", subjects=[subjects.AUDIT_ALL])
            written = Trail(LOG, writer="a", open_sink=lambda made: StreamSink(bus, made))
            for _ in range(100):
                written.write(Event("call", "ok", office="lab"))
            await written.close(10)
            assert (written.waiting, written.written, written.failures) == (0, 100, 0)
    finally:
        await server.stop()


async def test_records_leave_before_the_answers_of_the_same_round_of_the_loop(nats_url: str) -> None:
    client = await nats.connect(nats_url)
    subscription = await client.subscribe(">")
    await client.flush()
    try:
        async with open_bus(BusConfig(url=nats_url)) as bus:
            written = Trail(LOG, writer="registry-1/a", open_sink=lambda made: StreamSink(bus, made))
            bus.send("other", "", b"", b"")
            written.write(Event("join", "ok", office="lab"))
            bus.send("answer", "", b"", b"")
            came = [(await subscription.next_msg(timeout=10)).subject for _ in range(3)]
            assert came.index("answer") > came.index(subjects.audit("lab", "join"))
            await written.close(0)
    finally:
        await client.close()


async def test_the_id_of_a_message_does_not_follow_from_what_others_can_see(nats_url: str) -> None:
    client = await nats.connect(nats_url)
    subscription = await client.subscribe(subjects.AUDIT_ALL)
    await client.flush()
    try:
        async with open_bus(BusConfig(url=nats_url)) as bus:
            written = Trail(LOG, writer="gateway-1/a", open_sink=lambda made: StreamSink(bus, made))
            written.write(Event("call", "ok", office="lab"))
            message = await subscription.next_msg(timeout=10)
            await written.close()
            unseen, _, number = (message.headers or {})[MESSAGE_ID].rpartition("-")
            assert (len(unseen), number) == (32, "1")
            assert unseen not in message.reply
            assert bus.process not in unseen
    finally:
        await client.close()
