"""The desktop of a Computer: the windows of its MCP servers (desktop.txt)."""

import asyncio
import hmac
import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Final

from smcp_agent.cache import AnswerCache, Query
from smcp_agent.errors import SmcpError
from smcp_agent.office import Office
from smcp_agent.rpc import JsonObject, RpcClient
from smcp_proto.schemas import GetDeskTopRet

_PROCESS_KEY: Final = secrets.token_bytes()

_UNSEEN: Final = r"[\s\u00ad\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff]*+"


def _in_any_form(word: str) -> str:
    """A pattern for the word in letters of either width, with unseen characters between them."""
    return _UNSEEN.join(f"[{letter}{chr(ord(letter) + 0xFEE0)}]" for letter in word)


_TAG: Final = re.compile(
    f"([<＜﹤])(?={_UNSEEN}[/／∕⁄]?{_UNSEEN}(?:{_in_any_form('window')}|{_in_any_form('desktop')}))",
    re.IGNORECASE,
)
"""What a model might read as one of our tags. Possessive, so that no text takes more than one pass."""

MAX_AGE_S: Final = 10.0
"""Not every MCP server announces that a window changed. A window is read again when it is older (seconds)."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Window:
    """A window of a desktop."""

    uri: str
    text: str
    """Empty where the window has none."""
    age: float = 0.0
    """How long before the answer it was read (seconds): its MCP server is slow. 0: it was read for the answer."""


def windows(desktop: Mapping[str, Any]) -> tuple[Window, ...]:
    """The windows of a desktop, each with its URI and its text apart."""
    parts = [entry.partition("\n\n") for entry in desktop["desktops"]]
    ages = chain(desktop.get("a2c_ages", ()), repeat(0.0))
    return tuple(Window(uri, text, age) for (uri, _, text), age in zip(parts, ages, strict=False))


def prompt_text(desktops: Mapping[str, Mapping[str, Any]]) -> str:
    """Desktops, by their Computers, as a block of text for a model's prompt; empty where no window is open.

    What a window shows was written by others. It can neither end its own block nor open another one's: the tags end
    with a code that it cannot know (`<window-3f9a1c20 uri="…">`), and what looks like a tag of ours in it gets a
    backslash behind the `<`. The same desktops give the same text, so that a model's cache of prompts holds.
    """
    opened = {computer: windows(desktop) for computer, desktop in desktops.items()}
    code = hmac.digest(_PROCESS_KEY, repr(opened).encode("utf-8", "surrogatepass"), "sha256").hex()[:8]
    lines = []
    for computer, its_windows in opened.items():
        lines += [f'<desktop-{code} computer="{_attribute(computer)}">'] if its_windows else []
        for window in its_windows:
            age = f' read="{window.age:.0f} s ago"' if window.age else ""
            lines.append(f'<window-{code} uri="{_attribute(window.uri)}"{age}>')
            lines += [_TAG.sub(r"\1\\", window.text), f"</window-{code}>"]
        lines += [f"</desktop-{code}>"] if its_windows else []
    return "\n".join(lines)


class DesktopMethods:
    """What `SmcpAgent` can do with desktops."""

    _rpc: RpcClient
    _answers: AnswerCache
    _room: Office

    async def get_desktop(self, computer: str, *, size: int | None = None, window: str | None = None) -> JsonObject:
        """A Computer's desktop, asked of it now: the protocol's GetDeskTopRet.

        `desktops` has one text for each window, in the Computer's order: its URI, then, where it has text, an empty
        line and the text. `a2c_missing` says how many windows could not be read, `a2c_ages` how long ago each was read
        (seconds) where an MCP server is slow. `size`: at most so many windows; `window`: only the one with this URI.
        Raises SmcpError: as `call_tool`.
        """
        query = self._rpc.query("client:get_desktop", computer, desktop_size=size, window=window)
        reply: GetDeskTopRet = await query
        return reply.model_dump(exclude_none=True)

    async def desktop(self, computer: str, *, max_age: float | None = MAX_AGE_S) -> JsonObject:
        """As `get_desktop`, from the cache where nothing changed since, nothing was missing (`a2c_missing`), and it was
        asked for at most `max_age` seconds ago (None: whenever; for MCP servers that announce every change)."""
        return await self._answers.get(
            Query("desktop", computer),
            lambda: self.get_desktop(computer),
            keep=lambda found: not (found.get("a2c_missing") or found.get("a2c_ages")),
            max_age=max_age,
        )

    async def desktop_prompt(self, computer: str | None = None, *, max_age: float | None = MAX_AGE_S) -> str:
        """The desktop of a Computer, or those of all that can be fetched, as `prompt_text` writes them; `max_age` as of
        `desktop`.

        Raises SmcpError: as `desktop`, where a Computer was named.
        """
        if computer is not None:
            return prompt_text({computer: await self.desktop(computer, max_age=max_age)})
        names = self._room.computers
        found = await asyncio.gather(*(self._desktop_or_none(name, max_age) for name in names))
        return prompt_text({name: desktop for name, desktop in zip(names, found, strict=True) if desktop is not None})

    async def _desktop_or_none(self, computer: str, max_age: float | None) -> JsonObject | None:
        try:
            return await self.desktop(computer, max_age=max_age)
        except SmcpError as error:
            logger.warning("no desktop of Computer %r: error %d: %s", computer, error.code, error.message)
            return None


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace("\n", " ")
