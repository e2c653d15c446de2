"""The JSON Schema (draft 2020-12) of a Computer's configuration file, made from the models: for editors.

It takes each file that is read without a mistake, and some others: `smcp_computer.config.file` decides what is valid. A
schema cannot say that a placeholder needs an input, or that an unknown field resembles a known one. URLs, durations and
the fields that go with each kind of URL are left to `file`, too.
"""

from typing import Any, Final, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from smcp_computer.config.lint import INPUT_MODELS, PARAMETERS, SERVER_MODELS, TYPES
from smcp_computer.settings import DEFAULTS, HostSettings
from smcp_proto.schemas.config import MCPServerPickStringInput

Schema = dict[str, Any]
_TEXT: Final[Schema] = {"type": "string"}
_LOOSE: Final[Schema] = {"type": ["object", "null"]}
"""Of `env` and `headers`: other hosts have numbers there, too."""


class _Untitled(GenerateJsonSchema):
    """Without titles that repeat the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _parameters_of(config: type[BaseModel]) -> type[BaseModel]:
    parameters: Any = config.model_fields[PARAMETERS].annotation
    return cast("type[BaseModel]", parameters)


def config_schema() -> Schema:
    """The schema, as a JSON value."""
    models: list[type[BaseModel]] = [
        *(model for config in SERVER_MODELS.values() for model in (config, _parameters_of(config))),
        *INPUT_MODELS.values(),
        HostSettings,
    ]
    _, made = models_json_schema([(model, "validation") for model in models], schema_generator=_Untitled)
    defs: dict[str, Schema] = made["$defs"]
    for definition in defs.values():
        definition["additionalProperties"] = False
    for model in INPUT_MODELS.values():
        defs[model.__name__]["required"].remove("description")
    defs[MCPServerPickStringInput.__name__]["properties"]["options"] = {
        "type": "array",
        "items": {"anyOf": [_TEXT, {"type": "object", "properties": {"value": _TEXT}, "required": ["value"]}]},
    }
    host = defs[HostSettings.__name__]["properties"]
    shapes: list[Schema] = []
    for config in SERVER_MODELS.values():
        parameters = _parameters_of(config)
        shapes += _shapes(defs.pop(config.__name__)["properties"], defs[parameters.__name__], _ref(parameters), host)
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


def _shapes(config: Schema, parameters: Schema, reference: Schema, host: Schema) -> list[Schema]:
    """The ways to write a server of one type: ours, that of the protocol's page, and that of other hosts."""
    own = config["type"]["const"]
    kinds = {"enum": [own, *(name for name, type_ in TYPES.items() if type_ == own)]}
    fields = {**config, **host, "envFile": host["env_file"], "type": kinds}
    del fields[PARAMETERS]
    loose = {name: _LOOSE for name in ("env", "headers") if name in parameters["properties"]}
    parameters["properties"] |= loose
    key = parameters["required"][0]
    flat = {**parameters["properties"], **fields}
    return [
        *(
            {
                "type": "object",
                "properties": {holder: reference, **fields},
                "required": ["type", holder],
                "additionalProperties": False,
            }
            for holder in (PARAMETERS, "params")
        ),
        {"type": "object", "properties": flat, "required": [key]},
    ]


def _ref(model: type[BaseModel]) -> Schema:
    return {"$ref": f"#/$defs/{model.__name__}"}
