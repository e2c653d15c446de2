"""The programs of the guide about models run as they stand there: real libraries, a fake model, a real system."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from bench import published_env
from smcp_agent.testing import smcp_system as smcp_system
from tests.e2e.fake_model import FakeModel, fake_model
from tests.pages.markdown import ROOT, blocks

BLOCKS: Final = [
    block.text for block in blocks(ROOT / "docs" / "guides" / "use-a-model.md") if block.language == "python"
]
LOOPS: Final = [text for text in BLOCKS if "asyncio.run(main())" in text]
LIBRARIES: Final = [re.findall(r"^from (\w+)", text, re.MULTILINE)[0] for text in LOOPS]
CLOCK: Final = next(
    block.text for block in blocks(ROOT / "README.md") if block.language == "python" and "MCPServer" in block.text
)
Json = dict[str, Any]
SAID: Final = re.compile(r"It is \d\d:\d\d in Asia/Tokyo\.\n?")

pytestmark = pytest.mark.timeout(600)  # the first test installs the libraries


@pytest.fixture(scope="session")
def smcp_config(tmp_path_factory: pytest.TempPathFactory) -> Json:
    clock = tmp_path_factory.mktemp("clock") / "clock.py"
    clock.write_text(CLOCK)
    parameters = {"command": sys.executable, "args": [str(clock)]}
    return {"servers": {"clock": {"type": "stdio", "server_parameters": parameters}}}


def environment(model: FakeModel | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SMCP_", "OTEL_"))}
    ours = os.pathsep.join(str(ROOT / "libs" / name / "src") for name in ("smcp-agent", "smcp-proto"))
    url = "" if model is None else model.url
    return {
        **kept,
        "PYTHONPATH": ours,
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_API_KEY": "none",
        "OPENAI_BASE_URL": f"{url}/v1",
        "ANTHROPIC_BASE_URL": url,
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LANGSMITH_TRACING": "false",
    }


async def printed(*command: str | Path, env: dict[str, str], directory: Path | None = None, code: int = 0) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, env=env, cwd=directory, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    assert process.returncode == code, out.decode()
    return out.decode()


@pytest.fixture(scope="module")
def python() -> Path:
    return published_env.python("models", ROOT / "tests" / "e2e" / "guide_requirements.lock")


def at(system: Json, text: str) -> str:
    return text.replace("http://127.0.0.1:8000", system["url"])


def test_the_guide_has_a_program_for_each_library() -> None:
    assert LIBRARIES == ["openai", "openai", "anthropic", "agents", "langchain", "pydantic_ai"]


@pytest.mark.parametrize("text", LOOPS, ids=[f"{number}-{name}" for number, name in enumerate(LIBRARIES)])
async def test_a_program_of_the_guide_gets_the_answer_from_the_tool(text: str, smcp_system: Json, python: Path) -> None:
    async with fake_model("show_zone", {"name": "Asia/Tokyo"}) as model:
        assert SAID.fullmatch(await printed(python, "-c", at(smcp_system, text), env=environment(model)))
        assert len(model.requests) == 2


async def test_the_web_application_of_the_guide_answers(smcp_system: Json, python: Path) -> None:
    [text] = [each for each in BLOCKS if "FastAPI(" in each]
    asked = """
from fastapi.testclient import TestClient
with TestClient(app) as client:
    print(client.post("/zone/Asia/Tokyo").json())
"""
    assert SAID.fullmatch(await printed(python, "-c", at(smcp_system, text) + asked, env=environment()))


PYTEST: Final = (sys.executable, "-m", "pytest", "-qp", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", ".")


async def test_the_test_of_the_guide_fails_where_its_server_does_not_start_and_says_why(tmp_path: Path) -> None:
    fixtures, test = (next(each for each in BLOCKS if word in each) for word in ("pytest_plugins", "def test_"))
    (tmp_path / "conftest.py").write_text(fixtures.replace('"python"', '"no-such-python"'))
    (tmp_path / "test_clock.py").write_text(test)
    said = await printed(*PYTEST, env=environment(), directory=tmp_path, code=1)
    assert 'MCP servers did not start: {"clock": ' in said
    assert "no-such-python" in said
    assert "1 error" in said


async def test_the_test_of_the_guide_passes(tmp_path: Path) -> None:
    fixtures, test = (next(each for each in BLOCKS if word in each) for word in ("pytest_plugins", "def test_"))
    (tmp_path / "clock.py").write_text(CLOCK)
    clock = json.dumps(str(tmp_path / "clock.py"))
    (tmp_path / "conftest.py").write_text(
        fixtures.replace('"python"', json.dumps(sys.executable)).replace('"clock.py"', clock)
    )
    (tmp_path / "test_clock.py").write_text(test)
    assert "1 passed" in await printed(*PYTEST, env=environment(), directory=tmp_path)
