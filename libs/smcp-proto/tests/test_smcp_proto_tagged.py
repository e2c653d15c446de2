"""Unions by their `type`."""

from typing import Annotated, Literal

import pytest
from pydantic import Tag, TypeAdapter, ValidationError

from smcp_proto.schemas.base import Wire
from smcp_proto.validation import by_type, malformed


class Cat(Wire):
    type: Literal["cat"]


class Dog(Wire):
    type: Literal["dog"]


def pets() -> TypeAdapter[Cat | Dog]:
    return TypeAdapter(
        Annotated[Annotated[Cat, Tag("type=cat")] | Annotated[Dog, Tag("type=dog")], by_type("cat", "dog")]
    )


@pytest.mark.parametrize(("kind", "member"), [("cat", Cat), ("dog", Dog)])
def test_the_type_chooses_the_member_of_what_is_read_and_of_what_is_written(kind: str, member: type) -> None:
    pet = pets().validate_python({"type": kind})
    assert type(pet) is member
    assert type(pets().validate_python(pet)) is member
    assert pets().dump_python(pet) == {"type": kind}


@pytest.mark.parametrize("body", [{"type": "cow"}, {"type": 1}, {"type": None}, {}, "cat", ["cat"], None])
def test_an_unknown_union_type_is_refused_with_the_known_ones(body: object) -> None:
    with pytest.raises(ValidationError) as caught:
        pets().validate_python(body)
    assert malformed(caught.value).details == {"field": "type", "reason": "unknown or missing type; known are cat, dog"}
