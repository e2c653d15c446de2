"""What a registry records of Computers on NATS, whatever they say: their approvals, and their joins."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from smcp_bus.audit import NOT_WRITTEN, Event, Trail
from smcp_bus.audit_sinks import ApprovalSink, FileSink
from smcp_bus.limits import Rate
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import Claim, LeaseRenewal
from smcp_proto.errors import ErrorCode, Malformed
from smcp_registry.app import open_registry
from smcp_registry.settings import RegistrySettings
from smcp_testing.registry_world import asking, send
from smcp_testing.waiting import eventually

LOG = logging.getLogger("test.approvals")
SAID = {"outcome": "yes", "name": "anna", "tool": "delete", "req_id": "r1", "subject": "key-1"}


def trail(file: Path) -> Trail:
    return Trail(LOG, writer="registry-1/a", open_sink=lambda made: FileSink(file, made), required=True)


def records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


async def test_an_approval_is_recorded_with_the_office_and_the_computer_of_its_subject(
    nats_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "trail"
    caplog.set_level(logging.INFO, LOG.name)
    forged = {
        "kind": "call",
        "office": "attic",
        "computer": "other",
        "writer": "gateway-1/x",
        "seq": 7,
        "role": "x",
    } | {"by": "service", "trace_id": "a" * 32}
    async with (
        open_bus(BusConfig(url=nats_url)) as bus,
        open_registry(RegistrySettings(nats_url=nats_url), bus, trail=trail(file)),
        asking(nats_url) as computer,
    ):
        assert await send(computer, "lab", "computer", "pc", "approval", {**SAID, **forged}) is None
        assert await send(computer, "lab", "computer", "pc", "approval", SAID) is None  # as an older Computer tells it
        assert await send(computer, "lab", "agent", "anna", "approval", SAID) == ErrorCode.NOT_ALLOWED
        of_ids = {"args_sha256": "z"}, {"req_id": 7}, {"trace_id": "A" * 32}
        for wrong in ({"outcome": "yes\n"}, {"tool": "x" * 5000}, *of_ids):
            said = {**SAID, **wrong}
            assert await send(computer, "lab", "computer", "pc", "approval", said) == ErrorCode.MALFORMED
    record, of_an_older_one = records(file)
    assert record | SAID == record
    assert (record["kind"], record["office"], record["computer"]) == ("approval", "lab", "pc")
    assert (record["writer"], record["seq"], record["role"]) == ("registry-1/a", 1, "agent")
    assert (record["source"], record["by"]) == ("gateway-1/x 7", "service")
    assert record["trace_id"] == "a" * 32
    assert "source" not in of_an_older_one
    # the Computer has a line of the other one, under `smcp up` in this very log
    assert len([line for line in caplog.records if line.name == LOG.name]) == 1


@pytest.mark.parametrize("written", [True, False])
async def test_a_computer_learns_whether_its_approval_is_written(nats_url: str, tmp_path: Path, written: bool) -> None:
    file = tmp_path / "trail" if written else tmp_path
    async with (
        open_bus(BusConfig(url=nats_url)) as bus,
        open_registry(RegistrySettings(nats_url=nats_url), bus, trail=trail(file)),
        asking(nats_url) as own,
    ):
        registry = RegistryClient(own, credential="rack", process="p")
        sink = lambda made: ApprovalSink(registry, "lab", "pc", made)  # noqa: E731 -- as open_trail's
        told = Trail(LOG, writer="rack/p", open_sink=sink, required=True)
        event = Event("approval", "no", role="agent", name="anna", tool="t", req_id="r", arguments={"a": 1})
        answer = told.write(event)
        assert answer is not None
        assert await answer is written
        assert (told.problem is None) is written
        if not written:
            assert NOT_WRITTEN in str(told.problem)
        await told.close()
    if written:
        [record] = records(file)
        assert (record["outcome"], record["name"], len(record["args_sha256"])) == ("no", "anna", 64)


async def test_a_join_is_recorded_of_a_computer_that_claims_to_be_a_gateways(nats_url: str, tmp_path: Path) -> None:
    file = tmp_path / "trail"
    async with (
        open_bus(BusConfig(url=nats_url)) as bus,
        open_registry(RegistrySettings(nats_url=nats_url), bus, trail=trail(file)) as registry,
        asking(nats_url) as own,
    ):
        gateway = RegistryClient(own, credential="gateway-1", process="p")
        forger = RegistryClient(own, credential="gateway-1", process="p")
        await gateway.renew_lease(LeaseRenewal(accepting=True))
        await eventually(lambda: registry.leases.revision("gateway-1", "p"))
        for client, name in ((gateway, "client"), (forger, "forger")):
            claim = Claim(session=name, credential="gateway-1", process="p", incarnation="i", identity=name)
            body = b'{"office_id":"lab","name":"%b","role":"computer"}' % name.encode()
            await client.join(("lab", "computer", name), claim, body)
    assert [(each["kind"], each["name"]) for each in records(file)] == [("join", "forger")]


async def test_a_computer_cannot_fill_the_trail_with_refusals(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smcp_bus.audit.REFUSAL_RATE", Rate(1 / 3600, 3 * 3600))
    file = tmp_path / "trail"
    async with (
        open_bus(BusConfig(url=nats_url)) as bus,
        open_registry(RegistrySettings(nats_url=nats_url), bus, trail=trail(file)),
        asking(nats_url) as own,
    ):
        client = RegistryClient(own, credential="rack", process="p")
        claim = Claim(session="s", credential="rack", process="p", incarnation="i", identity="box")
        for _ in range(5):
            with pytest.raises(Malformed):
                await client.join(("lab", "computer", "box"), claim, b"{}")
    assert [each["kind"] for each in records(file)] == ["refusal"] * 3
