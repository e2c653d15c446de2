"""`smcp-agent mcp install`: what it writes into the files of MCP clients, and what it leaves alone."""

import errno
import json
import os
import re
import shutil
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from smcp_agent.cli.main import app
from smcp_agent.cli.mcp_command import CLIENTS

CLAUDE_DESKTOP = {
    "globalShortcut": "Ctrl+Space",
    "mcpServers": {
        "filesystem": {
            "command": "npx",
            "args": ["-y", "@modelcontextprotocol/server-filesystem", "/srv/ann/Documents"],
            "env": {"API_KEY": "kept"},
        }
    },
}
CLAUDE_CODE = {
    "numStartups": 42,
    "projects": {"/srv/ann/code": {"allowedTools": [], "mcpServers": {}, "hasTrustDialogAccepted": True}},
    "mcpServers": {"docs": {"type": "http", "url": "https://mcp.example.com/mcp", "headers": {"X-Team": "ü"}}},
}
CURSOR = {"mcpServers": {"github": {"command": "docker", "args": ["run", "-i"], "env": {"T": "${env:GH}"}}}}
VSCODE = {
    "inputs": [{"type": "promptString", "id": "key", "description": "A key", "password": True}],
    "servers": {"memory": {"type": "stdio", "command": "npx", "args": ["-y", "server-memory"]}},
}
ZED = {
    "theme": {"mode": "system", "light": "One Light", "dark": "One Dark"},
    "context_servers": {"postgres": {"source": "custom", "command": "pg-mcp", "args": [], "env": {}}},
}
CODEX = """\
# my settings
model = "gpt-5.5"  # the large one

[projects."/srv/ann/code"]
trust_level = "trusted"

[mcp_servers.context7]
command = "npx"
args = ["-y", "@upstash/context7-mcp"]

[mcp_servers.context7.env]
KEY = "kept"
"""
FILES: dict[str, tuple[str, dict[str, Any] | str]] = {
    "claude-desktop": (".config/Claude/claude_desktop_config.json", CLAUDE_DESKTOP),
    "claude-code": (".claude.json", CLAUDE_CODE),
    "cursor": (".cursor/mcp.json", CURSOR),
    "vscode": (".config/Code/User/mcp.json", VSCODE),
    "codex": (".codex/config.toml", CODEX),
    "zed": (".config/zed/settings.json", ZED),
}
ARGUMENTS = ["mcp", "--url", "http://127.0.0.1:8000", "--office", "lab"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "SMCP_TOKEN", "SMCP_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def install(client: str, *options: str, says: str | None = None) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    result = CliRunner().invoke(app, ["--office", "lab", "mcp", "install", client, *options], input=says)
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


def put(home: Path, client: str) -> Path:
    """The client's file as the client documents it."""
    where, content = FILES[client]
    path = home / where
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content, indent=4, ensure_ascii=False)
    path.write_text(text, encoding="utf-8")
    return path


def read(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)


@pytest.mark.parametrize("client", FILES)
def test_the_entry_is_added_and_the_rest_of_the_file_stays(home: Path, client: str) -> None:
    path = put(home, client)
    before, former = path.read_text(encoding="utf-8"), read(path)
    code, out, err = install(client, "--yes")
    assert (code, str(path) in err) == (0, True)
    after = read(path)
    entry = after[CLIENTS[client].section].pop("smcp")
    assert after == former
    assert Path(entry["command"]).name == "smcp-agent"
    assert entry["args"] == ARGUMENTS
    assert {**CLIENTS[client].fields, "command": entry["command"], "args": ARGUMENTS} == entry
    assert "--office" in out
    [backup] = path.parent.glob(f"{path.name}.*.bak")
    assert backup.read_text(encoding="utf-8") == before


@pytest.mark.parametrize("client", FILES)
def test_a_file_that_is_missing_is_made(home: Path, client: str) -> None:
    assert install(client, "--yes")[0] == 0
    path = home / FILES[client][0]
    assert list(read(path)) == [CLIENTS[client].section]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir() if path.name in each.name] == [path.name]


@pytest.mark.parametrize("client", FILES)
def test_print_gives_the_entry_and_writes_nothing(home: Path, client: str) -> None:
    code, out, _ = install(client, "--print")
    parsed = tomllib.loads(out) if client == "codex" else json.loads(out)
    assert (code, list(parsed[CLIENTS[client].section])) == (0, ["smcp"])
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "why"),
    [(["--typo"], "--typo"), (["--max-tools", "many"], "--max-tools"), (["--tools", "search", "git"], "'git'")],
)
def test_an_option_that_smcp_agent_mcp_would_refuse_is_refused_and_nothing_is_written(
    home: Path, more: list[str], why: str
) -> None:
    code, out, err = install("cursor", "--yes", "--", *more)
    assert (code, out, why in err) == (2, "", True)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("client", FILES)
