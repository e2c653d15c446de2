"""The parameters of `smcp-agent call`."""

import json
import os
from base64 import b64encode
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from smcp_agent.cli.main import app
from smcp_agent.cli.output import save_binaries
from smcp_agent.cli.parameters import convert_texts, read_parameters
from smcp_agent.results import call_result
from smcp_testing.agent_command import ended, run, start
from smcp_testing.fake_gateway import fake_gateway, tool
from smcp_testing.waiting import eventually

JsonObject = dict[str, Any]
SCHEMA: JsonObject = {
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "rate": {"type": "number"},
        "on": {"type": "boolean"},
        "many": {"type": "array"},
        "about": {"type": "object"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"type": ["string", "integer"]},
        "kind": {"$ref": "#/$defs/Kind"},
        "any": {},
        "open": {"anyOf": [{"type": "integer"}, {}]},
    },
    "$defs": {"Kind": {"enum": ["1", "2"], "type": "string"}},
}


def typed_words(params: str, words: list[str]) -> JsonObject:
    given, texts = read_parameters(params, words)
    return given | convert_texts(texts, SCHEMA)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("text=12", "12"),
        ("text=", ""),
        ("text=a=b", "a=b"),
        ("text=@@home", "@home"),
        ("count=12", 12),
        ("count=-1", -1),
        ("rate=12", 12),
        ("rate=1.5", 1.5),
        ("on=true", True),
        ('many=["a"]', ["a"]),
        ('about={"a": 1}', {"a": 1}),
        ("maybe=null", None),
        ("either=12", 12),
        ("either=x", "x"),
        ("kind=1", "1"),
        ("any=[1]", [1]),
        ("any=some words", "some words"),
        ("open=words", "words"),
        ("other=true", True),
        ("other=words", "words"),
    ],
)
def test_a_value_has_the_type_of_the_tools_schema(word: str, value: Any) -> None:
    assert typed_words("{}", [word]) == {word.partition("=")[0]: value}


