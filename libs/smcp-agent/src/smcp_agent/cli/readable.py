"""How the text of a window or a resource is shown to people: JSON indented, Markdown laid out, the rest as it is."""

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.highlighter import JSONHighlighter
from rich.segment import Segment
from rich.text import Text

from smcp_agent.cli.output import json_text, plain

LAID_OUT: Final = 256 * 1024
"""Characters: what is longer is shown as it is, since nobody reads it and it would take its time."""
MARKDOWN: Final = frozenset({"text/markdown", "text/x-markdown"})


def print_readable(text: str, mime_type: str | None = None) -> None:
    """Print `text` on standard output: for people at a terminal, else as it is; never with control characters."""
    shown = laid_out(text, mime_type) if sys.stdout.isatty() and len(text) <= LAID_OUT else None
    match shown:
        case None:
            typer.echo(plain(text))
        case Text():  # JSON: the terminal breaks its lines
            Console().print(shown, soft_wrap=True)
        case _:
            Console().print(shown)


def laid_out(text: str, mime_type: str | None = None) -> "Text | Page | None":
    """JSON (an object or an array) and Markdown as they are shown; None: as it is. What JSON is need not say so."""
    if _kind(mime_type) in MARKDOWN:
        return Page(text)
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        value = json.loads(text)
        said = json_text(value)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, Mapping) and isinstance(written := value.get("content_markdown"), str):
        return Page(written, {name: each for name, each in value.items() if name != "content_markdown"})
    return JSONHighlighter()(Text(said))


class Page:
    """Markdown, and before it what else is said of the page.

    Of HTML, which is left out elsewhere, nothing is hidden: a line break is one, the rest is shown as it is written.
    A link shows where it leads.
    """

    def __init__(self, markdown: str, about: Mapping[str, Any] | None = None) -> None:
        from rich.markdown import Markdown  # noqa: PLC0415 -- a tenth of the time that any command takes to start

        self.about = about or {}
        self.markdown = Markdown(markdown, hyperlinks=False)
        for token in self.markdown.parsed:
            for each in (token, *(token.children or ())):
                if each.type == "html_inline":
                    each.type = "hardbreak" if each.content in ("<br>", "<br/>", "<br />") else "text"
                elif each.type == "html_block":
                    each.type, each.info = "fence", "html"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for name, value in self.about.items():
            said = value if isinstance(value, str) else json_text(value, indent=None)
            yield Text(plain(f"{name}: {said}"), style="dim")
        if self.about:
            yield Text()
        for segment in console.render(self.markdown, options):
            # what Markdown writes as `&#x202e;` is a character only now
            yield segment if segment.control else Segment(plain(segment.text), segment.style)


def _kind(mime_type: str | None) -> str:
    return (mime_type or "").partition(";")[0].strip().lower()
