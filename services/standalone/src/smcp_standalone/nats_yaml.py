"""From the YAML of `smcp nats-config` to its model, and what is said of a file that is wrong. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from smcp_service.lifecycle import Failure
from smcp_service.settings import did_you_mean
from smcp_standalone.nats_model import COUNT, NAMES, Cluster, ComputerHost, JetStream, NatsModel, Tls, conflicts

_MAPPING: Final = "has to be a mapping, such as {key: value}"
_WANTED: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "list_type": "has to be a list, such as [a, b]",
    "string_type": "has to be a text (in quotes, where it looks like something else)",
    "bool_type": "has to be true or false",
    "too_short": "has to name at least one",
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
}
"""What is said for the kinds of mistakes that pydantic words for programmers."""
_FIELDS: Final[Mapping[str, type[ComputerHost | JetStream | Cluster | Tls]]] = {
    "computers": ComputerHost,
    "jetstream": JetStream,
    "cluster": Cluster,
    "tls": Tls,
}


class NatsConfigError(Failure):
    """The file cannot be used; the message has a line for each problem, which names the field."""

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def parse_model(text: str) -> NatsModel:
    """Read the YAML of `smcp nats-config`.

    Raises:
        NatsConfigError: it is not YAML, or fields are missing, unknown or wrong: all of them.
    """
    try:
        data = yaml.load(text, _Loader)  # noqa: S506 -- it is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise NatsConfigError(f"not YAML: {where}{error.problem}") from None
    except yaml.YAMLError as error:
        raise NatsConfigError(f"not YAML: {' '.join(str(error).split())}") from None
    except (RecursionError, ValueError):
        # The second: of something that looks like a date and is none.
        raise NatsConfigError("not YAML that can be read") from None
    if not isinstance(data, dict):
        raise NatsConfigError("not a YAML mapping with offices, registries, gateways, computers")
    return model_of(data)


def model_of(data: Mapping[Any, Any]) -> NatsModel:
    """The model of what stands in a file.

    Raises:
        NatsConfigError: as `parse_model`.
    """
    try:
        return NatsModel.model_validate(data)
    except ValidationError as error:
        found = {_path(item): _why(item) for item in _details(error) if item["loc"]}
    for path, why in conflicts(data):
        found.setdefault(path, why)
    raise NatsConfigError(*(f"{path}: {why}" for path, why in found.items()))


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice; YAML does, too, and PyYAML takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    raise yaml.constructor.ConstructorError(
                        problem=f"{key.value!r} stands twice in one mapping", problem_mark=key.start_mark
                    )
                keys.add(key.value)
        return super().construct_mapping(node, deep)


def _details(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_context=False, include_input=False)


def _path(error: ErrorDetails) -> str:
    above, *inside = error["loc"]
    tagged = above in ("registries", "gateways") and inside[:1] in ([COUNT], [NAMES])
    return ".".join(str(part) for part in (above, *(inside[1:] if tagged else inside)))


def _why(error: ErrorDetails) -> str:
    match error["type"]:
        case "extra_forbidden" | "invalid_key":
            *above, key = error["loc"]
            model = _FIELDS.get(str(above[0]), NatsModel) if above else NatsModel
            return f"is no field of this file{did_you_mean(str(key), model.model_fields)}"
        case "value_error":
            return error["msg"].removeprefix("Value error, ")
        case kind:
            return _WANTED.get(kind, "cannot be used")