@pytest.mark.parametrize(
    ("words", "named", "why"),
    [
        (["count=x"], "count", "'x' is not of type integer"),
        (["count=1.5"], "count", "'1.5' is not of type integer"),
        (["count=true"], "count", "'true' is not of type integer"),
        (["on=1"], "on", "is not of type boolean"),
        (["many=a"], "many", "is not of type array"),
        (["maybe=x"], "maybe", "is not of type integer or null"),
        (["text"], "text", "is not of the form KEY=VALUE"),
        (["=x"], "=x", "is not of the form KEY=VALUE"),
        (["text=a", "text=b"], "text=b", "is given twice"),
        (["text=@/none/here"], "text", "'/none/here': cannot be read: No such file"),
        (["@/none/here"], "@/none/here", "cannot be read"),
        (["@"], "@", "cannot be read"),
    ],
)
def test_a_wrong_parameter_is_refused_by_its_name(words: list[str], named: str, why: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        typed_words("{}", words)
    assert caught.value.param_hint == named
    assert why in caught.value.message


def test_values_and_objects_come_from_files_and_single_values_win(tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text('{"text": "of the file", "count": 1}')
    (tmp_path / "note").write_text("several\nlines\n")
    words = ["count=3", f"@{tmp_path / 'all.json'}", f"text=@{tmp_path / 'note'}"]
    assert typed_words('{"x": 1, "count": 2}', words) == {"x": 1, "text": "several\nlines\n", "count": 3}
    (tmp_path / "handles").write_text("@@not read on")
    assert typed_words("{}", [f"text=@{tmp_path / 'handles'}"]) == {"text": "@@not read on"}
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(typer.BadParameter, match="it is not UTF-8 text"):
        typed_words("{}", [f"text=@{tmp_path / 'bytes'}"])
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(typer.BadParameter, match="not a JSON object"):
        typed_words("{}", [f"@{tmp_path / 'list.json'}"])


@pytest.mark.parametrize(
    "schema", [{"properties": []}, {"properties": {"x": 1}}, {"$defs": 1, "properties": {"x": {"$ref": "#"}}}]
)
def test_a_schema_that_is_none_leaves_the_values_to_json(schema: JsonObject) -> None:
    assert convert_texts({"x": "12", "y": "words"}, schema) == {"x": 12, "y": "words"}


async def test_parameters_are_typed_as_words_and_read_from_standard_input() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("add", **SCHEMA)]
        code, _, err = await run(gateway, "call", "red", "add", "count=2", "text=2", "--timeout", "2.5")
        assert code == 0, err
        read, write = os.pipe()
        os.write(write, b'{"count": 4}')
        os.close(write)
        command = await start(gateway, "call", "red", "add", "-", stdin=read, forked=True)
        os.close(read)
        assert (await ended(command))[0] == 0
        asked = [(data["params"], data["timeout"]) for data in gateway.seen("client:tool_call")]
        assert asked == [({"count": 2, "text": "2"}, 3), ({"count": 4}, 60)]
        code, out, err = await run(gateway, "call", "red", "add", "count=many")
        assert (code, out) == (2, b"")
        assert "count" in err
        assert "is not of type integer" in err
        assert len(gateway.seen("client:tool_call")) == 2


def test_wrong_usage_of_call_names_the_option() -> None:
    for arguments, said in ((["--timeout", "0"], "--timeout"), (["--params", "[1]"], "--params"), (["{}"], "--params")):
        result = CliRunner().invoke(app, ["--url", "http://127.0.0.1:1", "call", "red", "echo", *arguments])
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in result.stderr


async def test_one_of_several_urls_is_enough() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = []
        code, _, err = await run(gateway, "--url", f"http://127.0.0.1:1, {gateway.url}", "list")
        assert (code, err) == (0, "")
        code, _, err = await run(gateway, "--url", f"{gateway.url},", "list")
        assert (code, err) == (2, "error 400: url: '' is not like http://host:port\n")
        code, _, err = await run(gateway, "--office", "", "list")
        assert code == 2
        assert err.endswith(
            "a name has 1 to 128 characters, this one has 0\n--office (SMCP_OFFICE) says which office.\n"
        )


def test_h_is_help_for_every_command_and_names_the_options_of_all() -> None:
    for arguments in ([], ["call"], ["list"], ["watch"]):
        result = CliRunner().invoke(app, [*arguments, "-h"])
        assert (result.exit_code, "--help" in result.stdout, "--office" in result.stdout) == (0, True, True)


PNG = b"\x89PNG"


def picture(data: str = b64encode(PNG).decode()) -> JsonObject:
    blob = {"uri": "file:///a", "blob": b64encode(b"\x00").decode()}
    content = [
        {"type": "text", "text": "two"},
        {"type": "image", "data": data, "mimeType": "image/png"},
        {"type": "resource", "resource": blob},
    ]
    return {"content": content, "isError": False}


async def test_pictures_and_other_binary_content_are_written_into_a_directory(tmp_path: Path) -> None:
    async with fake_gateway() as gateway:

        async def answer(_: JsonObject) -> Any:
            return picture()

        gateway.computers["red"] = [tool("../draw")]
        gateway.answers["client:tool_call"] = answer
        into = tmp_path / "new" / "here"
        code, out, _ = await run(gateway, "call", "red", "../draw", "--output", str(into))
        first = [str(into / "_draw-1.png"), str(into / "_draw-2.bin")]
        assert (code, out.decode().splitlines()) == (0, ["two", *first])
        assert [Path(each).read_bytes() for each in first] == [PNG, b"\x00"]
        _, out, _ = await run(gateway, "call", "red", "../draw", "--output", str(into), "--json")
        assert json.loads(out)["files"] == [str(into / "_draw-2.png"), str(into / "_draw-3.bin")], "none is replaced"
        code, _, err = await run(gateway, "call", "red", "../draw", "--output", str(into / "_draw-1.png"))
        assert (code, "--output" in err, "File exists" in err) == (2, True, True)
        _, out, err = await run(gateway, "call", "red", "../draw")
        assert f"[image/png, {len(PNG)} bytes, not shown]" in out.decode().splitlines()
        assert "--output DIR" in err


async def test_binary_content_that_cannot_be_read_or_written_is_an_error_beside_the_result(tmp_path: Path) -> None:
    async with fake_gateway() as gateway:
        given = "no base64!"
        into = tmp_path / "into"

        async def answer(_: JsonObject) -> Any:
            if into.exists():
                into.rmdir()
            return picture(given)

        gateway.computers["red"] = [tool("draw")]
        gateway.answers["client:tool_call"] = answer
        code, out, err = await run(gateway, "call", "red", "draw", "--output", str(tmp_path))
        assert (code, out.decode().splitlines()[0], "is not in base64" in err) == (1, "two", True)
        given = b64encode(PNG).decode()
        code, out, err = await run(gateway, "call", "red", "draw", "--output", str(into))
        assert (code, out.decode().splitlines()[0], f"--output: {str(into)!r}: No such file" in err) == (1, "two", True)


def test_thousands_of_pictures_are_written_with_one_try_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Counter[str]()
    opened = Path.open

    def counted(path: Path, *args: Any) -> Any:
        tries[path.suffix] += 1
        return opened(path, *args)

    monkeypatch.setattr(Path, "open", counted)
    image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    result = call_result({"content": [image] * 200}, req_id="", trace_id="", duration_s=0)
    assert save_binaries(result, tmp_path, "draw")[-1] == str(tmp_path / "draw-200.png")
    assert tries == {".png": 200}


async def test_a_shell_completes_the_names_of_computers_and_tools() -> None:
    async with fake_gateway() as gateway:
        gateway.computers |= {"red": [tool("add"), tool("echo")], "blue": []}

        async def completed(*words: str, forked: bool = True) -> list[str]:
            process = await start(gateway, completing=words, forked=forked)
            code, out, err = await ended(process)
            assert (code, err) == (0, "")
            return out.decode().split()

        async def completes(names: list[str], *words: str, forked: bool = True) -> None:
            async def is_completed() -> bool:
                return await completed(*words, forked=forked) == names

            await eventually(is_completed)  # within 2 s, or not at all: a shell waits for it

        await completes(["blue", "red"], "smcp-agent", "tools", "", forked=False)
        await completes(["red"], "smcp-agent", "call", "r")
        await completes(["add"], "smcp-agent", "call", "red", "a")
        assert await completed("smcp-agent", "call", "--office", "office", "gone", "a") == []
        gateway.answers["server:join_office"] = refuse
        assert await completed("smcp-agent", "tools", "") == []


async def refuse(_: JsonObject) -> Any:
    return [False, "the office has an Agent"]
