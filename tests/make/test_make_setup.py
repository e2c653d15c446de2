"""`make setup` where Python cannot make virtual environments, as Debian's and Ubuntu's without python3-venv.

Python, apt-get and id are scripts here; make, the Makefile and its shell are real.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"
TOOLS = ("chmod", "mkdir", "touch")
PYTHON = """#!/bin/bash
case "$1" in
-c) exit 0 ;;
-m) [[ -e "$FAKES/venv" ]] || { echo "ensurepip is not available"; exit 1; } ;;
esac
mkdir -p .venv/bin
for program in python uv; do
    printf '#!/bin/bash\\n' > ".venv/bin/$program"
    chmod +x ".venv/bin/$program"
done
"""
APT_GET = """#!/bin/bash
echo "$*" >> "$FAKES/asked"
[[ ! -e "$FAKES/offline" ]] || exit 100
[[ "$1" != install ]] || touch "$FAKES/venv"
"""
SENTENCE = "cannot make a virtual environment (Debian: apt-get install python3-venv)"


@dataclass
class Machine:
    """What `make setup` finds."""

    fakes: Path
    directory: Path

    def has(self, name: str, script: str) -> None:
        program = self.fakes / name
        program.write_text(script)
        program.chmod(0o755)

    def setup(self, python: str = "python3") -> "subprocess.CompletedProcess[str]":
        environment = {"PATH": str(self.fakes), "FAKES": str(self.fakes), "LC_ALL": "C"}
        command = [shutil.which("make") or "make", "setup", f"PYTHON={python}"]
        return subprocess.run(
            command, cwd=self.directory, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    @property
    def asked(self) -> list[str]:
        """Of apt-get."""
        asked = self.fakes / "asked"
        return asked.read_text().splitlines() if asked.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    fakes, directory = tmp_path / "bin", tmp_path / "clone"
    fakes.mkdir()
    directory.mkdir()
    for tool in TOOLS:
        (fakes / tool).symlink_to(shutil.which(tool) or tool)
    shutil.copy(MAKEFILE, directory)
    for name in ("requirements.lock", "pyproject.toml"):
        (directory / name).touch()
    found = Machine(fakes, directory)
    for python in ("python3", "python3.12"):
        found.has(python, PYTHON)
    found.has("id", "#!/bin/bash\necho 0\n")
    found.has("apt-get", APT_GET)
    return found


@pytest.mark.parametrize("python", ["python3", "python3.12"])
def test_root_gets_venv_by_apt_get_and_is_told_so_in_one_line(machine: Machine, python: str) -> None:
    made = machine.setup(python)
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[:-1] == [f"{python} cannot make a virtual environment: installing {python}-venv"]
    assert made.stdout.splitlines()[-1].startswith("ready:")
    assert machine.asked[-1].split()[0] == "install"
    assert machine.asked[-1].split()[-1] == f"{python}-venv"


def test_where_venv_is_there_nothing_is_installed(machine: Machine) -> None:
    (machine.fakes / "venv").touch()
    made = machine.setup()
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("ready:")
    assert machine.asked == []


def test_who_is_not_root_is_told_what_to_install(machine: Machine) -> None:
    machine.has("id", "#!/bin/bash\necho 1000\n")
    made = machine.setup()
    assert made.returncode != 0
    assert SENTENCE in made.stderr
    assert machine.asked == []


def test_without_apt_get_it_is_said_what_is_missing(machine: Machine) -> None:
    (machine.fakes / "apt-get").unlink()
    made = machine.setup()
    assert made.returncode != 0
    assert SENTENCE in made.stderr


def test_where_apt_get_cannot_install_it_it_is_said_what_is_missing(machine: Machine) -> None:
    (machine.fakes / "offline").touch()
    made = machine.setup()
    assert made.returncode != 0
    assert SENTENCE in made.stderr
    assert len(machine.asked) == 1
