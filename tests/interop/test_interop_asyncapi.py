"""The AsyncAPI document keeps to the schema that AsyncAPI itself publishes (npm: `@asyncapi/specs`)."""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from docs.contract.__main__ import DOCS

SPECS = Path(__file__).parents[1] / "e2e" / "npm" / "node_modules" / "@asyncapi" / "specs" / "schemas"
MISSING = "AsyncAPI's schema is not installed (make setup-e2e, with Node.js): the document is not held against it"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((DOCS / "asyncapi.yaml").read_text(encoding="utf-8"))
    return read


@pytest.fixture(scope="module")
def validator(document: dict[str, Any]) -> Any:
    """Without AsyncAPI's schema it is a failure in CI, and one printed line elsewhere."""
    path = SPECS / f"{document['asyncapi']}.json"
    if not path.is_file():
        if os.environ.get("CI") == "true":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    return jsonschema.Draft7Validator(json.loads(path.read_text(encoding="utf-8")))


def test_the_document_is_valid_asyncapi(document: dict[str, Any], validator: Any) -> None:
    wrong = [f"{error.json_path}: {error.message:.200}" for error in validator.iter_errors(document)]
    assert wrong == []


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("operations", "action"), "says"),
        (("operations", "channel"), "#/channels/smcp"),
        (("channels", "messages"), []),
        (("channels", "adress"), "misspelt"),
        (("servers", "protocol"), None),
    ],
)
def test_the_validator_finds_an_invalid_document(
    document: dict[str, Any], validator: Any, where: tuple[str, str], value: object
) -> None:
    """In the first of the operations, channels or servers."""
    kind, field = where
    name = next(iter(document[kind]))
    wrong = {**document, kind: {**document[kind], name: {**document[kind][name], field: value}}}
    assert not validator.is_valid(wrong)
