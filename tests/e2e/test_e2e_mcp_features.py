"""Each feature of npm's server-everything, directly and through an office: the table in docs/mcp-features.md.

`UPDATE_TABLE=1 pytest tests/e2e/test_e2e_mcp_features.py` writes it anew.
"""

import asyncio
import json
import os
import re
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import mcp_types as types
import pytest
from mcp.client import Client
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from smcp_testing.waiting import eventually
from tests.e2e.scenarios import npm_servers
from tests.e2e.scenarios.mcp_service import mcp_service
from tests.e2e.worlds.layout import Place, command
from tests.e2e.worlds.standalone import open_standalone
from tests.e2e.worlds.world import World

TABLE: Final = npm_servers.ROOT / "docs" / "mcp-features.md"
EVERYTHING: Final[dict[str, Any]] = {
    "command": "npx",
    "args": ["--no", "--", "mcp-server-everything"],
    "cwd": str(npm_servers.NPM),
}
WAIT_S: Final = 240.0
BLOB: Final = re.compile(r'"blob": "([^"]+)"')
CLOCK: Final = re.compile(r"\d{1,2}:\d{2}:\d{2} [AP]M")
LONG: Final = "trigger-long-running-operation"
TEXT: Final = "demo://resource/dynamic/text/1"
FORM: Final = {"name": "Ada", "check": True, "integer": 7}
ERAS: Final = {"2025": "2025-11-25", "2026": "2026-07-28"}
CONDITIONAL: Final = ("sampling", "roots", "research", "async")
"""Parts of the names of tools that the server has only for clients with sampling, roots or tasks."""

pytestmark = [
    pytest.mark.timeout(2 * WAIT_S),
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),  # the server speaks 2025-11-25
]


class User:
    """A client of a server, and its user: what the server sends without a request, and what it is answered."""

    def __init__(self, server: StdioServerParameters | str, mode: str = "legacy") -> None:
        self.methods: list[str] = []
        self.logged: list[Any] = []
        self.action: Any = "accept"
        self.client = Client(
            server,
            mode=mode,
            cache=None,
            read_timeout_seconds=WAIT_S,
            message_handler=self._hear,
            logging_callback=self._log,
            elicitation_callback=self._elicit,
            sampling_callback=self._sample,
            list_roots_callback=self._roots,
        )

    async def call(self, tool: str, /, **arguments: Any) -> Any:
        return plain(await self.client.call_tool(tool, arguments))

    @asynccontextmanager
    async def hears(self, method: str, uri: str | None = None) -> AsyncIterator[None]:
        """The body lets something change; then wait until the server notifies, in the way of the era.

        With a URI, subscribe to that resource.
        """
        if self.client.protocol_version >= ERAS["2026"]:
            async with self.client.listen(
                resources_list_changed=uri is None, resource_subscriptions=[] if uri is None else [uri]
            ) as changes:
                yield
                await anext(aiter(changes))
            return
        if uri is not None:
            await self.client.subscribe_resource(uri)
        yield
        await eventually(lambda: method in self.methods, timeout=WAIT_S)
        if uri is not None:
            await self.client.unsubscribe_resource(uri)

    async def _hear(self, message: IncomingMessage) -> None:
        if not isinstance(message, Exception):
            self.methods.append(message.method)

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logged.append(params.data)

    async def _elicit(self, context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        form = isinstance(params, types.ElicitRequestFormParams) and self.action == "accept"
        return types.ElicitResult(action=self.action, content=dict(FORM) if form else None)

    async def _sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult:
        return types.CreateMessageResult(
            role="assistant", content=types.TextContent(type="text", text="42"), model="none"
        )

    async def _roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root.model_validate({"uri": "file:///srv", "name": "srv"})])


Ask = Callable[[User], Awaitable[Any]]


def plain(model: BaseModel) -> Any:
    """A result as JSON, without the name of the server, which each answer of 2026-07-28 has."""
    found = model.model_dump(by_alias=True, mode="json", exclude_none=True)
    meta = found.get("_meta", {})
    if meta.pop("io.modelcontextprotocol/serverInfo", None) is not None and not meta:
        del found["_meta"]
    return found


def tool(name: str, /, **arguments: Any) -> Ask:
    return lambda user: user.call(name, **arguments)


def read(uri: str) -> Ask:
    async def contents(user: User) -> Any:
        return plain(await user.client.read_resource(uri))["contents"]

    return contents


def prompt(name: str, /, **arguments: str) -> Ask:
    async def messages(user: User) -> Any:
        return plain(await user.client.get_prompt(name, arguments))["messages"]

    return messages


async def tools_list(user: User) -> Any:
    listed = [plain(each) for each in (await user.client.list_tools()).tools]
    offered = [each for each in listed if not any(part in each["name"] for part in CONDITIONAL)]
    return {each["name"]: {key: each[key] for key in each if key != "execution"} for each in offered}


