"""Every field of every structure of the pages `data-structures` and `events`, one row each.

A row says whether the field has to be there, which values it takes, which it does not, and what stands for it where it
is left out. Its rules in `docs/rules.md` are those called `<where the structure stands>.<field>`.
"""

from dataclasses import dataclass, field
from typing import Any

from smcp_testing import rules

ABSENT: Any = object()
"""Where a field is left out, nothing stands for it."""


@dataclass(frozen=True)
class Kind:
    """A type, by values that it takes and values that it does not."""

    good: tuple[Any, ...]
    bad: tuple[Any, ...]

    def or_null(self) -> "Kind":
        return Kind((*self.good, None), tuple(value for value in self.bad if value is not None))

    def unless_null(self) -> "Kind":
        """Where the page says nothing about null."""
        return Kind(self.good, tuple(value for value in self.bad if value is not None))


TEXT = Kind(("", "x", "中文", "a\nb"), (None, 1, True, 1.5, ["x"], {}))
PROGRAM = Kind(("x", "${env:X}"), ("", None, 1, ["x"]))
NAME = Kind(("a", "办公室 1.*>", "x" * 128), (None, 1, True, [], {}, "", "x" * 129, "a\nb"))
REQ_ID = Kind(
    ("r", "请求 1", "x" * 256), (None, 1, True, [], {}, "", "x" * 257, "a\nb", "a\x00", "\x7f", "\x85", "\ud800")
)
TOOL_NAME = Kind(("t", "工具 1"), (None, 1, [], ""))
SERVER_NAME = Kind(("git", "服务 1"), (None, 1, [], ""))
BOOL = Kind((True, False), (None, 0, 1, "true", [], {}))
OBJECT = Kind(({}, {"a": {"b": [1, None]}}), (None, 1, "x", [], True))
TEXTS = Kind(([], ["a", "b"]), (None, "a", [1], {}, [None]))
TEXT_BY_TEXT = Kind(({}, {"A": "b"}), (None, "a", {"A": 1}, ["a"]))
ROLE = Kind(("computer", "agent"), (None, "Agent", "server", "", 1))
TIMEOUT = Kind((1, 30, 3600), (None, 0, -1, 3601, "30", 1.5, 30.0, True, 10**30))
COUNT = Kind((0, 10**9), (None, -1, "0", 1.0, True))
LIMIT = Kind((1, 20, 100), (None, 0, 101, "20", 1.0, True))
INTEGER = Kind((-1, 0, 3), (None, "3", 1.5, True, []))
SECONDS = Kind((5, 0.5, 300.0), (None, "5", "PT5S", 0, -1.0, float("inf"), True))
DURATION = Kind(("PT30S", "PT5M", "P1DT1H"), (None, 30, 30.0, "30", "30s", "PT0S", ""))
HANDLER = Kind(("strict", "ignore", "replace"), (None, "x", "", 1))
TOOL = {"name": "t", "description": "", "params_schema": {}}
TOOLS = Kind(([], [TOOL]), (None, {}, [1], [{"name": "t"}]))
META = Kind(({}, {"a": "x", "b": 1, "c": True, "d": ["x"], "e": None}), ({"a": {}}, {"a": [1]}, [], "x"))
TOOL_META = Kind(({}, {"tags": ["a"], "auto_apply": True}), ("x", [], {"tags": "a"}))
TOOL_METAS = Kind(({}, {"t": {"alias": "u"}}), (None, [], {"t": {"alias": 1}}, {"t": 1}))
SESSIONS = Kind(([], [{"sid": "s", "name": "n", "role": "agent", "office_id": "o"}]), (None, {}, [1], [{"role": "x"}]))
STDIO = {"command": "c"}
HTTP = {"url": "u"}
CONFIG = {"name": "n", "type": "stdio", "server_parameters": STDIO}
SERVERS = Kind(({}, {"n": CONFIG}), (None, [], {"n": {"name": "n", "type": "pipe"}}, {"n": 1}))
INPUTS = Kind(([], [{"id": "i", "description": "", "type": "promptString"}]), ("x", [{"id": "i", "type": "x"}], [1]))
DOCUMENTS = Kind(([], [{"doc_ref": "d", "uri": "dpe://h/d"}]), (None, {}, [{"doc_ref": "d"}]))


