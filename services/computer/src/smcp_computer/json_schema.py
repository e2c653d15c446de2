"""Checks values by the JSON Schemas of MCP servers: the arguments of a call (`tools`), and forms (`elicitation`).

The schema and the value come from others, and a check holds up the event loop. So schemas whose alternatives multiply
cannot be used, patterns are of the kind that is searched in linear time, and the place of a mistake is not looked for
where that would take long.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from smcp_bus import exact_json

MOST_ALTERNATIVES: Final = 1000
"""Subschemas that may apply to one value side by side; those behind a `$ref` count each time."""
LEVELS: Final = 12
"""Of a schema that refers to itself so many are looked at: enough for one that doubles with each."""
MOST_STEPS: Final = 10_000
"""Alternatives times values that are looked at for the place of a mistake: each takes some 10 µs."""
LONGEST_REASON: Final = 1000
"""Characters of what is said of a mistake: it may name properties, and the schema's values, of any length."""
_SIDE_BY_SIDE: Final = frozenset({
    "allOf", "anyOf", "contains", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "patternProperties",
    "then",
})  # fmt: skip
_AGAIN: Final = frozenset({"$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties"})
"""These apply subschemas a second time."""


class Schema:
    """A JSON Schema, of the draft that it names, else 2020-12. Raises ValueError: it cannot be used.

    A `$ref` to another document is not followed: a schema of an MCP server must not make this host read a URL or file.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        import jsonschema_rs  # noqa: PLC0415 -- takes 3 MB, which a Computer needs from its first call on

        self._alternatives = _alternatives(schema)
        # masked, as the value is the Agent's, may be long, and is logged
        self._validator = jsonschema_rs.validator_for(
            dict(schema), mask="the value", offline=True, pattern_options=jsonschema_rs.RegexOptions()
        )
        self.is_valid: Final[Callable[[Any], bool]] = self._validator.is_valid
        """Whether the schema takes a value. Raises UnicodeEncodeError: a name in it contains an unpaired surrogate."""
        self._error = jsonschema_rs.ValidationError

    def mistake(self, value: Mapping[str, Any]) -> tuple[list[str], str] | None:
        """The path of the first value that is wrong, and why; None: the schema takes all."""
        try:
            if self.is_valid(value):
                return None
            if self._alternatives * (1 + exact_json.written(value).count(b",")) > MOST_STEPS:
                return [], "does not fit the schema"
            self._validator.validate(value)
        except self._error as error:
            return [str(each) for each in error.instance_path], error.message[:LONGEST_REASON]
        except UnicodeEncodeError:  # a half of a surrogate pair in a name: left to the MCP server
            pass
        return None


def _alternatives(schema: Mapping[str, Any]) -> int:
    """How many subschemas stand side by side. Raises ValueError: too many, or nobody knows how many."""
    found, seen = 0, set[str]()
    waiting: list[tuple[Any, bool, tuple[str, ...]]] = [(dict(schema), False, ())]
    """With each: whether it stands in alternatives, and the `$ref`s that lead there."""
    while waiting:
        node, inside, refs = waiting.pop()
        if isinstance(node, list):
            waiting += ((each, inside, refs) for each in node)
        elif isinstance(node, dict):
            found += inside
            if found > MOST_ALTERNATIVES or (inside and not _AGAIN.isdisjoint(node)):
                raise ValueError("its alternatives multiply")
            waiting += ((inner, inside or key in _SIDE_BY_SIDE, refs) for key, inner in node.items())
            ref = node.get("$ref")
            if isinstance(ref, str) and (ref not in seen or (inside and refs.count(ref) < LEVELS)):
                seen.add(ref)
                waiting.append((_target(schema, ref), inside, (*refs, ref)))
    return found


def _target(schema: Mapping[str, Any], ref: str) -> Any:
    """What a `$ref` within a schema stands for. Raises ValueError: it stands for nothing in it."""
    start, *path = unquote(ref).split("/")
    node: Any = schema
    try:
        for step in path:
            node = node[int(step)] if isinstance(node, list) else node[step.replace("~1", "/").replace("~0", "~")]
    except (LookupError, TypeError, ValueError):
        start = ""
    if start != "#":
        raise ValueError(f"refers to {ref}, which is not in it")
    return node
