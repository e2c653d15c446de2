"""A good payload of each event that a client can say: Agent `anna` and Computer `box` in `office`."""

from typing import Any, Final

OFFICE: Final = "office"
_ASKED: Final[dict[str, Any]] = {"agent": "anna", "req_id": "r", "computer": "box"}
_URI: Final = {"uri": "file:///notes.txt"}
_REFERENCE: Final = {
    "ref": {"type": "ref/resource", "uri": "file:///{path}"},
    "argument": {"name": "path", "value": "n"},
}
_CAPABILITIES: Final = {"resources": {"subscribe": True, "listChanged": False}}


def _envelope(method: str, params: dict[str, Any]) -> dict[str, Any]:
    payload = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return {"roomId": OFFICE, "computerId": "box", "serverId": None, "payload": payload}


def _told(method: str, params: dict[str, Any]) -> dict[str, Any]:
    payload = {"jsonrpc": "2.0", "method": method, "params": params}
    return {"roomId": OFFICE, "computerId": "box", "serverId": "files", "payload": payload}


GOOD: Final[dict[str, dict[str, Any]]] = {
    "client:tool_call": {**_ASKED, "tool_name": "t", "params": {"深": None}, "timeout": 5},
    "client:get_config": _ASKED,
    "client:get_tools": _ASKED,
    "client:get_status": _ASKED,
    "client:get_desktop": {**_ASKED, "desktop_size": 3, "window": "window://h/a"},
    "client:get_finder": {**_ASKED, "keywords": ["x"], "file_type": "pdf", "offset": 0, "limit": 20},
    "client:resources/list": _envelope("resources/list", {"cursor": "c"}),
    "client:resources/read": _envelope("resources/read", _URI),
    "client:resources/templates/list": _envelope("resources/templates/list", {}),
    "client:resources/subscribe": _envelope("resources/subscribe", _URI),
    "client:resources/unsubscribe": _envelope("resources/unsubscribe", _URI),
    "client:completion/complete": _envelope("completion/complete", _REFERENCE),
    "client:prompts/list": _envelope("prompts/list", {"cursor": "c"}),
    "client:prompts/get": _envelope("prompts/get", {"name": "greet", "arguments": {"who": "深"}}),
    "server:join_office": {"role": "agent", "name": "anna", "office_id": OFFICE},
    "server:leave_office": {"office_id": OFFICE},
    "server:list_room": {"agent": "anna", "req_id": "r", "office_id": OFFICE},
    "server:tool_call_cancel": {"agent": "anna", "req_id": "r"},
    "server:update_config": {"computer": "box"},
    "server:update_tool_list": {"computer": "box"},
    "server:update_desktop": {"computer": "box"},
    "server:tool_progress": {"agent": "anna", "req_id": "r", "progress": 1},
    "server:update_finder": {"computer": "box"},
    "server:update_capabilities": {"computer": "box", "capabilities": _CAPABILITIES},
    "server:resources/list_changed": _told("notifications/resources/list_changed", {}),
    "server:resources/updated": _told("notifications/resources/updated", _URI),
    "notify:resources/list_changed": _told("notifications/resources/list_changed", {}),
    "notify:resources/updated": _told("notifications/resources/updated", _URI),
}