WRITTEN_IN: dict[str, tuple[str, ...]] = {
    "AgentCallData": ("events.notify.tool_call_cancel.data",),
    "EnterOfficeNotification": ("events.notify.enter_office.data",),
    "EnterOfficeReq": ("events.join_office.request",),
    "GetComputerConfigReq": ("events.get_config.request",),
    "GetComputerConfigRet": ("events.get_config.reply",),
    "GetDeskTopReq": ("events.get_desktop.request",),
    "GetDeskTopRet": ("events.get_desktop.reply",),
    "GetFinderReq": ("events.get_finder.request",),
    "GetFinderRet": ("events.get_finder.reply",),
    "GetToolsReq": ("events.get_tools.request",),
    "GetToolsRet": ("events.get_tools.reply",),
    "LeaveOfficeNotification": ("events.notify.leave_office.data",),
    "LeaveOfficeReq": ("events.leave_office.request",),
    "ListRoomReq": ("events.list_room.request",),
    "ListRoomRet": ("events.list_room.reply",),
    "MCPSSEConfig": ("computer.config.default", "data-structures.BaseMCPServerConfig"),
    "MCPSSEParameters": ("answers.config.sse", "computer.sse"),
    "MCPServerCommandInput": ("data-structures.MCPServerInputBase",),
    "MCPServerPickStringInput": ("data-structures.MCPServerInputBase",),
    "MCPServerPromptStringInput": ("data-structures.MCPServerInputBase",),
    "MCPServerStdioConfig": ("computer.config.default", "data-structures.BaseMCPServerConfig"),
    "MCPServerStdioParameters": ("answers.config.stdio", "computer.stdio"),
    "MCPServerStreamableHttpConfig": ("computer.config.default", "data-structures.BaseMCPServerConfig"),
    "MCPServerStreamableHttpParameters": ("answers.config.streamable", "computer.http"),
    "SessionInfo": ("events.list_room.session",),
    "ToolCallReq": ("events.tool_call.request",),
    "UpdateComputerConfigReq": (
        "events.notify.update_desktop.data",
        "events.notify.update_finder.data",
        "events.update_config.request",
        "events.update_desktop.request",
        "events.update_finder.request",
    ),
    "UpdateMCPConfigNotification": ("events.notify.update_config.data",),
    "UpdateToolListNotification": ("events.notify.update_tool_list.data", "events.update_tool_list.request"),
}
"""Where a structure's fields are rules, beside `data-structures.<structure>`."""

ALSO: dict[str, tuple[str, ...]] = {
    "ToolCallReq.timeout": ("data-structures.conventions.seconds", "answers.calls.timeout.range"),
    "AgentCallData.req_id": ("answers.req_id.form",),
    "MCPServerStreamableHttpParameters.timeout": ("answers.config.streamable.durations",),
    "MCPServerStreamableHttpParameters.sse_read_timeout": ("answers.config.streamable.durations",),
    "MCPServerStdioParameters.encoding_error_handler": ("answers.config.stdio.errors",),
    "SMCPTool.meta": ("data-structures.meta.attributes",),
}
"""Rules of one field that have another name."""


@dataclass(frozen=True)
class Field:
    """One row."""

    structure: str
    name: str
    kind: Kind
    default: Any = field(default=..., repr=False)
    """What stands for it where it is left out; `...`: it has to be there; ABSENT: nothing."""

    @property
    def id(self) -> str:
        return f"{self.structure}.{self.name}"

    @property
    def rules(self) -> list[str]:
        """The rules of the table that this row states."""
        places = (f"data-structures.{self.structure}", *WRITTEN_IN.get(self.structure, ()))
        names = [f"{place}.{self.name}{end}" for place in places for end in ("", ".default")]
        return [id_ for id_ in (*names, *ALSO.get(self.id, ())) if id_ in rules.read()]


def required(structure: str, **kinds: Kind) -> list[Field]:
    return [Field(structure, name, kind) for name, kind in kinds.items()]


def optional(structure: str, **kinds: Kind) -> list[Field]:
    return [Field(structure, name, kind.unless_null(), ABSENT) for name, kind in kinds.items()]


def defaulted(structure: str, **kinds: tuple[Kind, Any]) -> list[Field]:
    return [Field(structure, name, kind, default) for name, (kind, default) in kinds.items()]


def called(structure: str, **more: Kind) -> list[Field]:
    """What is asked of a Computer."""
    return required(structure, agent=NAME, req_id=REQ_ID, computer=NAME, **more)


def configured(structure: str, kind: str, parameters: Kind) -> list[Field]:
    """What the configuration of every MCP server has."""
    other = Kind((kind,), (None, "http", "", 1, [] if kind != "sse" else {}))
    return [
        *required(structure, name=SERVER_NAME, type=other, server_parameters=parameters),
        *defaulted(
            structure,
            disabled=(BOOL, False),
            forbidden_tools=(TEXTS, []),
            tool_meta=(TOOL_METAS, {}),
            default_tool_meta=(TOOL_META.or_null(), None),
            vrl=(TEXT.or_null(), None),
        ),
    ]


