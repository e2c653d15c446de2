"""The Dockerfiles: each environment is given all wheels of this tree that its distributions need."""

import re
from importlib.metadata import requires
from typing import Final

import pytest

from tests.packaging.wheelhouse import ROOT

LISTS: Final = {"services": ("smcp-gateway", "smcp-registry"), "smcp": ("smcp-standalone",)} | {
    name: (f"smcp-{name}",) for name in ("computer", "testing")
}
"""For whom docker/images.sh writes each list of packages."""
INSTALLED: Final = re.compile(
    r"source=build/images/(\w+)\.txt(?:.|\\\n)*\n(?:.|\\\n)*sh /install\.sh own \S+ ((?:[^&\\\n]|\\\n)*)"
)


def installed() -> dict[str, set[str]]:
    """The wheels of this tree that go in beside each list."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docker").glob("*.Dockerfile"))]
    return {
        name: {wheel.replace("_", "-") for wheel in wheels.replace("\\", " ").split()}
        for text in texts
        for name, wheels in INSTALLED.findall(text)
    }


def test_each_package_list_belongs_to_a_dockerfile() -> None:
    assert installed().keys() == LISTS.keys()


@pytest.mark.parametrize("name", LISTS)
def test_a_dockerfile_installs_exactly_the_wheels_that_its_package_needs(name: str) -> None:
    wanted: set[str] = set()
    waiting = [*LISTS[name]]
    while waiting:
        wanted.add(distribution := waiting.pop())
        named = [re.split(r"[^A-Za-z0-9-]", requirement)[0] for requirement in requires(distribution) or ()]
        waiting += [each for each in named if each.startswith("smcp-") and each not in wanted]
    assert installed()[name] == wanted
