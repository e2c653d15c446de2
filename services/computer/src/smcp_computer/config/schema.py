"""The JSON Schema (draft 2020-12) of a configuration file, made from the models: for editors that read `$schema`.

It knows the shapes that `other_mcp_hosts` reads, but not all fields of other hosts. `file` decides what is valid: a
schema cannot say that a placeholder needs an input, that a script can be compiled, or that an unknown field resembles a
known one.
"""

from collections.abc import Iterable
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from smcp_computer.config.lint import HEADER, INPUT_MODELS, PARAMETERS, SERVER_MODELS
from smcp_computer.config.other_mcp_hosts import TYPE_KEYS, TYPES, URL_KEYS
from smcp_computer.config.server_settings import DEFAULTS, HostSettings
from smcp_proto.schemas.config import (
    MCPServerPickStringInput,
    MCPServerStreamableHttpParameters,
    MCPSSEParameters,
)
from smcp_proto.schemas.tools import ToolMeta

Schema = dict[str, Any]
_TEXT: Final[Schema] = {"type": "string"}
_MAPPER: Final = "Mapper"
_MAPPED: Final[Schema] = {"$ref": f"#/$defs/{_MAPPER}"}
_PATH: Final = r"^[^.]+(\.[^.]+)*$"
"""The name of a field, or a path to it."""
_PLACEHOLDER: Final = r"\$\{"
_URL: Final = rf"^https?://([^\s/?#@]*@)?[^\s/?#:@]+(:0*[1-9][0-9]*)?([/?#]\S*)?$|{_PLACEHOLDER}"
_N: Final = r"[0-9]+([.,][0-9]+)?"
_DURATION: Final = rf"^P(?=.*[1-9])({_N}W)?({_N}D)?(T(?=[0-9])({_N}H)?({_N}M)?({_N}S)?)?$|{_PLACEHOLDER}"
"""See `parse_duration`."""
_PATTERNS: Final = (
    (MCPServerStreamableHttpParameters, "url", _URL),
    (MCPServerStreamableHttpParameters, "timeout", _DURATION),
    (MCPServerStreamableHttpParameters, "sse_read_timeout", _DURATION),
    (MCPSSEParameters, "url", _URL),
)


class _Untitled(GenerateJsonSchema):
    """Without titles that repeat the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def config_schema() -> Schema:
    """The schema, as a JSON value."""
    models: list[type[BaseModel]] = [
        *(model for pair in SERVER_MODELS.values() for model in pair),
        *INPUT_MODELS.values(),
        HostSettings,
    ]
    _, made = models_json_schema([(model, "validation") for model in models], schema_generator=_Untitled)
    defs: dict[str, Schema] = made["$defs"]
    for model in INPUT_MODELS.values():
        defs[model.__name__]["required"].remove("description")
    defs[MCPServerPickStringInput.__name__]["properties"]["options"] = {
        "type": "array",
        "items": {"anyOf": [_TEXT, {"type": "object", "properties": {"value": _TEXT}, "required": ["value"]}]},
    }
    defs[ToolMeta.__name__]["properties"]["ret_object_mapper"]["anyOf"] = [_MAPPED, {"type": "null"}]
    for of, name, pattern in _PATTERNS:
        defs[of.__name__]["properties"][name]["pattern"] = pattern
    for of in (MCPServerStreamableHttpParameters, MCPSSEParameters):
        defs[of.__name__]["properties"]["headers"]["anyOf"][0] |= {
            "propertyNames": {"pattern": f"^{HEADER.pattern}$"},
            "additionalProperties": {"type": ["string", "number", "boolean"]},
        }
    for definition in defs.values():
        definition["additionalProperties"] = False
    defs[_MAPPER] = {
        "type": "object",
        "additionalProperties": {"anyOf": [{**_TEXT, "pattern": _PATH}, {"type": "null"}, _MAPPED]},
    }
    host = defs[HostSettings.__name__]["properties"]
    shapes: list[Schema] = []
    for config, parameters in SERVER_MODELS.values():
        shapes += _shapes(defs.pop(config.__name__), defs[parameters.__name__], _ref(parameters), host)
    defs["Server"] = {"anyOf": shapes}
    server = {"$ref": "#/$defs/Server"}
    servers = {"type": "object", "additionalProperties": server}
    inputs = {"type": ["array", "null"], "items": {"anyOf": [_ref(model) for model in INPUT_MODELS.values()]}}
    common = {"$schema": True, "inputs": inputs}
    other = {"if": {"type": "object"}, "then": server}
    named = {"servers": servers, "mcpServers": servers, DEFAULTS: _ref(HostSettings)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:a2c-smcp:computer-config",
        "title": "The configuration file of smcp-computer",
        "description": "MCP servers under `servers`, under `mcpServers`, or at the top level.",
        "type": "object",
        "properties": common,
        "if": {"anyOf": [{"required": ["servers"]}, {"required": ["mcpServers"]}]},
        "then": {"properties": named},
        "else": {"properties": {**common, DEFAULTS: server}, "additionalProperties": other},
        "$defs": dict(sorted(defs.items())),
    }


def _shapes(config: Schema, parameters: Schema, reference: Schema, host: dict[str, Schema]) -> Iterable[Schema]:
    """The ways to write a server of one type: ours, that of the protocol's page, and that of other hosts."""
    own = config["properties"]["type"]["const"]
    without_effect = () if own == "stdio" else (*HostSettings.STDIO_ONLY, "envFile")
    fields = {name: each for name, each in config["properties"].items() if name not in ("type", PARAMETERS)}
    fields["default_tool_meta"] = {"allOf": [fields["default_tool_meta"], {"properties": {"alias": {"type": "null"}}}]}
    fields |= {**host, "envFile": host["env_file"]} | dict.fromkeys(without_effect, False)
    kinds = {"enum": [own, *(name for name, type_ in TYPES.items() if type_ == own)]}
    for holder in (PARAMETERS, "params"):
        yield {
            "type": "object",
            "properties": {"type": kinds, holder: reference, **fields},
            "required": ["type", holder],
            "additionalProperties": False,
        }
    key = parameters["required"][0]
    names = URL_KEYS if key == "url" else (key,)
    of_other_types = {"command"} if key == "url" else {"url"}
    of_other_types |= {*MCPServerStreamableHttpParameters.model_fields} if own == "sse" else set()
    properties = {
        **dict.fromkeys(sorted(of_other_types), False),
        **dict.fromkeys(TYPE_KEYS, kinds),
        **parameters["properties"],
        **dict.fromkeys(names, parameters["properties"][key]),
        **fields,
    }
    if "env" in properties:
        properties["env"] = {"type": ["object", "null"], "additionalProperties": {"type": ["string", "number", "null"]}}
    flat = {"type": "object", "properties": properties, "anyOf": [{"required": [name]} for name in names]}
    if key == "url":
        typed = {"anyOf": [{"required": [name]} for name in TYPE_KEYS]}
        by_url = {"properties": {name: {"pattern": "/sse$"} for name in names}}
        flat["allOf"] = [{"anyOf": [typed, by_url if own == "sse" else {"not": by_url}]}]
    yield flat


def _ref(model: type[BaseModel]) -> Schema:
    return {"$ref": f"#/$defs/{model.__name__}"}
