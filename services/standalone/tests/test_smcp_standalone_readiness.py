"""`/readyz` of `smcp up`: it says that the system can be used, its Computer included."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from smcp_auth import api_keys
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_standalone.app import open_system
from smcp_standalone.settings import UpOptions, load_up_settings
from smcp_testing.ports import Ports
from smcp_testing.waiting import eventually


async def test_up_is_not_ready_before_its_computer_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "computer.json").write_text(json.dumps({"servers": {}}))
    port = Ports().take()
    options = UpOptions(config=tmp_path / "computer.json", data=tmp_path, port=port, office="home", name="computer")
    said: list[bool] = []

    async def is_ready(part: str) -> bool:
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/readyz") as answer:
            checks: dict[str, str] = (await answer.json())["checks"]
            return checks[part] == "ok"

    @asynccontextmanager
    async def opened(config: BusConfig, **more: Any) -> AsyncIterator[Bus]:
        if config.name == "smcp-computer":
            await eventually(lambda: is_ready("registry"), timeout=30, message="the gateway is not ready")
            said.append(await is_ready("computer"))
        async with open_bus(config, **more) as bus:
            yield bus

    monkeypatch.setattr("smcp_bus.operations.open_bus", opened)
    async with open_system(options, load_up_settings(options, tmp_path), tmp_path):
        said.append(await is_ready("computer"))
    assert said == [False, True]


async def test_up_is_not_ready_where_its_gateway_refuses_the_token_of_smcp_mcp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "computer.json").write_text(json.dumps({"servers": {}}))
    _, entry = api_keys.new_key(subject="anna", roles=["agent"], names=["*"], offices=["*"])
    api_keys.add(tmp_path / "keys.json", entry)
    monkeypatch.setenv("SMCP_AUTH_KEYS", str(tmp_path / "keys.json"))
    monkeypatch.setenv("SMCP_TOKEN", "of-another-system")
    port = Ports().take()
    options = UpOptions(
        config=tmp_path / "computer.json", data=tmp_path, port=port, mcp_port=0, office="home", name="computer"
    )

    async def says_why() -> bool:
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/readyz") as answer:
            assert answer.status == 503
            checks: dict[str, str] = (await answer.json())["checks"]
            return checks["mcp_gateway_connection"].startswith("the gateway refuses SMCP_TOKEN")

    async with open_system(options, load_up_settings(options, tmp_path), tmp_path):
        await eventually(says_why)
