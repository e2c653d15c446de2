"""Every policy rejects the manifests that it is there for."""

import copy
import functools

import pytest

from tests.deploy.breaking import Break, found, main
from tests.deploy.broken_addresses import BROKEN_ADDRESSES
from tests.deploy.broken_commands import BROKEN_COMMANDS
from tests.deploy.broken_pods import BROKEN_PODS
from tests.deploy.broken_surroundings import BROKEN_SURROUNDINGS
from tests.deploy.policies import POLICIES
from tests.deploy.rendering import rendered

BROKEN = [*BROKEN_PODS, *BROKEN_COMMANDS, *BROKEN_SURROUNDINGS, *BROKEN_ADDRESSES]
once = functools.cache(rendered)


@pytest.mark.parametrize(("name", "said", "broken"), BROKEN, ids=[f"{name}: {said}" for name, said, _ in BROKEN])
def test_a_broken_manifest_is_rejected_and_it_is_said_why(name: str, said: str, broken: Break) -> None:
    manifests = copy.deepcopy(once("prod+computer+computer-nodes+nats-cluster+hpa-cpu"))
    assert POLICIES[name](manifests) == []
    broken(manifests)
    problems = POLICIES[name](manifests)
    assert any(said in problem for problem in problems), problems


def test_a_job_that_would_run_again_is_rejected() -> None:
    manifests = copy.deepcopy(once("dev"))
    found(manifests, "Job", "smcp-demo")["spec"]["ttlSecondsAfterFinished"] = 60
    assert any("would run again" in problem for problem in POLICIES["canonical"](manifests))


def test_an_agent_that_is_not_told_which_tool_to_call_is_rejected() -> None:
    manifests = copy.deepcopy(once("dev"))
    assert POLICIES["arguments"](manifests) == []
    main(found(manifests, "Job", "smcp-demo"))["args"].remove("git_log")
    assert POLICIES["arguments"](manifests) == ["Job smcp-demo: agent: smcp-agent: Missing argument 'TOOL'."]


def test_a_role_that_is_bound_to_nobody_is_rejected() -> None:
    manifests = copy.deepcopy(once("dev"))
    found(manifests, "RoleBinding", "smcp-secrets")["subjects"][0]["namespace"] = "default"
    assert any("binds what is not there" in problem for problem in POLICIES["references"](manifests))


def test_a_job_that_may_not_ask_the_api_server_where_it_listens_is_rejected() -> None:
    manifests = copy.deepcopy(once("dev"))
    found(manifests, "NetworkPolicy", "smcp-secrets")["spec"]["egress"][0]["ports"].pop()
    assert POLICIES["outside"](manifests) == ["('to', 'anywhere', 'secrets', 16443) is not let through"]


def test_every_policy_has_something_that_it_rejects() -> None:
    assert {name for name, _, _ in BROKEN} == set(POLICIES)
