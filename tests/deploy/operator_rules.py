"""The alert rules as an object for the Prometheus Operator: `make rules` writes it.

Its `spec` is the very content of a file of rules, so it is that file's text, further in: comments
and all. A test holds both equal.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus/clustermutex.rules.yml"
OBJECT = DEPLOY / "kubernetes/monitoring/rules.yaml"

_HEAD = """\
# Made of ../../prometheus/clustermutex.rules.yml by `make rules`: change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: clustermutex
  namespace: clustermutex
  labels: {app.kubernetes.io/part-of: clustermutex}
spec:
"""


def text() -> str:
    return _HEAD + textwrap.indent(RULES.read_text(encoding="utf-8"), "  ")


if __name__ == "__main__":
    OBJECT.write_text(text(), encoding="utf-8")
