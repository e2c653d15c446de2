"""`make pin-images`: the digests of images of others, asked of a docker client that is a script."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.wheelhouse import ROOT

DIGEST, OLDER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
FILES = (
    "docker/services.Dockerfile",
    "docker/images.sh",
    "docker/compose.yaml",
    "deploy/k8s/overlays/dev/kustomization.yaml",
)


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


def test_every_image_of_others_has_a_digest(tmp_path: Path) -> None:
    for part in ("docker", "deploy"):
        shutil.copytree(ROOT / part, tmp_path / part)
    said = run(tmp_path, "exit 1", "--check")
    assert "docker/compose.sh: nats:2.15: its digest could not be had, it stays as it is" in said
    assert "it has none" not in said


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
    assert "docker/compose.yaml: haproxy:2.8: its digest could not be had, it stays as it is" in said
    assert all((tree / file).read_text() == (ROOT / file).read_text() for file in FILES)
