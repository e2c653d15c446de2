"""`client:get_resources` of the published package (0.4): one page of one MCP server's own list, in its shape.

    request   {"computer", "mcp_server", "cursor"?, "agent", "req_id"}
    reply     {"resources": [...], "next_cursor"?, "req_id"}
    or        {"code": 4014 | 4015, "message", "mcp_server", "capability"?}

The cursor is the MCP server's own. Keys of a resource are in snake_case, and only those that the package knows.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from smcp_bus import exact_json
from smcp_bus.dispatch import Call, RawJson
from smcp_computer.access import Access, not_allowed
from smcp_computer.mcp.errors import RequestRefused, ServerError
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.reply_limits import Budget, bounded
from smcp_computer.resources.errors import bad_field, flat
from smcp_proto.errors import Unavailable
from smcp_proto.schemas.base import AgentCallData, ServerName, UnknownClientReq
from smcp_proto.schemas.resources import Cursor
from smcp_proto.validation import malformed

EVENT: Final = "client:get_resources"
SERVER_NOT_FOUND: Final = 4014
NOT_SUPPORTED: Final = 4015
_KEYS: Final = {"description": "description", "mimeType": "mime_type", "size": "size", "_meta": "_meta"}
_ANNOTATIONS: Final = {"audience": "audience", "priority": "priority", "lastModified": "last_modified"}


class GetResourcesReq(AgentCallData):
    mcp_server: ServerName
    cursor: Cursor | None = None


class GetResources:
    def __init__(self, supervisors: Mapping[str, Supervisor], access: Access, *, max_body: int) -> None:
        self._supervisors = supervisors
        self._access = access
        self._max_body = max_body

    async def __call__(self, request: UnknownClientReq, call: Call) -> RawJson:
        """One page.

        Raises:
            NotAllowed: the server is not for this caller.
            Malformed: a field is wrong, or the server does not know the cursor.
            TooLarge: the page is larger than the bus takes.
            TimedOut, Unavailable: the server does not answer, or is not running.
        """
        try:
            asked = GetResourcesReq.model_validate(call.payload)
        except ValidationError as error:
            raise malformed(error) from None
        if asked.mcp_server in self._access.hidden(call.caller):
            raise not_allowed("mcp_server")
        server, supervisor = asked.mcp_server, self._supervisors.get(asked.mcp_server)
        if supervisor is None:
            return _refused(SERVER_NOT_FOUND, "MCP Server not registered", mcp_server=server)
        if not supervisor.ready:
            raise Unavailable(f"MCP server {server!r} is not running ({supervisor.state})")
        resources = supervisor.resources
        if resources is None:
            message = "MCP Server does not support 'resources' capability"
            return _refused(NOT_SUPPORTED, message, mcp_server=server, capability="resources")
        try:
            page = await resources.list_page(asked.cursor, timeout=Budget(call).left)
        except RequestRefused as error:
            if asked.cursor is None:
                raise Unavailable(str(error)) from None
            raise bad_field("cursor", error) from None
        except ServerError as error:
            raise flat(error) from None
        found = [resource for item in page.items if (resource := published(item)) is not None]
        reply = {"resources": found, "req_id": asked.req_id}
        if page.next_cursor is not None:
            reply["next_cursor"] = page.next_cursor
        return bounded(reply, self._max_body)


def published(item: object) -> dict[str, Any] | None:
    if not (isinstance(item, Mapping) and isinstance(item.get("uri"), str) and isinstance(item.get("name"), str)):
        return None
    resource = {"uri": item["uri"], "name": item["name"]} | _renamed(item, _KEYS)
    annotations = item.get("annotations")
    if isinstance(annotations, Mapping) and (renamed := _renamed(annotations, _ANNOTATIONS)):
        resource["annotations"] = renamed
    return resource


def _renamed(item: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    return {name: item[key] for key, name in keys.items() if item.get(key) is not None}


def _refused(code: int, message: str, **fields: str) -> RawJson:
    """The package's own flat error: its fields stand beside the code."""
    return RawJson(exact_json.written({"code": code, "message": message, **fields}))
