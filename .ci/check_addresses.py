"""No file may name a package registry's host, or a directory of somebody's machine."""

import re
import subprocess
import sys
from pathlib import Path

# Written so that the patterns do not find themselves.
FORBIDDEN = {
    "a registry's host": re.compile(
        r"py[p]i\.org|pythonhost[e]d\.org|npm[j]s\.(org|com)|yarn[p]kg\.com|crates[.]io|proxy[.]golang|gh[c]r\.io"
    ),
    "a directory of one machine": re.compile(r"(?<![\w.:/-])/(?:root|Users/\w+|home/\w+|wor[k])/"),
}


def main() -> int:
    """Print each place, and give the number of them as an exit code of 0 or 1."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],  # noqa: S607 - git of the PATH
        check=True,
        capture_output=True,
    )
    found = 0
    for name in sorted(filter(None, listed.stdout.decode().split("\0"))):
        path = Path(name)
        if not path.is_file():
            continue
        text = path.read_bytes().decode(errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            for what, pattern in FORBIDDEN.items():
                if pattern.search(line):
                    found += 1
                    sys.stderr.write(f"{name}:{number}: names {what}: {line.strip()[:120]}\n")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
