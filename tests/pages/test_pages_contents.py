"""Every path in a Markdown page exists, and every command of ours in it is one that runs."""

import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pytest
import typer
from mcp.client.stdio import DEFAULT_INHERITED_ENV_VARS

from smcp_computer.config.file import parse_config
from tests.pages.markdown import ROOT, anchors, blocks, commands, links, pages, spans

PAGES: Final = pages()


def directories(parent: Path) -> list[str]:
    """Those of the repository; what is built is not there in a fresh clone."""
    return sorted(path.name for path in parent.iterdir() if path.is_dir() and path.name not in (".git", "build"))


TOPS: Final = "|".join(map(re.escape, directories(ROOT)))
_PATH: Final = re.compile(rf"(?:{TOPS})/[\w./*-]+")
_MODULE: Final = re.compile(r"[\w/-]+/\w+\.py")
_RELATIVE: Final = re.compile(r"[\w-]+/[\w./*-]+")
APPS: Final[Mapping[str, str]] = {
    "smcp": "smcp_standalone.main",
    "smcp-gateway": "smcp_gateway.main",
    "smcp-mcp": "smcp_mcp.main",
    "smcp-registry": "smcp_registry.main",
    "smcp-computer": "smcp_computer.main",
    "smcp-agent": "smcp_agent.cli.main",
}
_WRONG_USAGE: Final[Any] = typer.BadParameter.__mro__[1]
"""Click's UsageError: typer has a click of its own, and shows only this one of its errors."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_row_of_a_table_stands_in_one(page: Path) -> None:
    lines = ["", *page.read_text("utf-8").splitlines(), ""]
    first = [at for at, line in enumerate(lines) if line.startswith("|") and not lines[at - 1].startswith("|")]
    assert [lines[at] for at in first if re.fullmatch(r"\|[ :|-]+\|", lines[at + 1]) is None] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_path_and_link_exists(page: Path) -> None:
    missing = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and unquote(anchor) not in anchors(target)):
            missing.append(link)
    beside = directories(page.parent)
    for span in spans(page):
        if _PATH.fullmatch(span):
            found = ROOT.glob(span.rstrip("/"))
        elif _MODULE.fullmatch(span):
            found = ROOT.glob(f"*/*/src/**/{span}")
        elif _RELATIVE.fullmatch(span) and span.split("/")[0] in beside:
            found = page.parent.glob(span.rstrip("/"))
        else:
            continue
        if not any(found):
            missing.append(span)
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_has_valid_arguments(page: Path) -> None:
    """It is only parsed here, as the command itself would do it; `tests/e2e/test_e2e_docs_commands.py` runs it."""
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    wrong = []
    for words in commands(page):
        if words[0] == "make":
            wrong += [" ".join(words) for target in words[1:] if "=" not in target and target not in targets]
        elif words[0] in APPS and not set("…[") & {word[0] for word in words if word} and (why := refused(words)):
            wrong.append(f"{' '.join(words)}: {why}")
        elif words[0].startswith(("docker/", ".ci/", "deploy/")) and not (ROOT / words[0]).exists():
            wrong.append(words[0])
    assert wrong == []


def refused(words: list[str]) -> str:
    """Why a command does not take these words; empty where it does."""
    command: Any = typer.main.get_command(importlib.import_module(APPS[words[0]]).app)
    given, parent = words[1:], None
    while True:
        try:
            parent = command.make_context(words[0], list(given), parent=parent)
        except typer.Exit:
            return ""  # --version, --help
        except _WRONG_USAGE as error:
            return str(error.format_message())
        if not hasattr(command, "resolve_command") or not [*parent._protected_args, *parent.args]:
            return ""
        try:
            _, command, given = command.resolve_command(parent, [*parent._protected_args, *parent.args])
        except _WRONG_USAGE as error:
            return str(error.format_message())


@pytest.mark.parametrize("command", APPS)
def test_h_shows_the_help_of_a_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown: Any = typer.main.get_command(importlib.import_module(APPS[command]).app)
    with pytest.raises(SystemExit) as ended:
        shown(["-h"], prog_name=command)
    assert ended.value.code == 0
    assert "--help" in capsys.readouterr().out


def test_the_guide_of_a_computer_begins_with_links_to_its_sections_and_lists_what_a_server_inherits() -> None:
    text = (ROOT / "docs/guides/run-a-computer.md").read_text(encoding="utf-8")
    top, *sections = text.split("\n## ")
    linked = {link.partition("#")[2] for link in re.findall(r"\]\((.*?)\)", top)}
    assert {section.partition("\n")[0].lower().replace(" ", "-") for section in sections} <= linked
    (inherited,) = re.findall(r"the MCP SDK's default environment: (.*?)\.", text)
    assert set(re.findall(r"`(\w+)`", inherited)) == {*DEFAULT_INHERITED_ENV_VARS}


_CONFIGURATION: Final = re.compile(r'\s*\{\s*"servers"')


@pytest.mark.parametrize(
    "page", [page for page in PAGES if _CONFIGURATION.search(page.read_text(encoding="utf-8"))], ids=name
)
def test_every_configuration_is_valid(page: Path) -> None:
    texts = [block.text for block in blocks(page) if _CONFIGURATION.match(block.text)]
    assert [(text, warnings) for text in texts if (warnings := parse_config(text).warnings)] == []


def test_architecture_names_existing_files_and_functions() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(smcp_[\w/]+\.py)` \| (?:`(\w+)`)? *\|", text, re.MULTILINE)
    assert rows
    wrong = []
    for file, function in rows:
        found = [*ROOT.glob(f"libs/*/src/{file}"), *ROOT.glob(f"services/*/src/{file}")]
        source = found[0].read_text(encoding="utf-8") if found else ""
        if not source or (function and not re.search(rf"(def|class) {function}\b", source)):
            wrong.append((file, function))
    assert wrong == []


@pytest.mark.parametrize("command", APPS)
def test_no_usage_line_has_doubled_brackets(command: str) -> None:
    """Typer puts brackets around the metavar of an optional argument by itself."""

    def usages(found: Any, path: str, above: Any = None) -> Iterator[str]:
        context = found.make_context(path, [], parent=above, resilient_parsing=True)
        yield found.get_usage(context)
        for each, below in getattr(found, "commands", {}).items():
            yield from usages(below, each, context)

    shown = [*usages(typer.main.get_command(importlib.import_module(APPS[command]).app), command)]
    assert [usage for usage in shown if "[[" in usage] == []
