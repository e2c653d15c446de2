"""What an installed `smcp-computer` is answered when it asks whether a tool may run reaches the audit trail."""

from pathlib import Path
from uuid import uuid4

from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import member
from tests.e2e.actors.operator_commands import Record, records, smcp
from tests.e2e.worlds.processes import open_processes
from tests.e2e.worlds.world import LAB

TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"


async def test_each_answer_of_the_user_is_recorded_with_its_call(tmp_path: Path) -> None:
    program = tmp_path / "confirm"
    program.write_text('#!/bin/sh\ngrep -q \'"tool": "echo"\'\n', encoding="utf-8")
    program.chmod(0o700)
    of_their_own = {
        "host-alpha": {"SMCP_CONFIRM": "ask", "SMCP_CONFIRM_COMMAND": str(program)},
        "host-beta": {"SMCP_CONFIRM": "deny"},
    }
    environment = {"SMCP_AUDIT": "on"}
    async with open_processes(tmp_path, environment=environment, of_their_own=of_their_own) as world:
        calls = {uuid4().hex: call for call in (("alpha", "echo"), ("alpha", "add"))}
        denied = uuid4().hex
        async with member(world.url(), "agent", LAB, "anna") as agent:
            refused = []
            for req_id, (computer, tool) in {**calls, denied: ("beta", "echo")}.items():
                params, parent = {"text": "x", "a": 1, "b": 2}, None if tool == "add" else TRACEPARENT
                answer = await agent.call(computer, tool, params, req_id=req_id, traceparent=parent)
                refused.append(bool(answer.get("isError")))
        assert refused == [False, True, True]

        async def recorded() -> list[Record]:
            found = await records(world, "--kind", "approval")
            assert len(found) == len(calls), found
            return found

        found = await eventually(recorded)
        said = {each["req_id"]: (each["computer"], each["tool"], each["outcome"]) for each in found}
        answers = ("yes", "no")
        assert said == {req_id: (*call, answer) for (req_id, call), answer in zip(calls.items(), answers, strict=True)}
        assert {(each["office"], each["name"], each["role"]) for each in found} == {(LAB, "anna", "agent")}
        added = next(req_id for req_id, (_, tool) in calls.items() if tool == "add")
        for each in await records(world):
            if each["req_id"] in calls:
                assert each["trace_id"] == (added if each["req_id"] == added else "a" * 32), each["kind"]
        assert {each["writer"].partition("/")[0] for each in found} <= {"registry-1", "registry-2"}
        assert {each["source"].partition("/")[0] for each in found} == {"host-alpha"}
        [call] = await records(world, "--req-id", denied)
        assert (call["kind"], call["outcome"]) == ("call", "tool_error")
        code, said_by_verify, errors = await smcp(world, "audit", "verify")
        assert (code, "none is missing or changed" in said_by_verify) == (0, True), errors
