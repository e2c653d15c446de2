"""Text as it has to be written in Markdown (CommonMark, and the tables of GitHub), so that it is read back as it was.

What Markdown itself does not keep is left out: spaces at the ends of lines, and more than one empty line.
"""

import re
from typing import Final
from urllib.parse import quote

# an underscore between letters or digits says nothing; `$` begins a formula (finder.txt)
_INLINE: Final = re.compile(r"[\\`*\[\]<~$]|(?<![^\W_])_|_(?![^\W_])|&(?=[#0-9A-Za-z])")
_LINES: Final = re.compile(r"\r\n?|\n")
_EMPTY_LINES: Final = re.compile(r"\n{2,}")
_BLOCK_STARTS: Final = re.compile(
    r"(?=#{1,6}(?:[ \t]|$))"  # a heading
    r"|(?=>)"  # a quotation
    r"|(?=[-+](?:[ \t]|$))"  # a list
    r"|(?=[:|\t ]*-)(?=[-:|\t ]*$)|(?==+$)"  # a rule, the line below a heading, or below the head of a table
)
_NUMBER: Final = re.compile(r"([0-9]{1,9})([.)](?:[ \t]|$))")
_NOT_IN_URL: Final = re.compile(r"[\x00-\x20\x7f<>\\]")
_IN_URL: Final = re.compile(r"[()]|&(?=[#0-9A-Za-z])")
_NOT_IN_INFO: Final = re.compile(r"[^\w+#.-]")
_BACKTICKS: Final = re.compile(r"`+")
_DOLLAR: Final = re.compile(r"\\.|\$", re.DOTALL)


def inline(text: str) -> str:
    """Return text for one line: of a heading, a link, a bracket. Line breaks become spaces."""
    return _escaped(" ".join(line for line in _lines(text) if line))


def paragraphs(text: str) -> str:
    """Return text for lines of its own, at the left edge: line breaks and empty lines stay."""
    lines = "\n".join(_line(line) for line in _lines(text)).strip("\n")
    return _EMPTY_LINES.sub("\n\n", lines)


def cell(text: str) -> str:
    """Return text for a cell of a table. A line break becomes `<br>`."""
    return "<br>".join(map(_escaped, _lines(text.strip()))).replace("|", r"\|")


def heading(text: str) -> str:
    """Return text for a heading, whose own `#` at the end would be taken for its closing."""
    return re.sub(r"#$", r"\\#", inline(text))


def destination(url: str) -> str:
    """Return a URL for the round brackets of a link or an image."""
    return _IN_URL.sub(r"\\\g<0>", _NOT_IN_URL.sub(lambda match: quote(match[0]), url))


def fenced(code: str, language: str) -> str:
    """Return code between fences that are longer than any run of back-ticks in it."""
    fence = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(code)), default=0))
    code = _LINES.sub("\n", code)
    end = "" if not code or code.endswith("\n") else "\n"
    return f"{fence}{_NOT_IN_INFO.sub('', language)}\n{code}{end}{fence}"


def formula(expression: str) -> str:
    """Return an expression (LaTeX) for between two `$`: only these are escaped, and line breaks become spaces."""
    line = " ".join(line for line in _lines(expression) if line)
    return _DOLLAR.sub(lambda match: r"\$" if match[0] == "$" else match[0], line)


def _lines(text: str) -> list[str]:
    return [line.strip(" \t") for line in _LINES.split(text)]


def _escaped(text: str) -> str:
    return _INLINE.sub(r"\\\g<0>", text)


def _line(text: str) -> str:
    escaped = _escaped(text)
    if _BLOCK_STARTS.match(escaped):
        return "\\" + escaped
    return _NUMBER.sub(r"\1\\\2", escaped, count=1) if _NUMBER.match(escaped) else escaped
