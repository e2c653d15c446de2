"""`make pin-images`: the digests of images of others, asked of a docker client that is a script."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.packaging.wheelhouse import ROOT

DIGEST, OLDER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
FILES = (
    "docker/services.Dockerfile",
    "docker/images.sh",
    "docker/compose.yaml",
    "deploy/k8s/overlays/dev/kustomization.yaml",
)

WITHOUT: Final = {
    "python:3.11-slim-bookworm",
    "node:22-bookworm-slim",
    "nats:2.15",
    "haproxy:2.8",
    "jaegertracing/jaeger:2.11.0",
    "prom/prometheus:v3.7.0",
}
"""Their digests could not be had yet."""


def run(directory: Path, answer: str, *options: str) -> str:
    client = directory / "bin" / "docker"
    client.parent.mkdir(exist_ok=True)
    client.write_text(f'#!/bin/sh\ntest "$1 $2 $3" = "buildx imagetools inspect" && {answer}\n')
    client.chmod(0o755)
    env = {**os.environ, "PATH": f"{client.parent}:{os.environ['PATH']}"}
    command = [sys.executable, str(ROOT / ".ci" / "pin_images.py"), *options]
    return subprocess.run(command, cwd=directory, env=env, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def test_every_image_of_others_has_a_digest_but_those_that_are_listed_here(tmp_path: Path) -> None:
    """Take an image off the list when it has its digest, and change a tag together with its digest."""
    for part in ("docker", "deploy"):
        shutil.copytree(ROOT / part, tmp_path / part)
    lines = run(tmp_path, "exit 1", "--check").splitlines()
    assert {line.split(": ")[1] for line in lines if line.endswith("it has none")} == WITHOUT


def test_digests_of_images_of_others_are_written_behind_their_tags_and_renewed(tree: Path) -> None:
    said = run(tree, f"echo {OLDER}", "--check")
    assert f"docker/compose.yaml: nats:2.15: is {OLDER}" in said
    assert all((tree / file).read_text() == (ROOT / file).read_text() for file in FILES)
    for digest in (OLDER, DIGEST):
        run(tree, f"echo {digest}")
        dockerfile, script, compose, overlay = ((tree / file).read_text() for file in FILES)
        assert f"ARG BASE=python:3.11-slim-bookworm@{digest}\n" in dockerfile
        assert f"docker/image.sh node:22-bookworm-slim@{digest} node" in script
        assert f"image: ${{NATS_IMAGE:-nats:2.15@{digest}}}\n" in compose
        assert f'newName: nats\n    newTag: "2.15@{digest}"\n' in overlay
        assert compose.count("@sha256") == 6
        assert "dev@" not in compose + overlay
    assert run(tree, f"echo {DIGEST}", "--check") == ""


def test_a_digest_that_cannot_be_had_is_said_and_changes_nothing(tree: Path) -> None:
    said = run(tree, "exit 1")
    assert "docker/compose.yaml: haproxy:2.8: its digest could not be had, it has none" in said
    assert all((tree / file).read_text() == (ROOT / file).read_text() for file in FILES)
