"""`make demo`: an Agent calls two public MCP servers, and every call returns although its gateway is killed.

It uses what a user has: the commands `smcp up` and `smcp-gateway`, and the SDK.
"""

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench.processes import BIN, line_of, start, wait_until_ready
from bench.published_env import ROOT
from smcp_agent import SmcpAgent, SmcpError
from smcp_proto.printable import printable
from smcp_standalone.nats_server import find_command
from smcp_standalone.settings import KEYS, uvx_server

OFFICE: Final = "demo office"
COMPUTER: Final = "demo computer"
GATEWAY: Final = "second-gateway"
"""Its NATS credential."""
CALL_S: Final = 60
"""Longer than the Agent takes to find the other gateway."""
WHEN: Final = {"source_timezone": "Asia/Shanghai", "time": "16:30", "target_timezone": "Europe/Berlin"}
CALLERS: Final = 8
BEFORE_S: Final = 6.0
"""How long calls are made before the gateway is killed: a Computer repeats only what was sent after its first 5 s."""


def main(stack: contextlib.ExitStack) -> None:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="smcp-demo-")))
    for name in [each for each in os.environ if each.startswith("SMCP_")]:
        del os.environ[name]  # what may stand there is for another system than this one
    print("Starting; the first time, uvx downloads mcp-server-git and mcp-server-time ...", flush=True)
    system = start_system(stack, directory)
    url, gateway = start_gateway(stack, directory / "up", system["nats_url"])
    print(
        f"nats-server, a registry, the gateways {url} and {system['url']}, and a Computer with two MCP servers run. "
        f"An Agent joins {OFFICE!r} and calls their tools.\n",
        flush=True,
    )
    key = Path(system["key_file"]).read_text().strip()
    asyncio.run(be_an_agent([url, system["url"]], key, gateway))
    stack.close()
    print(f"Everything has been stopped. Your own turn: {os.path.relpath(BIN / 'smcp')} up")


def start_system(stack: contextlib.ExitStack, directory: Path) -> dict[str, Any]:
    """What `smcp up` says when it is ready."""
    if (uvx := find_command("uvx")) is None:
        sys.exit("uvx is needed to run the two MCP servers, and was not found (package uv)")
    git = uvx_server(uvx, "mcp-server-git", "--repository", str(ROOT))
    config, hosts = directory / "servers.json", directory / "hosts.yaml"
    config.write_text(json.dumps({"servers": {"git": git, "time": uvx_server(uvx, "mcp-server-time")}}))
    hosts.write_text(json.dumps({"offices": [OFFICE], "gateways": [GATEWAY], "listen": "127.0.0.1:-1"}))
    options = ("--office", OFFICE, "--name", COMPUTER, "--config", config, "--hosts", hosts, "--data", directory / "up")
    # no questions, and time for downloads
    settings = {"SMCP_CONFIRM": "allow", "SMCP_START_S": "300", "SMCP_LOG_LEVEL": "warning"}
    up = start(stack, BIN / "smcp", "up", "--json", "--port", "0", "--no-mcp", *options, env=settings)
    system: dict[str, Any] = json.loads(line_of(up))
    if system["failed"]:
        sys.exit(f"did not start: {', '.join(system['failed'])} (see above)")
    return system


def start_gateway(stack: contextlib.ExitStack, data: Path, nats_url: str) -> tuple[str, subprocess.Popen[str]]:
    """A gateway beside the one of `smcp up`: its URL and its process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "SMCP_NATS_URL": nats_url,
        "SMCP_NATS_CREDS": str(data / "nats" / "creds" / f"{GATEWAY}.json"),
        "SMCP_AUTH_KEYS": str(data / KEYS),
        "SMCP_GATEWAY_HOST": "127.0.0.1",
        "SMCP_GATEWAY_PORT": str(port),
        "SMCP_HEALTH_PORT": "0",
        "SMCP_LOG_LEVEL": "warning",
    }
    gateway = start(stack, BIN / "smcp-gateway", env=settings)
    wait_until_ready(url := f"http://127.0.0.1:{port}")
    return url, gateway


async def be_an_agent(urls: list[str], key: str, gateway: subprocess.Popen[str]) -> None:
    async with SmcpAgent(urls, office=OFFICE, name="demo agent", token=key) as agent:
        for tool, params in (("git_log", {"repo_path": str(ROOT), "max_count": 3}), ("convert_time", WHEN)):
            result = await agent.call_tool(COMPUTER, tool, params, timeout=CALL_S)
            if result.is_error:
                sys.exit(f"{tool} failed: {result.text}")
            commits = re.findall(r"^Commit: '?(\w{8}).*?^Message: ([^\n]*)", result.text, re.MULTILINE | re.DOTALL)
            log = "\n".join(f"  {commit} {printable(subject)}" for commit, subject in commits)
            print(f"{tool}  {json.dumps(params)}", log or printable(result.text, newline="\n"), sep="\n")
            print(f"{result.duration_s * 1000:.1f} ms, trace id {result.trace_id}\n", flush=True)
        await lose_a_gateway(agent, urls[0], gateway)


async def lose_a_gateway(agent: SmcpAgent, url: str, gateway: subprocess.Popen[str]) -> None:
    """Kill the Agent's gateway while calls are in flight, and print what became of them."""
    loop = asyncio.get_running_loop()
    calls: list[tuple[float, float]] = []
    killed = loop.time() + BEFORE_S

    async def call_again_and_again() -> None:
        ended = 0.0
        while ended <= killed + 1:
            began = loop.time()
            result = await agent.call_tool(COMPUTER, "convert_time", WHEN, timeout=CALL_S)
            if result.is_error:
                sys.exit(f"convert_time failed: {result.text}")
            ended = loop.time()
            calls.append((began, ended))

    print(f"{CALLERS} callers now make one call after another ...", flush=True)
    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(call_again_and_again())
        await asyncio.sleep(BEFORE_S)
        killed = loop.time()
        gateway.kill()
    flying = [ended - began for began, ended in calls if began <= killed < ended]
    print(
        f"The Agent's gateway {url} was killed (kill -9) with {len(flying)} calls in flight. The Agent switched "
        f"to the other gateway, and all {len(flying)} returned, the slowest after {max(flying):.2f} s. "
        f"{len(calls)} calls were made; none failed.\n"
    )


if __name__ == "__main__":
    try:
        with contextlib.ExitStack() as opened:
            main(opened)
    except* SmcpError as failed:
        sys.exit(f"a call failed: {failed.exceptions[0]}")
    except* KeyboardInterrupt:
        sys.exit("stopped before its end")
