"""Reshapes what a tool returned: `ret_object_mapper` first, then `vrl` (see docs/guides/reshape-results.md).

`mapped` is pure. Scripts in VRL run in processes of their own (`vrl_worker`, by anyio), as `vrl-python` holds the
interpreter's lock while it runs, and can only be ended from outside. The first result with a script starts one.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache, partial
from typing import Any, Final

import anyio
import orjson
from anyio import to_process

from smcp_bus import exact_json
from smcp_computer import vrl_worker

TRANSFORMED: Final = "a2c_vrl_transformed"
"""Key in a result's `meta`: what came out, as a JSON string."""
FAILED: Final = "a2c_vrl_failed"
"""Key in a result's `meta`, true: the script failed, and the result is as the MCP server gave it."""
MAX_BYTES: Final = 4 * 1024 * 1024
"""JSON that a mapper or a script gets or gives. VRL takes some 60 times that in memory, and about a second for it."""
MEMORY: Final = 1024 * 1024 * 1024
"""Bytes that a script's process may allocate (on macOS any number): four times what the largest event takes."""
PROCESSES: Final = 2
"""So that one slow script does not hold up all others."""

WORKER: Final = (sys.executable, "-P", "-m", "smcp_computer.vrl_worker")
COMPILE_S: Final = 5.0
_MISSING: Final = object()


class NotReshaped(Exception):
    """The script failed. The text is for the user of this host, and quotes nothing of the result."""


def mapper_problems(mapping: Mapping[str, Any], path: str) -> Iterator[str]:
    """What is wrong with a `ret_object_mapper`, with the path of each mistake."""
    for name, to in mapping.items():
        if isinstance(to, Mapping):
            yield from mapper_problems(to, f"{path}.{name}")
        elif to is not None and not (isinstance(to, str) and all(to.split("."))):
            yield f"{path}.{name}: must be the field's new name, null, or an object for the fields inside"


def vrl_problem(script: str) -> str | None:
    """Why a script cannot be compiled, with its line; None: it can. It blocks."""
    try:
        said = _compiled(script)
    except UnicodeError:
        return "is not text: it contains an unpaired surrogate"
    except subprocess.TimeoutExpired:
        return f"does not compile within {COMPILE_S:g} s"
    return None if said == "null" else said or "is too large, or nested too deeply"


@lru_cache(maxsize=64)
def _compiled(script: str) -> str:
    """In another process: the compiler ends its own where a script is nested too deeply, and holds up its threads."""
    command = [*WORKER, str(MEMORY)]
    return subprocess.run(  # noqa: PLW1510, S603 -- our own program; without output it has failed
        command, input=script.encode(), capture_output=True, env={}, timeout=COMPILE_S
    ).stdout.decode()


def mapped(value: Any, mapping: Mapping[str, Any]) -> Any:
    """A JSON value with its fields renamed, moved and left out; `value` itself stays as it is."""
    if isinstance(value, list):
        return [mapped(each, mapping) for each in value]
    if not isinstance(value, dict):
        return value
    fields = dict(value)
    for path, inside in mapping.items():
        if isinstance(inside, Mapping):
            holder, name = _holder(fields, path)
            if name in holder:
                holder[name] = mapped(holder[name], inside)
    moves = {path: to for path, to in mapping.items() if not isinstance(to, Mapping)}
    taken: dict[str, Any] = {}
    for path in sorted(moves, key=lambda path: -path.count(".")):  # what is inside another one first
        holder, name = _holder(fields, path)
        taken[path] = holder.pop(name, _MISSING)
    for path, to in moves.items():
        if to is not None and taken[path] is not _MISSING:
            holder, name = _holder(fields, to, create=True)
            holder[name] = taken[path]
    return fields


def _holder(fields: dict[str, Any], path: str, *, create: bool = False) -> tuple[dict[str, Any], str]:
    """The object with the last field of `path`, and that field's name; objects on the way are copied.

    A name with dots in it is found before a path. Where the path ends too early: an object that is not there.
    """
    *outer, last = [path] if path in fields else path.split(".")
    for name in outer:
        inner = fields.get(name)
        if not isinstance(inner, dict) and not create:
            return {}, last
        fields[name] = inner = dict(inner) if isinstance(inner, dict) else {}
        fields = inner
    return fields, last


