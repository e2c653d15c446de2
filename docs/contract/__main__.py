"""`python -m docs.contract`: write the documents. With `--check`: 1 and the names of those that are not current."""

import sys
from collections.abc import Mapping
from pathlib import Path

from docs.contract import asyncapi, schemas
from docs.contract.computer_config import config_schema

DOCS = Path(__file__).parents[1]
SHIPPED = DOCS.parent / "services" / "computer" / "src" / "smcp_computer" / "config" / "schema.json"
"""What `smcp-computer schema` prints."""
ALERTS = DOCS.parent / "deploy" / "observe" / "alerts.yaml"
RULE = ALERTS.parent / "prometheus-operator" / "prometheus-rule.yaml"
RULE_HEAD = """\
# alerts.yaml for the Prometheus Operator; `make docs` writes it.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: smcp
  labels:
    app.kubernetes.io/part-of: a2c-smcp
    release: kube-prometheus-stack
spec:
"""


def documents() -> Mapping[Path, str]:
    """Every file that is written, and what stands in it."""
    written = {DOCS / "schemas" / f"{name}.json": schemas.written(each) for name, each in schemas.all_schemas().items()}
    written[SHIPPED] = written[DOCS / "schemas" / "computer-config.json"] = schemas.written(config_schema())
    rules = ALERTS.read_text(encoding="utf-8").partition("groups:")
    written[RULE] = RULE_HEAD + "".join(f"  {line}" for line in "".join(rules[1:]).splitlines(keepends=True))
    return {DOCS / "asyncapi.yaml": asyncapi.written(asyncapi.asyncapi()), **written}


def stale(wanted: Mapping[Path, str]) -> list[Path]:
    """Files that are missing, that say something else, or that nobody writes any more."""
    present = set(DOCS.glob("schemas/*.json"))
    different = {path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text}
    return sorted(different | (present - wanted.keys()))


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python -m docs.contract [--check]\n")
        return 2
    wanted = documents()
    found = stale(wanted)
    if arguments:
        for path in found:
            sys.stderr.write(f"{path.relative_to(DOCS.parent)} is not current: python -m docs.contract\n")
        return min(len(found), 1)
    for path in found:
        if path in wanted:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
