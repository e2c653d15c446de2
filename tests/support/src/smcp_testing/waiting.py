"""Waiting in tests: always for something, never longer than a bound."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")

_PAUSE_S = 0.01


@overload
async def eventually(predicate: Callable[[], Awaitable[T]], *, timeout: float = ..., message: str = ...) -> T: ...


@overload
async def eventually(predicate: Callable[[], T], *, timeout: float = ..., message: str = ...) -> T: ...


async def eventually(predicate: Callable[[], object], *, timeout: float = 15.0, message: str = "") -> object:
    """Poll until `predicate()` is true and return its value.

    The predicate may be async, and may raise AssertionError while it does not hold yet.

    Raises:
        AssertionError: it was not true within `timeout` seconds; says what it gave last.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    last: object = None
    while True:
        try:
            value = predicate()
            last = result = await value if isinstance(value, Awaitable) else value
            if result:
                return result
        except AssertionError as error:
            last = error
        if loop.time() >= deadline:
            raise AssertionError(f"{message or 'it did not become true'} within {timeout} s; last: {last!r}")
        await asyncio.sleep(_PAUSE_S)
