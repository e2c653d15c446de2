"""Payloads of events that are almost right: fields missing, of another kind, or unknown, and text that is no JSON."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Place = tuple[str, ...]
"""Of a field: the names that lead to it."""

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
EDGES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, 0, -1, 1, 3601, 10**30, 1e400, float("nan"), 0.5, "", "x" * 129, "x" * 513, "\x00", "a\nb",
     "\ud800", "\u202e", "*", ">", "../..", [], {}, [[]], {"": None}, "client:tool_call", "null", "__proto__"]
)  # fmt: skip
JUNK = st.recursive(
    EDGES | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


def nested(levels: int) -> str:
    return '{"d":' * levels + "null" + "}" * levels


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Of all fields, at any depth."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*at, name)
            yield from places(inner, (*at, name))


def inside(value: Any, place: Place) -> dict[str, Any] | None:
    """What the field stands in; None where there is no object (any more)."""
    for name in place[:-1]:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else None


@st.composite
def changed(draw: st.DrawFn, good: dict[str, Any], schema: dict[str, Any]) -> Any:
    """The good payload with some fields missing, some of another kind, some of ours, at any depth; or as it is."""
    payload = copy.deepcopy(good)
    fields = sorted({*places(good), *((name,) for name in schema.get("properties", {}))})
    for place in draw(st.lists(st.sampled_from(fields), max_size=3, unique=True)):
        here = inside(payload, place)
        how = draw(st.sampled_from(["drop", "junk", "beside"]))
        if here is None:
            continue
        if how == "drop":
            here.pop(place[-1], None)
        elif how == "junk":
            here[place[-1]] = draw(JUNK)
        else:
            here.update(draw(st.dictionaries(ANY_TEXT, JUNK, min_size=1, max_size=2)))
    if draw(st.booleans()):
        payload |= draw(st.dictionaries(ANY_TEXT, JUNK, max_size=3))
    return payload


@st.composite
def bodies(draw: st.DrawFn, good: dict[str, Any], schema: dict[str, Any]) -> str:
    """What stands where the argument should: JSON of the wrong kind mostly, and text that is none."""
    text = json.dumps(draw(changed(good, schema) | JUNK), ensure_ascii=True)
    match draw(st.integers(0, 9)):
        case 0:
            cut = draw(st.integers(0, len(text)))
            return text[:cut]
        case 1:
            return draw(st.text(st.characters(codec="utf-8"), max_size=40))
        case 2:
            return text + "," + text
        case 3:
            field, levels = draw(st.sampled_from(sorted(good))), draw(st.sampled_from([127, 130, 1000, 20_000]))
            return json.dumps(good)[:-1] + f",{json.dumps(field)}:{nested(levels)}}}"
        case 4:
            return json.dumps({**good, draw(st.sampled_from(sorted(good))): "x" * 70_000})
        case _:
            return text


def mended(payload: dict[str, Any], place: Place, good: dict[str, Any]) -> dict[str, Any]:
    """The payload with that field as it is in the good one."""
    payload = copy.deepcopy(payload)
    here, there = inside(payload, place), inside(good, place)
    assert there is not None
    if here is not None:
        here[place[-1]] = there[place[-1]]
    return payload
