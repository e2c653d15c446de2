"""deploy/observe: each alert fires and clears on recorded series and has a section of the runbook; boards can be read.

`promtool` of Prometheus evaluates them. `.ci/run` unpacks it to build/promtool, or says that it could not;
without it these tests are skipped.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy.objects import WORKLOADS, Manifests, pod
from tests.deploy.rendering import K8S, kustomize
from tests.packaging.wheelhouse import ROOT

OBSERVE: Final = ROOT / "deploy" / "observe"
ALERTS: Final[dict[str, dict[str, Any]]] = {
    rule["alert"]: rule
    for group in yaml.safe_load((OBSERVE / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}
JOB: Final = 'job="smcp-gateway", instance="a"'
CALLS: Final = 'smcp_gateway_call_duration_seconds_count{event="client:tool_call", outcome="%s"}'
SLOW: Final = "smcp_registry_request_duration_seconds_bucket{le=%r}"
CASES: Final[dict[str, tuple[dict[str, str], int, int]]] = {
    # by alert: series of one sample each 30 s, a minute at which it fires, and one at which it does not
    "SmcpProcessDown": ({f"up{{{JOB}}}": "1x10 0x10 1x20"}, 8, 12),
    "SmcpNatsLost": ({"smcp_bus_connected": "1x10 0x10 1x20"}, 7, 12),
    "SmcpLeaseNotRenewed": ({"smcp_lease_held": "1x10 0x10 1x20"}, 7, 12),
    "SmcpRegistryBehind": ({"smcp_registry_views_synced": "1x10 0x10 1x20"}, 8, 12),
    "SmcpRegistriesDiffer": (
        {
            'smcp_registry_members{instance="a", role="agent"}': "3x40",
            'smcp_registry_members{instance="b", role="agent"}': "3x10 2x10 3x20",
        },
        9,
        12,
    ),
    "SmcpRegistrySlow": (
        {SLOW % "0.5": "0x40", SLOW % "1.0": "0+9x30 270x20", SLOW % "+Inf": "0+9x30 270x20"},
        12,
        24,
    ),
    "SmcpMembersSwept": ({"smcp_registry_swept_members_total": "0x10 5x30"}, 6, 12),
    "SmcpAuditNotWritten": ({f"smcp_audit_failures_total{{{JOB}}}": "0x10 3x30"}, 6, 12),
    "SmcpSpansLost": ({f'smcp_telemetry_spans_total{{{JOB}, outcome="dropped"}}': "0x10 0+9x20 180x40"}, 12, 24),
    "SmcpSeatContested": ({'smcp_registry_claims_refused_total{why="taken"}': "0+2x30 60x30"}, 12, 24),
    "SmcpCallsFail": ({CALLS % "ok": "0+100x60", CALLS % "503": "0x10 0+10x10 100x40"}, 9, 24),
    "SmcpCallsWait": ({"smcp_gateway_calls_in_flight": "5x10 5+5x20 5x30"}, 14, 20),
    "SmcpDrainStuck": ({"smcp_gateway_draining": "0x10 1x10 0x20"}, 9, 12),
    "SmcpStrangers": ({"smcp_gateway_strangers": "10x10 300x10 10x20"}, 8, 12),
    "SmcpQuotaMet": ({'smcp_gateway_quota_refusals_total{quota="calls_per_s"}': "0+30x30 900x30"}, 12, 24),
    "SmcpSlowReader": ({f"smcp_bus_slow_consumers_total{{{JOB}}}": "0x10 1x30"}, 6, 12),
    "SmcpBodiesWait": ({"smcp_bus_budget_waiting": "0x10 3x10 0x20"}, 8, 12),
    "SmcpTransfersFail": ({f'smcp_bus_transfers_total{{{JOB}, way="in_failed"}}': "0x10 9x30"}, 6, 12),
    "SmcpFilesNearLimit": (
        {f"process_open_fds{{{JOB}}}": "10x10 90x10 10x20", f"process_max_fds{{{JOB}}}": "100x40"},
        8,
        12,
    ),
    "SmcpComputerOutside": ({"smcp_computer_in_office": "1x10 0x10 1x20"}, 8, 12),
    "SmcpMcpServerDown": (
        {'smcp_computer_mcp_server_state{server="git", state="backoff"}': "_x10 1x20 _x30"},
        12,
        22,
    ),
    "SmcpMcpServerRestarts": ({'smcp_computer_mcp_server_restarts_total{server="git"}': "0+1x10 10x60"}, 5, 24),
    "SmcpMcpServerFails": (
        {
            'smcp_computer_mcp_server_calls_total{instance="a", server="git", outcome="ok"}': "0+1x60",
            'smcp_computer_mcp_server_calls_total{instance="a", server="git", outcome="timeout"}': "0+5x30 150x30",
        },
        12,
        24,
    ),
}
NAMED: Final = re.compile(r"\b(?:smcp|process)_\w+")


def promtool() -> str:
    unpacked = ROOT / "build" / "promtool" / "usr" / "bin" / "promtool"
    found = shutil.which("promtool") or (str(unpacked) if unpacked.is_file() else None)
    if found is None and os.environ.get("CI") == "true" and os.environ.get("PROMTOOL") != "none":
        pytest.fail("promtool is missing: .ci/run unpacks it from Debian's package prometheus")
    return found or pytest.skip("promtool of Prometheus is not there")


def test_each_alert_fires_and_clears_on_recorded_series(tmp_path: Path) -> None:
    assert CASES.keys() == ALERTS.keys()
    tests = [
        {
            "interval": "30s",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {"expr": f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})', "eval_time": f"{at}m", **wanted}
                for at, wanted in (
                    (fires, {"exp_samples": [{"labels": "{}", "value": 1}]}),
                    (clear, {"exp_samples": []}),
                )
            ],
        }
        for alert, (series, fires, clear) in CASES.items()
    ]
    file = tmp_path / "tests.yaml"
    rules = {"rule_files": [str(OBSERVE / "alerts.yaml")], "evaluation_interval": "30s", "tests": tests}
    file.write_text(yaml.safe_dump(rules), encoding="utf-8")
    done = subprocess.run([promtool(), "test", "rules", file], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


# Debian's promtool knows no kubernetes_sd_configs, so that it cannot read prometheus-kubernetes.yaml
@pytest.mark.parametrize("check", ["rules alerts.yaml", "config --syntax-only prometheus-compose.yaml"])
def test_prometheus_accepts_its_files(check: str) -> None:
    command = [promtool(), "check", *check.split()]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=OBSERVE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("board", ["operators", "office"])
def test_prometheus_can_read_every_expression_of_a_board(board: str, tmp_path: Path) -> None:
    expressions = [
        target["expr"].replace("$__rate_interval", "5m").replace("$office", "lab")
        for panel in json.loads((OBSERVE / "dashboards" / f"{board}.json").read_text(encoding="utf-8"))["panels"]
        for target in panel["targets"]
    ]
    rules = [{"record": f"a:{number}", "expr": expression} for number, expression in enumerate(expressions)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": board, "rules": rules}]}), encoding="utf-8")
    command = [promtool(), "check", "rules", "--lint=none", str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_section_that_says_what_to_do() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### (Smcp\w+)\n\n\S", page, re.MULTILINE)
    assert sorted(sections) == sorted(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_the_component_holds_what_compose_mounts() -> None:
    kustomization = yaml.safe_load((OBSERVE / "kustomization.yaml").read_text(encoding="utf-8"))
    held = {file.rpartition("=")[2] for each in kustomization["configMapGenerator"] for file in each["files"]}
    boards = {f"dashboards/{path.name}" for path in (OBSERVE / "dashboards").glob("*.json")}
    assert held == {"alerts.yaml", "prometheus-kubernetes.yaml", *boards}


def test_the_prometheus_operator_scrapes_each_process_under_the_jobs_of_the_alerts(tmp_path: Path) -> None:
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(K8S / "overlays" / "prod", tmp_path.resolve())],
        "components": [os.path.relpath(OBSERVE / "prometheus-operator", tmp_path.resolve())],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")
    manifests = Manifests(kustomize(tmp_path))
    [rule], [monitor] = manifests.of("PrometheusRule"), manifests.of("PodMonitor")
    assert rule["spec"] == yaml.safe_load((OBSERVE / "alerts.yaml").read_text(encoding="utf-8"))
    assert rule["metadata"]["labels"] == monitor["metadata"]["labels"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    [job] = endpoint["relabelings"]
    scraped = set()
    for workload in manifests.of(*WORKLOADS):
        labels = workload["spec"]["template"]["metadata"]["labels"]
        ports = {port["name"] for container in pod(workload)["containers"] for port in container.get("ports", ())}
        if endpoint["port"] in ports and monitor["spec"]["selector"]["matchLabels"].items() <= labels.items():
            scraped.add(job["replacement"].replace("$1", labels["app.kubernetes.io/component"]))
    assert scraped == {"smcp-gateway", "smcp-registry", "smcp-mcp", "smcp-computer"}
