"""What a Computer keeps in its state directory outlasts its pod."""

import base64
import re
from pathlib import Path

import pytest

from smcp_testing.certificates import Authority
from tests.deploy.kubelet import Kubelet, run
from tests.deploy.programs import HOME_IN_IMAGES
from tests.deploy.rendering import ROOT, documented_secrets, rendered

WITH_COMPUTER = "prod+computer+nats-cluster"


@pytest.fixture
def kubelet(tmp_path: Path) -> Kubelet:
    a_certificate = base64.b64encode(Authority(tmp_path).ca.read_bytes()).decode()
    held = {name: dict.fromkeys(keys, a_certificate) for name, keys in documented_secrets().items()}
    return Kubelet(rendered(WITH_COMPUTER), held, tmp_path / "pods")


async def test_a_secret_that_a_pod_stores_can_be_read_in_the_next_one(kubelet: Kubelet) -> None:
    container = kubelet.container("smcp-computer", "computer")
    ([command, *_], variables) = kubelet.command(container)
    code, _, errors = await run([command, "secrets", "set", "token"], variables, stdin="the value")
    assert code == 0, errors
    kubelet.replace_pod(container)
    _, variables = kubelet.command(container)
    assert await run([command, "secrets", "list"], variables) == (0, "token\n", "")


def test_the_image_has_the_home_that_the_tests_assume() -> None:
    dockerfile = (ROOT / "docker" / "computer.Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^ENV HOME=(\S+)", dockerfile, re.MULTILINE) == [HOME_IN_IMAGES]