def value_of(result: Mapping[str, Any]) -> Any:
    """The object or list that a tool returned: its structured content, else the JSON of its only text, else None."""
    if (structured := result.get("structuredContent")) is not None:
        return structured
    content = result.get("content")
    texts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"] if content else []
    if len(texts) != 1:
        return None
    with suppress(ValueError, KeyError, AttributeError):
        value = exact_json.read(texts[0]["text"].encode())
        return value if isinstance(value, dict | list) else None
    return None


@dataclass(eq=False)
class Results:
    """Applies a server's settings to the results of its tools, in up to `PROCESSES` processes that run scripts, started
    when they are needed.

    `run_s`: how long a script may take; the start of its process comes on top.
    """

    _: KW_ONLY
    run_s: float
    max_bytes: int = MAX_BYTES
    memory: int = MEMORY

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(PROCESSES)
        self._processes = anyio.CapacityLimiter(PROCESSES)

    async def reshaped(
        self,
        result: dict[str, Any],
        *,
        mapper: Mapping[str, Any] | None,
        vrl: str | None,
        replace: bool,
        tool: str,
        params: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Add the transformed value to a result's `meta`, or replace its content by it (`replace`). Failed results stay
        as they are. Raises NotReshaped: the Agent gets the original with `FAILED` in its `meta`."""
        if result.get("isError") is True:
            return result
        # in a thread: an object of some MB takes a second, in which others get their answers
        value = await asyncio.to_thread(_mapped_value, result, mapper) if mapper else None
        if vrl:
            event = result if value is None else {**result, "structuredContent": value}
            value = await self.run(vrl, {**event, "tool_name": tool, "parameters": params})
        elif value is None:
            return result
        written = exact_json.written(value).decode()
        if len(written) > MAX_BYTES:
            raise NotReshaped(f"the transformed result is larger than {MAX_BYTES} bytes")
        if not replace:
            return {**result, "meta": {**(result.get("meta") or {}), TRANSFORMED: written}}
        rest = {key: part for key, part in result.items() if key != "structuredContent"}
        content = value.get("content") if isinstance(value, dict) else None
        if isinstance(content, list) and all(isinstance(part, dict) and "type" in part for part in content):
            kept = {key: value[key] for key in ("content", "structuredContent") if value.get(key) is not None}
            return {**rest, **kept}
        structured = {"structuredContent": value} if isinstance(value, dict) else {}
        return {**rest, "content": [{"type": "text", "text": written}], **structured}

    async def run(self, script: str, event: Mapping[str, Any]) -> Any:
        """What the script makes of the event. Raises NotReshaped."""
        request = exact_json.written(event)
        if len(request) > self.max_bytes:
            raise NotReshaped(f"the result has more than {self.max_bytes} bytes")
        run = partial(vrl_worker.run, script, request, self.max_bytes, self.memory)
        async with self._slots:
            try:
                await to_process.run_sync(vrl_worker.prepare, self.memory, limiter=self._processes)
                async with asyncio.timeout(self.run_s):
                    made, why = await to_process.run_sync(run, cancellable=True, limiter=self._processes)
            except TimeoutError:
                raise NotReshaped(f"the script did not end within {self.run_s:g} s") from None
            except (anyio.BrokenWorkerProcess, MemoryError):
                raise NotReshaped("the script took too much memory, or its process was ended") from None
        if why:
            raise NotReshaped(why)
        return orjson.loads(made)


def _mapped_value(result: Mapping[str, Any], mapper: Mapping[str, Any]) -> Any:
    value = value_of(result)
    if value is None:
        return None
    if len(exact_json.written(value)) > MAX_BYTES:
        raise NotReshaped(f"the result has more than {MAX_BYTES} bytes")
    return mapped(value, mapper)
