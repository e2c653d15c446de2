"""The Markdown pages of this repository, and what is in them."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT: Final = Path(__file__).parents[2]
_PARSER: Final = MarkdownIt().enable("table")


@dataclass(frozen=True)
class Block:
    """A fenced or indented block of code."""

    language: str
    text: str

    @property
    def lines(self) -> list[str]:
        """Its lines, those that end with a backslash joined with the next."""
        return self.text.replace("\\\n", " ").splitlines()


def pages() -> list[Path]:
    """All tracked pages, and those that will be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [ROOT / name for name in sorted(listed.stdout.splitlines()) if (ROOT / name).is_file()]


@cache
def _tokens(page: Path) -> list[Token]:
    return _PARSER.parse(page.read_text(encoding="utf-8"))


def links(page: Path) -> Iterator[str]:
    """Where its links go."""
    for token in _tokens(page):
        for child in token.children or ():
            if child.type == "link_open":
                yield str(child.attrs["href"])


def spans(page: Path) -> Iterator[str]:
    """What stands in its text as code."""
    for token in _tokens(page):
        yield from (child.content for child in token.children or () if child.type == "code_inline")


def blocks(page: Path) -> Iterator[Block]:
    for token in _tokens(page):
        if token.type in ("fence", "code_block"):
            yield Block(token.info.strip(), token.content)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of its headings."""
    tokens = _tokens(page)
    texts = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each command: no prompt, no variables before it, no redirection, no remark beside it."""
    for block in blocks(page):
        if block.language not in ("", "sh", "bash", "console"):
            continue
        for line in block.lines:
            shown, *_ = re.split(r" {2,}", line.strip().removeprefix("$ "))
            for part in re.split(r" && | \| |; ", shown):
                try:
                    words = shlex.split(part, comments=True)
                except ValueError:
                    continue  # text, in which an apostrophe is not a quote
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words = words[1:]
                words = words[: next((i for i, word in enumerate(words) if word in (">", "&", "2>&1")), len(words))]
                if words:
                    yield words