async def resources_list(user: User) -> Any:
    return sorted(str(plain(each)) for each in (await user.client.list_resources()).resources)


async def templates_list(user: User) -> Any:
    return sorted(str(plain(each)) for each in (await user.client.list_resource_templates()).resource_templates)


async def prompts_list(user: User) -> Any:
    return sorted(str(plain(each)) for each in (await user.client.list_prompts()).prompts)


async def completed_template(user: User) -> Any:
    ref = types.ResourceTemplateReference(type="ref/resource", uri="demo://resource/dynamic/text/{resourceId}")
    return plain((await user.client.complete(ref, {"name": "resourceId", "value": "7"})).completion)


async def completed_prompt(user: User) -> Any:
    ref = types.PromptReference(type="ref/prompt", name="completable-prompt")
    chosen = {"department": "Sales"}
    return plain((await user.client.complete(ref, {"name": "name", "value": "D"}, chosen)).completion)


async def session_resource(user: User) -> Any:
    arguments = {"name": "a.gz", "data": "data:text/plain,a", "outputType": "resourceLink"}
    async with user.hears("notifications/resources/list_changed"):
        linked = await user.call("gzip-file-as-resource", **arguments)
    return [linked, await read("demo://resource/session/a.gz")(user)]


async def subscribed(user: User) -> Any:
    async with user.hears("notifications/resources/updated", TEXT):
        await user.call("toggle-subscriber-updates")
    return await user.call("toggle-subscriber-updates")


async def progress(user: User) -> Any:
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    done = await user.client.call_tool(LONG, {"duration": 2, "steps": 4}, progress_callback=hear)
    return [heard[0], plain(done)]


async def cancelled(user: User) -> Any:
    steps = asyncio.Queue[float]()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        steps.put_nowait(progress)

    calling = asyncio.create_task(
        user.client.call_tool(LONG, {"duration": WAIT_S, "steps": 10 * WAIT_S}, progress_callback=hear)
    )
    await steps.get()
    calling.cancel()
    await asyncio.wait([calling])
    return [calling.cancelled(), await user.call("get-sum", a=1, b=2)]


async def declined(user: User) -> Any:
    user.action = "decline"
    try:
        return await user.call("trigger-elicitation-request")
    finally:
        user.action = "accept"


async def logged(user: User) -> Any:
    await user.client.set_logging_level("debug")
    await user.call("toggle-simulated-logging")
    await eventually(lambda: user.logged, timeout=WAIT_S)
    return await user.call("toggle-simulated-logging")


async def environment(user: User) -> Any:
    return sorted({"HOME", "PATH"} & json.loads((await user.call("get-env"))["content"][0]["text"]).keys())


URL: Final = {"url": "https://pay.example/1", "elicitationId": "e1"}
FEATURES: Final[dict[str, Ask]] = {
    "tools/list: titles, descriptions, schemas, annotations": tools_list,
    "text (`echo`)": tool("echo", message="hello"),
    "numbers (`get-sum`)": tool("get-sum", a=20, b=22),
    "arguments that do not fit (`get-sum`)": tool("get-sum", a="twenty", b=22),
    "picture (`get-tiny-image`)": tool("get-tiny-image"),
    "annotations of contents (`get-annotated-message`)": tool(
        "get-annotated-message", messageType="error", includeImage=True
    ),
    "structured content (`get-structured-content`)": tool("get-structured-content", location="New York"),
    "resource links (`get-resource-links`)": tool("get-resource-links", count=4),
    "embedded text (`get-resource-reference`)": tool("get-resource-reference", resourceType="Text", resourceId=1),
    "embedded blob (`get-resource-reference`)": tool("get-resource-reference", resourceType="Blob", resourceId=2),
    "embedded file (`gzip-file-as-resource`)": tool(
        "gzip-file-as-resource", name="b.gz", data="data:text/plain,b", outputType="resource"
    ),
    "resource made by a tool, resources/list_changed": session_resource,
    "environment (`get-env`)": environment,
    "progress of a long call (`trigger-long-running-operation`)": progress,
    "cancel of a long call": cancelled,
    "resources/list": resources_list,
    "resources/read: a file": read("demo://resource/static/document/features.md"),
    "resources/templates/list": templates_list,
    "resources/read of a template: text": read(TEXT),
    "resources/read of a template: blob": read("demo://resource/dynamic/blob/2"),
    "completion of a template's argument": completed_template,
    "subscription, resources/updated": subscribed,
    "prompts/list": prompts_list,
    "prompt without arguments": prompt("simple-prompt"),
    "prompt with arguments": prompt("args-prompt", city="Paris", state="Texas"),
    "prompt with an embedded resource": prompt("resource-prompt", resourceType="Text", resourceId="1"),
    "completion of a prompt's argument, from another": completed_prompt,
    "elicitation: form, accepted (`trigger-elicitation-request`)": tool("trigger-elicitation-request"),
    "elicitation: form, declined": declined,
    "elicitation: URL (`trigger-url-elicitation`)": tool("trigger-url-elicitation", **URL),
    "elicitation: URL by the error -32042": tool("trigger-url-elicitation", **URL, errorPath=True),
    "logging (`toggle-simulated-logging`)": logged,
    "sampling (`trigger-sampling-request`)": tool("trigger-sampling-request", prompt="6 * 7?"),
    "roots (`get-roots-list`)": tool("get-roots-list"),
}


