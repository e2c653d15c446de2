"""`make audit`: the bill of materials and the known vulnerabilities, with tools that are scripts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.wheelhouse import ROOT

KNOWN = {"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
CLEAN = {"name": "b", "version": "1", "vulns": []}
SKIPPED = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ("", 0, "the data of known vulnerabilities could not be had, nothing was checked: it said nothing"),
        (
            json.dumps({"dependencies": [CLEAN, SKIPPED]}),
            0,
            "could not be had for 1 of 2 packages\nno known vulnerability in 1 packages that were checked",
        ),
        (json.dumps({"dependencies": [CLEAN, KNOWN]}), 1, "a 1: CVE-1, mended in 2"),
    ],
    ids=["no data", "data for some", "a vulnerability"],
)
def test_the_audit_says_what_it_found_and_what_it_could_not_find_out(
    tmp_path: Path, answer: str, code: int, said: str
) -> None:
    (tmp_path / "answer").write_text(answer)
    bill = tmp_path / "sbom.json"
    for tool, script in (
        ("cyclonedx-py", f"""echo '{{"components": []}}' > {bill}"""),
        ("pip-audit", f"cat {tmp_path / 'answer'}"),
    ):
        (tmp_path / tool).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / tool).chmod(0o755)
    command = [sys.executable, str(ROOT / ".ci" / "audit.py"), str(tmp_path), str(bill)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == code
    assert said in ended.stdout + ended.stderr
