"""Events of the published package, also those that the pages of the protocol do not have, through two gateways."""

import base64
from pathlib import Path
from typing import Any

import pytest

from bench import published_env
from smcp_testing.gateway_world import connected
from smcp_testing.waiting import eventually
from tests.interop.published import KINDS, SELDOM, TOOLS, Kind
from tests.interop.published_pair import OFFICE, couple

pytestmark = pytest.mark.timeout(published_env.INSTALL_S + 120)

LISTED = [f"tools__{tool}" for tool in TOOLS]
BOX: dict[str, Any] = {"computer": "box"}
SKILLS = Path(".a2c/skills/user")


def write_skill(home: Path, name: str, text: str) -> None:
    folder = home / SKILLS / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: how to {name}\n---\n{text}")


@pytest.mark.rule("answers.unknown.client.{get_resources,get_skills,get_skill,get_blob,put_blob}")
@pytest.mark.parametrize("kind", SELDOM)
async def test_resources_skills_and_blobs_pass_in_both_directions(nats_url: str, tmp_path: Path, kind: Kind) -> None:
    write_skill(tmp_path, "wave", "Lift a hand.")
    write_skill(tmp_path, "tell", "word " * 20_000)
    async with couple(nats_url, tmp_path, kind) as both:
        anna = both.anna
        server = next(iter((await anna.run("get_config_from_computer", "box"))["servers"]))
        resources = await anna.run("get_resources", "box", server)
        assert {each["uri"] for each in resources["resources"]} == {"note://one", "window://tools.example/main"}
        assert (await anna.run("get_resources", "box", "nobody"))["code"] == 4014
        assert {each["name"] for each in (await anna.run("get_skills", "box"))["skills"]} == {"wave", "tell"}
        assert (await anna.run("get_skill", "box", "wave"))["body"].strip() == "Lift a hand."
        assert (await anna.run("get_skill", "box", "tell"))["body"].strip() == ("word " * 20_000).strip()  # as a blob
        assert (await anna.run("get_skill", "box", "nobody"))["code"] == 4014
        assert (await anna.run("get_skill", "box", "Not A Name"))["code"] == 4016
        refused = await anna.run("get_blob", "box", "no-handle")
        assert (refused["code"], refused["reason"]) == (4018, "invalid_handle")
        drawn = await anna.call("box", "tools__picture", size=700_000)
        assert base64.b64decode(drawn["content"][0]["data"]) == bytes(700_000)
        text = "深 " * 200_000  # in several pieces
        put = await anna.ask("put_blob", computer="box", text=text, name="notes.txt")
        assert put["total_size"] == len(text.encode())
        landed = Path(put["landing_path"])
        assert landed.parent == tmp_path / "blobs"
        assert landed.read_text() == text
        for method in ("get_skills", "get_resources"):
            gone = await anna.run(method, "nobody", *([] if method == "get_skills" else [server]))
            assert (gone["raised"], gone["code"]) == ("SMCPProtocolError", 404)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_notification_reaches_all_members_and_makes_the_agent_ask_again(
    nats_url: str, tmp_path: Path, kind: Kind
) -> None:
    (tmp_path / SKILLS).mkdir(parents=True)
    async with couple(nats_url, tmp_path, kind) as both, connected(both.world.gateways[1].url) as plain:
        anna, box = both.anna, both.box

        async def told(what: str, payload: Any) -> None:
            await eventually(lambda: payload in anna.heard(what), message=f"{what} {payload}")
            anna.told.clear()

        await plain.join("computer", "plain", OFFICE)
        await told("enter", {"office_id": OFFICE, "computer": "plain"})
        await box.do("switch another")
        await told("leave", {"office_id": OFFICE, **BOX})
        await box.do(f"switch {OFFICE}")
        await told("tools", BOX | {"tools": LISTED})
        await box.do("update config")
        await told("tools", BOX | {"tools": LISTED})
        await box.do("update tool_list")
        await told("tools", BOX | {"tools": LISTED})
        await box.do("update desktop")
        await told("desktop", BOX | {"desktops": ["window://tools.example/main\n\nwhat the window shows"]})
        await box.do("update finder")
        await told("notify:update_finder", BOX)
        await box.do("update skills")
        await told("skills", BOX | {"skills": []})
        await box.do("update what_comes_later")
        await told("notify:update_what_comes_later", BOX)
        # what the Computer says by itself
        assert (await anna.call("box", "tools__one_more", name="two"))["isError"] is False
        await told("tools", BOX | {"tools": sorted([*LISTED, "tools__two"])})
        write_skill(both.home, "wave", "Lift a hand.")
        await told("skills", BOX | {"skills": ["wave"]})
        cancel = {"agent": "anna", "req_id": "c1"}
        await anna.ask("server:tool_call_cancel", payload=cancel)
        await anna.ask("leave", office=OFFICE)
        await eventually(lambda: plain.told("notify:leave_office")[-1:] == [{"office_id": OFFICE, "agent": "anna"}])
        assert [(event, payload) for event, payload in plain.events if event.startswith("notify:")] == [
            ("notify:leave_office", {"office_id": OFFICE, **BOX}),
            ("notify:enter_office", {"office_id": OFFICE, **BOX}),
            ("notify:update_config", BOX),
            ("notify:update_tool_list", BOX),
            ("notify:update_desktop", BOX),
            ("notify:update_finder", BOX),
            ("notify:update_skills", BOX),
            ("notify:update_what_comes_later", BOX),
            ("notify:update_tool_list", BOX),
            ("notify:update_skills", BOX),
            ("notify:tool_call_cancel", cancel),
            ("notify:leave_office", {"office_id": OFFICE, "agent": "anna"}),
        ]
