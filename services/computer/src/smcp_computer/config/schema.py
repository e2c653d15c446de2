"""The JSON Schema (draft 2020-12) of a configuration file, made from the models: for editors that read `$schema`.

It knows the shapes that `other_mcp_hosts` reads, but not all fields of other hosts. `file` decides what is valid: a
schema cannot say that a placeholder needs an input.
"""

from collections.abc import Iterable
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from smcp_computer.config.host_settings import DEFAULTS, HostSettings
from smcp_computer.config.lint import PARAMETERS
from smcp_computer.config.other_mcp_hosts import TYPE_KEYS, TYPES, URL_KEYS
from smcp_proto.schemas.config import (
    MCPServerCommandInput,
    MCPServerPickStringInput,
    MCPServerPromptStringInput,
    MCPServerStdioConfig,
    MCPServerStdioParameters,
    MCPServerStreamableHttpConfig,
    MCPServerStreamableHttpParameters,
    MCPSSEConfig,
    MCPSSEParameters,
)

Schema = dict[str, Any]
_SERVERS: Final[tuple[tuple[type[BaseModel], type[BaseModel]], ...]] = (
    (MCPServerStdioConfig, MCPServerStdioParameters),
    (MCPServerStreamableHttpConfig, MCPServerStreamableHttpParameters),
    (MCPSSEConfig, MCPSSEParameters),
)
_INPUTS: Final[tuple[type[BaseModel], ...]] = (
    MCPServerPromptStringInput,
    MCPServerPickStringInput,
    MCPServerCommandInput,
)


class _Untitled(GenerateJsonSchema):
    """Without titles that repeat the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def config_schema() -> Schema:
    """The schema, as a JSON value."""
    models: list[type[BaseModel]] = [*(model for pair in _SERVERS for model in pair), *_INPUTS, HostSettings]
    _, made = models_json_schema([(model, "validation") for model in models], schema_generator=_Untitled)
    defs: dict[str, Schema] = made["$defs"]
    for model in _INPUTS:
        defs[model.__name__]["required"].remove("description")
    defs[MCPServerPickStringInput.__name__]["properties"]["options"] = {
        "type": "array",
        "items": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["value"]}]},
    }
    for definition in defs.values():
        definition["additionalProperties"] = False
    host = defs[HostSettings.__name__]["properties"]
    shapes: list[Schema] = []
    for config, parameters in _SERVERS:
        shapes += _shapes(defs.pop(config.__name__), defs[parameters.__name__], _ref(parameters), host)
    defs["Server"] = {"anyOf": shapes}
    servers = {"type": "object", "additionalProperties": {"$ref": "#/$defs/Server"}}
    inputs = {"type": "array", "items": {"anyOf": [_ref(model) for model in _INPUTS]}}
    common = {"$schema": {"type": "string"}, "inputs": inputs}
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
        "else": {"properties": common, "additionalProperties": {"$ref": "#/$defs/Server"}},
        "$defs": dict(sorted(defs.items())),
    }


def _shapes(config: Schema, parameters: Schema, reference: Schema, host: dict[str, Schema]) -> Iterable[Schema]:
    """The ways to write a server of one type: ours, that of the protocol's page, and that of other hosts."""
    fields = {name: each for name, each in config["properties"].items() if name not in ("type", PARAMETERS)} | host
    own = config["properties"]["type"]["const"]
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
    properties = {
        **dict.fromkeys(TYPE_KEYS, kinds),
        **parameters["properties"],
        **dict.fromkeys(names, parameters["properties"][key]),
        "envFile": {"type": "string"},
        **fields,
    }
    if "env" in properties:
        properties["env"] = {"type": "object", "additionalProperties": {"type": ["string", "number", "null"]}}
    yield {"type": "object", "properties": properties, "anyOf": [{"required": [name]} for name in names]}


def _ref(model: type[BaseModel]) -> Schema:
    return {"$ref": f"#/$defs/{model.__name__}"}
