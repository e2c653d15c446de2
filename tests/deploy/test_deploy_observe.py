"""deploy/observe: each alert fires and clears on recorded series and has a section of the runbook; boards can be read;
each process is scraped on Kubernetes.

`promtool` of Prometheus evaluates alerts and relabels pods. `.ci/run` unpacks it to build/promtool, or says that it
could not; without it these tests are skipped.
"""

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy.objects import COMPONENT, WORKLOADS, Manifests, labels, matches, pod
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
_FIRING: Final = 'count(ALERTS{alertname="%s", alertstate="firing"})'
CASES: Final[dict[str, tuple[dict[str, str], int, int]]] = {
    # by alert, and where, if it has several expressions: series of one sample each 30 s, a minute at which it fires,
    # and one at which it does not
    "SmcpProcessDown": ({f"up{{{JOB}}}": "1x10 0x10 1x20"}, 8, 12),
    "SmcpNatsLost": ({"smcp_bus_connected": "1x10 0x10 1x20"}, 7, 12),
    "SmcpLeaseNotRenewed": ({"smcp_lease_held": "1x10 0x10 1x20"}, 7, 12),
    "SmcpRegistryBehind": ({"smcp_registry_views_synced": "1x10 0x10 1x20"}, 8, 12),
    "SmcpRegistryBehind with announcements": ({"smcp_registry_announcements_behind": "0x10 2000x10 0x20"}, 8, 12),
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
    "SmcpAuditNotWritten for good": ({f"smcp_audit_lost_total{{{JOB}}}": "0x10 3x30"}, 6, 12),
    "SmcpAuditNotWritten yet": ({f"smcp_audit_waiting{{{JOB}}}": "0x10 200x10 0x1 200 0x20"}, 8, 12),
    "SmcpSpansLost": ({f'smcp_telemetry_spans_total{{{JOB}, outcome="dropped"}}': "0x10 0+9x20 180x40"}, 12, 24),
    "SmcpSeatContested": ({'smcp_registry_claims_refused_total{why="taken"}': "0+2x30 60x30"}, 12, 24),
    "SmcpCallsFail": (
        {CALLS % "ok": "0+100x60", CALLS % "429": "0+9000x60", CALLS % "503": "0x10 0+10x10 100x40"},
        9,
        24,
    ),
    "SmcpCallsWait": ({"smcp_gateway_calls_in_flight": "5x10 5+5x20 5x30"}, 14, 20),
    "SmcpDrainStuck": ({"smcp_gateway_draining": "0x10 1x10 0x20"}, 9, 12),
    "SmcpUnauthenticated": ({"smcp_gateway_unauthenticated": "10x10 300x10 10x20"}, 8, 12),
    "SmcpUnauthenticated and refused": ({"smcp_gateway_connections_refused_total": "0+60x30 1800x30"}, 12, 24),
    "SmcpQuotaMet": ({'smcp_gateway_quota_refusals_total{quota="calls_per_s"}': "0+30x30 900x30"}, 12, 24),
    "SmcpQuotaMet at smcp-mcp": ({'smcp_mcp_quota_refusals_total{quota="sockets"}': "0+30x30 900x30"}, 12, 24),
    "SmcpSlowReader": ({f"smcp_bus_slow_consumers_total{{{JOB}}}": "0x10 1x30"}, 6, 12),
    "SmcpSlowReader at a socket": ({f"smcp_gateway_slow_clients_total{{{JOB}}}": "0x10 9x30"}, 6, 12),
    "SmcpBodiesWait": ({"smcp_bus_budget_waiting": "0x10 3x10 0x20"}, 8, 12),
    "SmcpBodiesWait for a handler": ({"smcp_bus_messages_waiting": "0x10 3x10 0x20"}, 8, 12),
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
JOBS: Final = {"smcp-gateway", "smcp-registry", "smcp-mcp", "smcp-computer"}
META: Final = "__meta_kubernetes_pod_"


def promtool() -> str:
    unpacked = ROOT / "build" / "promtool" / "usr" / "bin" / "promtool"
    found = shutil.which("promtool") or (str(unpacked) if unpacked.is_file() else None)
    if found is None and os.environ.get("CI") == "true" and os.environ.get("PROMTOOL") != "none":
        pytest.fail("promtool is missing: .ci/run unpacks it from Debian's package prometheus")
    return found or pytest.skip("promtool of Prometheus is not there")


def test_each_alert_fires_and_clears_on_recorded_series(tmp_path: Path) -> None:
    expressions = {name: rule["expr"].count(" or ") + 1 for name, rule in ALERTS.items()}
    assert Counter(case.partition(" ")[0] for case in CASES) == expressions
    tests = [
        {
            "interval": "30s",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {"expr": _FIRING % case.partition(" ")[0], "eval_time": f"{at}m", **wanted}
                for at, wanted in (
                    (fires, {"exp_samples": [{"labels": "{}", "value": 1}]}),
                    (clear, {"exp_samples": []}),
                )
            ],
        }
        for case, (series, fires, clear) in CASES.items()
    ]
    file = tmp_path / "tests.yaml"
    rules = {"rule_files": [str(OBSERVE / "alerts.yaml")], "evaluation_interval": "30s", "tests": tests}
    file.write_text(yaml.safe_dump(rules), encoding="utf-8")
    done = subprocess.run([promtool(), "test", "rules", file], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


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


def test_compose_keeps_exemplars_and_links_them_to_their_traces() -> None:
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    assert "--enable-feature=exemplar-storage" in compose["services"]["prometheus"]["command"]
    listed = yaml.safe_load((OBSERVE / "grafana" / "datasources.yaml").read_text(encoding="utf-8"))["datasources"]
    sources = {source["type"]: source for source in listed}
    [link] = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert link == {"name": "trace_id", "datasourceUid": sources["jaeger"]["uid"]}
    board = json.loads((OBSERVE / "dashboards" / "operators.json").read_text(encoding="utf-8"))
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"] if target.get("exemplar")]
    assert all("_duration_seconds_bucket" in expression for expression in shown)
    assert len(shown) == 2


def test_each_alert_has_a_section_that_says_what_to_do() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### (Smcp\w+)\n\n\S", page, re.MULTILINE)
    assert sorted(sections) == sorted(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_the_page_of_metrics_says_how_long_a_metric_has_a_value_before_an_alert_fires() -> None:
    rows = {
        cells[1].strip("`"): cells[-1]
        for line in (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines()
        if len(cells := [cell.strip() for cell in line.strip().removesuffix("|").split("|")]) == 6
    }
    words = {"30s": "30 s", "1m": "a minute", "2m": "2 minutes"}
    alerted = [
        (metric, f"{value} for {words[rule['for']]}")
        for rule in ALERTS.values()
        for metric, value in re.findall(r"^(smcp_\w+) == ([01])", rule["expr"])
    ]
    assert len(alerted) >= 5
    for metric, said in alerted:
        assert rows[metric].startswith(said), metric


def test_the_component_holds_what_compose_mounts() -> None:
    kustomization = yaml.safe_load((OBSERVE / "kustomization.yaml").read_text(encoding="utf-8"))
    held = {file.rpartition("=")[2] for each in kustomization["configMapGenerator"] for file in each["files"]}
    boards = {f"dashboards/{path.name}" for path in (OBSERVE / "dashboards").glob("*.json")}
    assert held == {"alerts.yaml", "prometheus-kubernetes.yaml", *boards}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Manifests:
    """The overlay `prod`, which has the component for any Prometheus, with that for the Prometheus Operator."""
    directory = tmp_path_factory.mktemp("overlay").resolve()
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(K8S / "overlays" / "prod", directory)],
        "components": [os.path.relpath(OBSERVE / "prometheus-operator", directory)],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")
    return Manifests(kustomize(directory))


def test_the_prometheus_operator_has_the_rules_of_every_prometheus(rendered: Manifests) -> None:
    [rule], [monitor] = rendered.of("PrometheusRule"), rendered.of("PodMonitor")
    assert rule["spec"] == yaml.safe_load((OBSERVE / "alerts.yaml").read_text(encoding="utf-8"))
    assert rule["metadata"]["labels"] == monitor["metadata"]["labels"]


def test_a_prometheus_in_the_cluster_scrapes_each_process_under_the_jobs_of_the_alerts(
    rendered: Manifests, tmp_path: Path
) -> None:
    config = yaml.safe_load(rendered.config("smcp-prometheus")["prometheus.yaml"])
    [job] = config["scrape_configs"]
    assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
    targets = relabeled(job, pods(rendered), tmp_path)
    assert {target["job"] for target in targets} == JOBS
    assert all(target["pod"] == target["job"].replace("smcp-", "pod-of-") for target in targets)


def test_the_prometheus_operator_scrapes_each_process_under_the_jobs_of_the_alerts(
    rendered: Manifests, tmp_path: Path
) -> None:
    [monitor] = rendered.of("PodMonitor")
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    selected = [
        workload for workload in rendered.of(*WORKLOADS) if matches(monitor["spec"]["selector"], labels(workload))
    ]
    at_port = [each for each in pods(Manifests(selected)) if each[f"{META}container_port_name"] == endpoint["port"]]
    # the operator writes them so into the configuration of its Prometheus
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label", "replacement": "replacement"}
    rules = [{names[name]: value for name, value in rule.items()} for rule in endpoint["relabelings"]]
    job = {"job_name": "operator", "metrics_path": endpoint["path"], "relabel_configs": rules}
    assert {target["job"] for target in relabeled(job, at_port, tmp_path)} == JOBS


def pods(manifests: Manifests) -> list[dict[str, str]]:
    """What Prometheus's discovery of pods says of each port of each container: the part of it that is used here."""
    return [
        {
            f"{META}name": f"pod-of-{labels(workload).get(COMPONENT)}",
            f"{META}container_port_name": port["name"],
            **{f"{META}label_{sanitized(name)}": value for name, value in labels(workload).items()},
            **{f"{META}annotation_{sanitized(name)}": value for name, value in annotations(workload).items()},
        }
        for workload in manifests.of(*WORKLOADS)
        for container in pod(workload)["containers"]
        for port in container.get("ports", ())
    ]


def annotations(workload: dict[str, Any]) -> dict[str, str]:
    return dict(workload["spec"]["template"]["metadata"].get("annotations", {}))


def sanitized(name: str) -> str:
    """As Prometheus makes the name of a label of it."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def relabeled(job: dict[str, Any], found: list[dict[str, str]], directory: Path) -> list[dict[str, str]]:
    """The labels of the targets that Prometheus keeps of those found. Debian builds promtool without the discovery of
    pods, so the targets come from a file: all else of the job is read, and carried out, by promtool."""
    targets = [{"targets": [f"10.0.0.{number}:8081"], "labels": each} for number, each in enumerate(found, 1)]
    (directory / "targets.json").write_text(json.dumps(targets), encoding="utf-8")
    config = {"scrape_configs": [{**job, "file_sd_configs": [{"files": [str(directory / "targets.json")]}]}]}
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [promtool(), "check", "service-discovery", "--timeout=2s", directory / "prometheus.yaml", job["job_name"]]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return [each["labels"] for each in json.loads(done.stdout) if each["labels"]]
