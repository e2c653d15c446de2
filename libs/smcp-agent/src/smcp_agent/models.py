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


def reply_of(model: type[Model], reply: Mapping[str, Any], what: str) -> Model:
    """A reply, read. `what` it is for people: who said it, and to what.

    Raises:
        BadReply: it is none; `details.field` names the first field that is wrong.
    """
    try:
        return model.model_validate(reply)
    except ValidationError as error:
        wrong = malformed(error)
        raise BadReply(f"{what} is malformed: {wrong.message}", details=wrong.details) from error


def replier(computer: str | None, server: str | None = None) -> str:
    """Who replied, for people, as far as that is known."""
    whose = "a Computer" if computer is None else f"Computer {computer!r}"
    return whose if server is None else f"MCP server {server!r} of {whose}"
