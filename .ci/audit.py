"""Writes the bill of materials of requirements.lock (CycloneDX), and asks for known vulnerabilities of what it names.

    python audit.py DIRECTORY-OF-THE-TOOLS OUTPUT

Ends with 1 where there is a known vulnerability. Says so where it could not be found out.
"""

import json
import subprocess
import sys
from pathlib import Path

LOCK = "requirements.lock"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def main() -> int:
    tools, output = Path(sys.argv[1]), Path(sys.argv[2])
    output.parent.mkdir(parents=True, exist_ok=True)
    sbom = ["cyclonedx-py", "requirements", LOCK, "--output-reproducible", "--of", "JSON", "-o", str(output)]
    subprocess.run([tools / sbom[0], *sbom[1:]], check=True)
    say(f"{output}: the bill of materials, {len(json.loads(output.read_text())['components'])} components")

    asked = [tools / "pip-audit", "--disable-pip", "--require-hashes", "--format", "json", "-r", LOCK]
    answer = subprocess.run(asked, check=False, capture_output=True, text=True)
    try:
        packages = json.loads(answer.stdout)["dependencies"]
    except ValueError:
        reason = (answer.stderr.strip().splitlines() or ["it said nothing"])[-1]
        say(f"the data of known vulnerabilities could not be had, nothing was checked: {reason}")
        return 0
    unknown = [package for package in packages if "skip_reason" in package]
    if unknown:
        say(f"the data of known vulnerabilities could not be had for {len(unknown)} of {len(packages)} packages")
    found = [(package, each) for package in packages for each in package.get("vulns", ())]
    for package, each in found:
        fixed = ", ".join(each["fix_versions"]) or "no version yet"
        sys.stderr.write(f"{package['name']} {package['version']}: {each['id']}, mended in {fixed}\n")
    if not found:
        say(f"no known vulnerability in {len(packages) - len(unknown)} packages that were checked")
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
