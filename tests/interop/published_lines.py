"""What the processes of the published Agents say: lines of JSON. Runs in their environment (`bench.published_env`)."""

import dataclasses
import json
import sys
import threading
from typing import Any

from a2c_smcp.utils.blob import PutBlobResult
from pydantic import BaseModel

MARK = "@ "
"""Begins a line of ours: the package logs to standard output."""
NAMESPACE = "/smcp"
SHOWN = ("code", "reason", "mcp_server", "client_version", "min_supported", "max_supported")
"""The fields of a reported exception."""
SPEAKING = threading.Lock()


def say(value: Any) -> None:
    """Write one line, whatever other threads say."""
    with SPEAKING:
        sys.stdout.write(f"\n{MARK}{json.dumps(value)}\n")
        sys.stdout.flush()


def tell(event: str, payload: Any) -> None:
    say({"told": event, "payload": payload})


def plain(value: Any) -> Any:
    """What the package returned, as JSON has it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return dataclasses.asdict(value) if isinstance(value, PutBlobResult) else value


def raised(error: Exception) -> dict[str, Any]:
    """The fields of a reported exception of the package."""
    said = {"raised": type(error).__name__, "text": str(error)}
    return said | {name: getattr(error, name) for name in SHOWN if hasattr(error, name)}
