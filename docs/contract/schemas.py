"""JSON Schemas (draft 2020-12) of the structures of the wire, from their pydantic models.

A schema says what is accepted: fields that it does not know are allowed, and types are strict. What JSON Schema
cannot say (a name's length counts in NFC, a response has either a result or an error) is in the descriptions.
"""

import copy
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

from pydantic import AfterValidator, BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema

from smcp_proto import schemas
from smcp_proto.catalog import VersionRefusal
from smcp_proto.errors import ErrorBody
from smcp_proto.member_names import MAX_NAME_LENGTH, Name
from smcp_proto.schemas.base import is_none
from smcp_proto.schemas.config import IsoDuration
from smcp_proto.schemas.resources import Reserved

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
DEFS: Final = "#/$defs/{model}"

Document = dict[str, Any]


def _validator(annotated: Any) -> Any:
    """The function that an annotated type validates with, after pydantic's own check."""
    return next(each.func for each in get_args(annotated)[1:] if isinstance(each, AfterValidator))


_IN_WORDS: Final[Mapping[Any, Document]] = {
    _validator(Name): {
        "minLength": 1,
        "maxLength": MAX_NAME_LENGTH,
        "pattern": r"^[^\x00-\x1f\x7f-\x9f]*$",
        "x-smcp-type": "name: its length counts in Unicode's form NFC, into which it is brought",
    },
    _validator(IsoDuration): {"x-smcp-type": "duration: ISO 8601, longer than nothing; or text with a placeholder"},
    _validator(Reserved): {"not": {}, "x-smcp-type": "reserved: refused"},
}
"""What is said of the types that a function of ours checks."""


class _Generator(GenerateJsonSchema):
    """Without titles that repeat a field's name, and with what our own validators check."""

    def function_after_schema(self, schema: Any) -> JsonSchemaValue:
        described = super().function_after_schema(schema)
        return {**described, **_IN_WORDS.get(schema["function"]["function"], {})}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def normalize_name(self, name: str) -> str:
        found = re.search(r"Payload\[Literal\['(.*?)'\]", name)
        return super().normalize_name(f"{found[1]}_payload" if found else name)

    def generate(self, schema: CoreSchema, mode: Any = "validation") -> JsonSchemaValue:
        return _tidy(super().generate(schema, mode))


def models() -> Mapping[str, type[BaseModel]]:
    """Every structure that has a schema, by its name on the pages."""
    own = {
        name: kind
        for name, kind in vars(schemas).items()
        if getattr(kind, "__module__", "").startswith(schemas.__name__)
    }
    found = {name: kind for name, kind in own.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}
    del found["Wire"]  # what all others have in common says nothing by itself
    return {**found, "ErrorBody": ErrorBody, "VersionRefusal": VersionRefusal}


def unions() -> Mapping[str, TypeAdapter[Any]]:
    """Structures that are one of several."""
    return {"MCPServerConfig": schemas.SERVER_CONFIG, "MCPServerInput": schemas.SERVER_INPUT}


def all_schemas() -> Mapping[str, Document]:
    """Each structure's own schema, whole: nothing in it refers to another file."""
    documents = {
        name: model.model_json_schema(ref_template=DEFS, schema_generator=_Generator)
        for name, model in models().items()
    }
    for name, union in unions().items():
        documents[name] = {"title": name, **union.json_schema(ref_template=DEFS, schema_generator=_Generator)}
    return {name: _headed(name, document) for name, document in sorted(documents.items())}


def component_schemas(wanted: Iterable[type[BaseModel]], ref_template: str) -> Mapping[str, Document]:
    """The schemas of some models and of all that they are made of, referring to each other by `ref_template`."""
    found: dict[str, Document] = {}
    for model in wanted:
        schema = model.model_json_schema(ref_template=ref_template, schema_generator=_Generator)
        found |= schema.pop("$defs", {})
        found[model.__name__] = schema
    return dict(sorted(found.items()))


def written(document: Document) -> str:
    """A schema as it stands in its file."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _headed(name: str, document: Document) -> Document:
    head = {"$schema": DRAFT, "$id": f"urn:a2c-smcp:{name}", "title": document.pop("title", name)}
    return {**head, **document}


def _tidy(schema: Document) -> Document:
    """Without `"default": null` where a field is absent rather than null; a description's paragraph is one line."""
    tidied = copy.deepcopy(schema)
    known: dict[str, Any] = {**models()}
    payloads = [each.model_fields["payload"].annotation for each in known.values() if "payload" in each.model_fields]
    known |= {each.__name__: each for each in payloads}
    for document in (tidied, *tidied.get("$defs", {}).values()):
        model = known.get(name := document.get("title", ""))
        for field, info in (model.model_fields if model else {}).items():
            if info.exclude_if is is_none:
                document["properties"][field].pop("default", None)
        if name.startswith("_"):
            del document["title"]
    _unwrap(tidied)
    return tidied


def _unwrap(value: Any) -> None:
    match value:
        case dict():
            if isinstance(text := value.get("description"), str):
                value["description"] = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
            for inner in value.values():
                _unwrap(inner)
        case list():
            for inner in value:
                _unwrap(inner)