EXCEPTIONS: Final = {
    "arguments that do not fit (`get-sum`)": (
        "Error 400: params.a: ",
        "the Computer refuses them before the server is asked, and names the parameter",
    ),
    "elicitation: URL by the error -32042": (
        "User completed the URL elicitation flow",
        "the Computer elicits the page from the client, and calls the tool again",
    ),
    "logging (`toggle-simulated-logging`)": (
        "error -32601: logging is not supported: MCP has deprecated it",
        "not supported: MCP deprecated logging, and an office does not announce it",
    ),
    "sampling (`trigger-sampling-request`)": (
        "there is no tool",
        "not supported: MCP deprecated sampling; the server does not list the tool for a Computer",
    ),
    "roots (`get-roots-list`)": (
        "there is no tool",
        "not supported: MCP deprecated roots; the server does not list the tool for a Computer",
    ),
}
"""Features that differ through an office: what is found there, and what the table says of it."""
HEAD: Final = """# MCP features through an office

The MCP SDK's client used each feature of the public MCP server `server-everything` (npm) once directly, and three times
through an office: client → `smcp-agent mcp`, or `smcp-mcp` with MCP 2025-11-25 and with 2026-07-28 → gateway →
Computer → server. All three ways give the same. "The same" means that everything the client got is equal.
`tests/e2e/test_e2e_mcp_features.py` makes this table and checks it. `tests/e2e/test_e2e_mcp_apps.py` checks what
that server does not have: pages of MCP Apps (`ui://`), and icons.

| feature | directly | through an office |
|---|---|---|
"""


async def outcome(ask: Ask, user: User) -> str:
    """What came of a feature: JSON, or the text of an error."""
    try:
        async with asyncio.timeout(WAIT_S):
            found = await ask(user)
    except MCPError as error:
        return f"error {error.error.code}: {error.error.message}"
    told = BLOB.sub(_text, json.dumps(found, ensure_ascii=False, sort_keys=True))
    return CLOCK.sub("<time>", told)


def _text(blob: re.Match[str]) -> str:
    """A blob in clear: the server writes the time into some."""
    return f'"blob": {b64decode(blob[1])!r}'


def row(feature: str, directly: str, *ways: str) -> str:
    """The feature's line of the table. Fails where an unexpected difference is found, or none."""
    found, words = EXCEPTIONS.get(feature, ("", "the same"))
    for through in ways:
        if found:
            assert found in through, f"{feature}: {through}"
        else:
            assert through == directly, feature
    refused = directly.startswith("error") or '"isError": true' in directly
    return f"| {feature} | {'an error' if refused else 'yes'} | {words} |\n"


@asynccontextmanager
async def users(world: World, offices: Sequence[str], directory: Path) -> AsyncIterator[list[User]]:
    """One user of the server itself, and one for each way through an office; each has an office of its own."""
    bridged, *served = offices
    arguments = ["mcp", "--url", world.url(0), "--office", bridged]
    bridge = StdioServerParameters(command=command("smcp-agent"), args=arguments)
    async with mcp_service(world, directory) as url, AsyncExitStack() as stack:
        made = [User(StdioServerParameters(**EVERYTHING)), User(bridge)]
        made += [
            User(f"{url}/mcp/{office}", mode) for office, mode in zip(served, ("legacy", ERAS["2026"]), strict=True)
        ]
        for user in made:
            await stack.enter_async_context(user.client)
        yield made


@pytest.mark.usefixtures("node")
async def test_the_table_of_features_says_what_passes_through_an_office(tmp_path: Path) -> None:
    servers = {"everything": {"type": "stdio", "server_parameters": EVERYTHING}}
    offices = ("bridged", "served-2025", "served-2026")
    places = [Place(f"host-{office}", office, "everything", servers, toolbox=False) for office in offices]
    outcomes = {}
    async with open_standalone(tmp_path, more=places) as world:
        with world.telling():
            async with users(world, offices, tmp_path) as made:
                for user in made:
                    await eventually(partial(_lists, user, LONG), timeout=WAIT_S)
                for feature, ask in FEATURES.items():
                    outcomes[feature] = await asyncio.gather(*(outcome(ask, user) for user in made))
    table = HEAD + "".join(row(feature, *found) for feature, found in outcomes.items())
    if os.environ.get("UPDATE_TABLE") == "1":
        TABLE.write_text(table, encoding="utf-8")
    assert TABLE.read_text(encoding="utf-8") == table


async def _lists(user: User, tool: str) -> bool:
    return tool in {each.name for each in (await user.client.list_tools()).tools}