def test_install_writes_once_and_replaces_no_entry(home: Path, client: str) -> None:
    path = put(home, client)
    install(client, "--yes")
    written = path.read_bytes()
    code, _, err = install(client)
    assert (code, path.read_bytes()) == (0, written)
    assert "there already" in err
    code, _, err = install(client, "--yes", "--url", "http://lab.example:8000")
    assert (code, path.read_bytes()) == (1, written)
    assert "'smcp' is there already: remove it, or choose another name with --entry" in err


def test_options_after_a_double_dash_stand_in_the_entry() -> None:
    _, out, _ = install("cursor", "--print", "--", "--name", "desk", "--always-list", "git_*")
    arguments = json.loads(out)["mcpServers"]["smcp"]["args"]
    assert arguments == [*ARGUMENTS, "--name", "desk", "--always-list", "git_*"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--token", "smcp_secret"], "Invalid value for --token: would stand in the client's file"),
        (["--url", "http://me:smcp_secret@localhost:8000"], "its login would stand in the client's file"),
    ],
)
@pytest.mark.parametrize("how", ["--yes", "--print"])
@pytest.mark.parametrize("client", FILES)
def test_no_secret_is_written_into_a_clients_file_or_shown(
    home: Path, client: str, how: str, options: list[str], why: str
) -> None:
    path = put(home, client)
    before = path.read_bytes()
    code, out, err = install(client, how, *options)
    assert (code, out, path.read_bytes()) == (2, "", before)
    assert why in re.sub(r"\W*│\W*", " ", err)
    assert "smcp_secret" not in err


def test_an_entry_names_the_token_file_and_not_the_token(home: Path) -> None:
    key = home / "key"
    key.write_text("smcp_secret\n", encoding="utf-8")
    code, out, _ = install("claude-desktop", "--token", "smcp_secret", "--token-file", str(key), "--print")
    entry = json.loads(out)["mcpServers"]["smcp"]
    assert (code, entry["args"], "env" in entry) == (0, [*ARGUMENTS, "--token-file", str(key)], False)


@pytest.mark.parametrize("how", ["--yes", "--print"])
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--url", "foo"], "error 400: url: 'foo' is not like http://host:port"),
        (["--office", ""], "error 400: office_id: "),
        (["--name", ""], "error 400: name: "),
        (["--token-file", "nofile"], "error 503: --token-file nofile: cannot be read: No such file or directory"),
        (["--token-file", "/dev/null"], "error 503: --token-file /dev/null: has to be 1 to 8192 visible"),
    ],
)
def test_an_entry_that_could_not_work_is_not_made(home: Path, how: str, options: list[str], why: str) -> None:
    code, out, err = install("cursor", how, *options)
    assert (code, out, list(home.iterdir())) == (2, "", [])
    assert err.startswith(why)


