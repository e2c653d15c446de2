"""Building what goes over the wire, and reading what came, with the protocol's own models."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from smcp_agent.errors import BadReply
from smcp_proto.validation import malformed

Model = TypeVar("Model", bound=BaseModel)


def checked(model: type[Model], **fields: Any) -> Model:
    """A request with these fields.

    Raises:
        Malformed: the server would refuse it; `details.field` names the first field that is wrong.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise malformed(error) from error


def reply_of(model: type[Model], reply: Mapping[str, Any]) -> Model:
    """A reply, read.

    Raises:
        BadReply: it is not one.
    """
    try:
        return model.model_validate(reply)
    except ValidationError as error:
        raise BadReply(f"the reply is no {model.__name__}") from error
