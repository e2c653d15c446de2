"""Writes the digest of each image of others behind its tag: in Dockerfiles, docker/compose.yaml and deploy/k8s.

    python .ci/pin_images.py [--check]

`--check` changes nothing, and says what it would write. Where a digest could not be had, without a way to the registry,
it says so, and what is written there stays.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

DIGEST: Final = r"(?P<digest>@sha256:[0-9a-f]{64})?"
IMAGE: Final = r"(?P<name>(?:[a-z0-9-]+/)?[a-z0-9-]+)"
TAG: Final = r"(?P<tag>v?\d[\w.-]*)"
WRITTEN: Final = (
    ("docker/*.Dockerfile", rf"(?<==){IMAGE}:{TAG}{DIGEST}"),
    ("docker/*.sh", rf"(?<=image\.sh ){IMAGE}:{TAG}{DIGEST}"),
    ("docker/compose.yaml", rf"(?:(?<=image: )|(?<=:-)){IMAGE}:{TAG}{DIGEST}"),
    ("deploy/k8s/overlays/*/kustomization.yaml", rf'(?<=newName: ){IMAGE}(?P<key>\n +newTag: )"?{TAG}{DIGEST}"?'),
)
"""Files, and how an image stands there. One of ours has a tag of ours (`dev`), a registry of its own, or a variable."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


@cache
def digest_of(image: str) -> str | None:
    """Of all its platforms together; None: it could not be had."""
    asked = ("docker", "buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}")
    try:
        answer = subprocess.run(asked, check=False, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    digest = answer.stdout.strip()
    return digest if re.fullmatch(r"sha256:[0-9a-f]{64}", digest) else None


def pinned(text: str, pattern: str, find: Callable[[str], str | None]) -> tuple[str, list[str]]:
    """The text with the digests that are found, and what is said of each image."""
    said: list[str] = []

    def pin(match: re.Match[str]) -> str:
        image, before = f"{match['name']}:{match['tag']}", match["digest"]
        if (digest := find(image)) is None:
            said.append(f"{image}: its digest could not be had, {'it stays as it is' if before else 'it has none'}")
            return match[0]
        if before == f"@{digest}":
            return match[0]
        said.append(f"{image}: is {digest}")
        key = match.groupdict().get("key")
        return f"{image}@{digest}" if key is None else f'{match["name"]}{key}"{match["tag"]}@{digest}"'

    return re.sub(pattern, pin, text), said


def main() -> None:
    for files, pattern in WRITTEN:
        for file in sorted(Path().glob(files)):
            new, said = pinned(file.read_text(encoding="utf-8"), pattern, digest_of)
            for line in said:
                say(f"{file}: {line}")
            if "--check" not in sys.argv:
                file.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