@pytest.mark.parametrize(
    ("client", "content", "why"),
    [
        (
            "cursor",
            '{"mcpServers": {',
            "it is not JSON (Expecting property name",
        ),
        ("cursor", '{"mcpServers": []}', "it has no object 'mcpServers'"),
        ("cursor", "[]", "it has no object 'mcpServers'"),
        ("cursor", "\udc80", "it is not UTF-8"),
        ("cursor", '{"mcpServers": {"smcp": {"command": "mine"}}}', "'smcp' is there already"),
        ("codex", "model = ", "it is not TOML ("),
        (
            "codex",
            'mcp_servers = { a = { command = "x" } }',
            "a part of it would be lost, such as comments: add the entry by hand",
        ),
        ("codex", "mcp_servers = 5", "it has no object 'mcp_servers'"),
        ("cursor", '{"a": {"b": 1, "b": 2}}', "'b' stands twice in one object"),
    ],
)
def test_a_file_that_would_lose_something_is_left_as_it_is(home: Path, client: str, content: str, why: str) -> None:
    path = put(home, client)
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    code, out, err = install(client, "--yes")
    assert (code, path.read_bytes()) == (1, content.encode("utf-8", "surrogateescape"))
    assert f"{path} is left as it is: " in err
    assert why in err
    assert "--office" in out
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("client", "content", "after"),
    [
        (
            "zed",
            '// Zed settings\n{\n  "theme": "One // Dark", // mine\n  "context_servers": {},\n}\n',
            '// Zed settings\n{\n  "theme": "One // Dark", // mine\n  "context_servers": {\n    ENTRY\n  },\n}\n',
        ),
        (
            "zed",
            '{\n  // "context_servers": {}\n  "a": {"context_servers": {}},\n  "n": 0.1234567890123456789,\n}\n',
            (
                '{\n  "context_servers": {\n    ENTRY\n  },\n  // "context_servers": {}\n'
                '  "a": {"context_servers": {}},\n  "n": 0.1234567890123456789,\n}\n'
            ),
        ),
        (
            "vscode",
            '{\r\n\t"servers": { /* none yet */ }\r\n}\r\n',
            '{\r\n\t"servers": {\n\t\tENTRY /* none yet */ }\r\n}\r\n',
        ),
        (
            "cursor",
            '{"mcpServers": {"a": {"command": "\\ud800"}}, "b": 1e400}',
            '{"mcpServers": {\n    ENTRY,"a": {"command": "\\ud800"}}, "b": 1e400}',
        ),
        ("cursor", "{}", '{\n  "mcpServers": {\n    ENTRY\n  }\n}'),
    ],
)
def test_all_that_stood_in_a_file_of_json_stays_as_it_was_written(
    home: Path, client: str, content: str, after: str
) -> None:
    path = put(home, client)
    path.write_bytes(content.encode())
    assert install(client, "--yes")[0] == 0
    found = path.read_bytes().decode()
    entry = re.search(r'"smcp": \{.*?\n[ \t]+\}', found, re.DOTALL)
    assert entry
    assert found.replace(entry[0], "ENTRY") == after
    written = json.loads(f"{{{entry[0]}}}")["smcp"]
    assert written["args"] == ARGUMENTS
    assert "there already" in install(client)[2]


def test_a_directory_that_cannot_be_written_is_a_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(home, "cursor")

    def refused(*_: Any, **__: Any) -> None:  # a file system for reading only
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for method in ("touch", "unlink"):
        monkeypatch.setattr(Path, method, refused)
    code, _, err = install("cursor", "--yes")
    assert (code, "it cannot be written: Read-only file system" in err) == (1, True)


def test_the_copy_of_a_private_file_is_private_before_it_has_its_text(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(home, "cursor").chmod(0o600)
    copy, modes = shutil.copy2, []

    def copied(source: Path, to: Path) -> None:
        modes.append(stat.S_IMODE(to.stat().st_mode))
        copy(source, to)

    monkeypatch.setattr("shutil.copy2", copied)
    assert install("cursor", "--yes")[0] == 0
    assert modes == [0o600]


def test_each_former_file_has_a_copy(home: Path) -> None:
    path = put(home, "cursor")
    contents = set()
    for name in ("a", "b", "c"):
        contents.add(path.read_text(encoding="utf-8"))
        assert install("cursor", "--yes", "--entry", name)[0] == 0
    assert {copy.read_text(encoding="utf-8") for copy in path.parent.glob("*.bak")} == contents
    assert len(contents) == 3


def test_a_link_that_leads_to_itself_is_no_reason_to_fail(home: Path) -> None:
    path = home / FILES["cursor"][0]
    path.parent.mkdir()
    path.symlink_to(path)
    assert install("cursor", "--print")[0] == 0


def test_nothing_is_written_without_a_yes(home: Path) -> None:
    path = put(home, "cursor")
    before = path.read_bytes()
    assert install("cursor", says="n\n")[0] == 1
    assert path.read_bytes() == before
    assert install("cursor", says="y\n")[0] == 0
    assert path.read_bytes() != before


def test_a_link_to_the_file_stays_one(home: Path) -> None:
    path = put(home, "zed")
    target = home / "dotfiles.json"
    path.rename(target)
    path.symlink_to(target)
    assert install("zed", "--yes")[0] == 0
    assert path.is_symlink()
    assert "smcp" in read(target)["context_servers"]


def test_what_cannot_be_written_is_an_error_in_one_line(home: Path) -> None:
    (home / ".cursor").write_text("a file where a directory should be")
    code, _, err = install("cursor", "--yes")
    assert code == 1
    assert f"{home / '.cursor' / 'mcp.json'} is left as it is: it cannot be written: " in err


def test_a_write_that_fails_leaves_no_other_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(home, "cursor")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert install("cursor", "--yes")[2].endswith("it cannot be written: No space left on device")
    assert list(path.parent.iterdir()) == [path]


def test_an_unknown_client_is_refused_with_those_that_are_known() -> None:
    code, _, err = install("emacs")
    assert code == 2
    assert all(client in err for client in ("claude-desktop", "codex", "zed"))