FIELDS: list[Field] = [
    *required("AgentCallData", agent=NAME, req_id=REQ_ID),
    *called("ToolCallReq", tool_name=TOOL_NAME, params=OBJECT, timeout=TIMEOUT),
    *required("SMCPTool", name=TEXT, description=TEXT, params_schema=OBJECT),
    *defaulted("SMCPTool", return_schema=(OBJECT.or_null(), None), meta=(META.or_null(), None)),
    *defaulted(
        "ToolMeta",
        auto_apply=(BOOL.or_null(), None),
        ret_object_mapper=(OBJECT.or_null(), None),
        alias=(TEXT.or_null(), None),
        tags=(TEXTS.or_null(), None),
    ),
    *called("GetToolsReq"),
    *required("GetToolsRet", tools=TOOLS, req_id=REQ_ID),
    *required("EnterOfficeReq", role=ROLE, name=NAME, office_id=NAME),
    *required("LeaveOfficeReq", office_id=NAME),
    *optional("EnterOfficeNotification", office_id=NAME, computer=NAME, agent=NAME),
    *optional("LeaveOfficeNotification", office_id=NAME, computer=NAME, agent=NAME),
    *required("ListRoomReq", agent=NAME, req_id=REQ_ID, office_id=NAME),
    *optional("SessionInfo", sid=TEXT, name=NAME, role=ROLE, office_id=NAME),
    *required("ListRoomRet", sessions=SESSIONS, req_id=REQ_ID),
    *required("UpdateComputerConfigReq", computer=NAME),
    *optional("UpdateMCPConfigNotification", computer=NAME),
    *optional("UpdateToolListNotification", computer=NAME),
    *called("GetComputerConfigReq"),
    *defaulted("GetComputerConfigRet", inputs=(INPUTS.or_null(), None)),
    *required("GetComputerConfigRet", servers=SERVERS),
    *called("GetDeskTopReq"),
    *optional("GetDeskTopReq", desktop_size=INTEGER, window=TEXT),
    *defaulted("GetDeskTopRet", desktops=(TEXTS, [])),
    *optional("GetDeskTopRet", req_id=REQ_ID),
    *called("GetFinderReq"),
    *optional("GetFinderReq", keywords=TEXTS, file_type=TEXT),
    *defaulted("GetFinderReq", offset=(COUNT, 0), limit=(LIMIT, 20)),
    *required("GetFinderRet", documents=DOCUMENTS, total_count=COUNT, req_id=REQ_ID),
    *configured("MCPServerStdioConfig", "stdio", Kind((STDIO,), (None, {}, HTTP, "x"))),
    *configured("MCPServerStreamableHttpConfig", "streamable", Kind((HTTP,), (None, {}, STDIO, "x"))),
    *configured("MCPSSEConfig", "sse", Kind((HTTP,), (None, {}, STDIO, "x"))),
    *required("MCPServerStdioParameters", command=PROGRAM),
    *defaulted(
        "MCPServerStdioParameters",
        args=(TEXTS, []),
        env=(TEXT_BY_TEXT.or_null(), None),
        cwd=(TEXT.or_null(), None),
        encoding=(TEXT, "utf-8"),
        encoding_error_handler=(HANDLER, "strict"),
    ),
    *required("MCPServerStreamableHttpParameters", url=PROGRAM),
    *defaulted(
        "MCPServerStreamableHttpParameters",
        headers=(OBJECT.or_null(), None),
        timeout=(DURATION, "PT30S"),
        sse_read_timeout=(DURATION, "PT5M"),
        terminate_on_close=(BOOL, True),
    ),
    *required("MCPSSEParameters", url=PROGRAM),
    *defaulted(
        "MCPSSEParameters",
        headers=(OBJECT.or_null(), None),
        timeout=(SECONDS, 5.0),
        sse_read_timeout=(SECONDS, 300.0),
    ),
    *required("MCPServerPromptStringInput", id=PROGRAM, description=TEXT, type=Kind(("promptString",), (None, "x", 1))),
    *defaulted("MCPServerPromptStringInput", default=(TEXT.or_null(), None), password=(BOOL.or_null(), None)),
    *required(
        "MCPServerPickStringInput",
        id=PROGRAM,
        description=TEXT,
        type=Kind(("pickString",), (None, "x", 1)),
        options=TEXTS,
    ),
    *defaulted("MCPServerPickStringInput", default=(TEXT.or_null(), None)),
    *required(
        "MCPServerCommandInput",
        id=PROGRAM,
        description=TEXT,
        type=Kind(("command",), (None, "x", 1)),
        command=PROGRAM,
    ),
    *defaulted("MCPServerCommandInput", args=(TEXT_BY_TEXT.or_null(), None)),
]
