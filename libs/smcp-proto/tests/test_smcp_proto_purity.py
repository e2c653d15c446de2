"""The contract is pure: it can be imported anywhere, and nothing in it waits, logs or reads a clock."""

import subprocess
import sys

FORBIDDEN = ["asyncio", "socket", "subprocess", "logging", "orjson", "structlog", "nats", "socketio", "opentelemetry"]


MODULES = [
    "catalog",
    "schemas",
    "uris",
    "validation",
    "errors",
    "desktop",
    "finder",
]


def test_importing_smcp_proto_loads_no_module_with_effects() -> None:
    # what pydantic itself imports is not ours, so it comes first
    code = (
        "import sys, pydantic, pydantic.fields, pydantic.main, pydantic.type_adapter, enum, hashlib, urllib.parse\n"
        "class _M(pydantic.BaseModel):\n    x: int\n"
        "before = set(sys.modules)\n"
        f"import {', '.join(f'smcp_proto.{module}' for module in MODULES)}\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    new = {name.split(".")[0] for name in run.stdout.split()}
    assert not new & set(FORBIDDEN)
