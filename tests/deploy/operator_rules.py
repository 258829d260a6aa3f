"""The alert rules as an object for the Prometheus Operator: `make rules` writes it.

Its `spec` is the content of a file of rules, so it is that file's text, indented, without comments.
A test compares both.
"""

from __future__ import annotations

import re
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
    rules = re.sub(r"^ *#.*\n", "", RULES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return _HEAD + re.sub(r"^(?=.)", "  ", rules, flags=re.MULTILINE)


if __name__ == "__main__":
    OBJECT.write_text(text(), encoding="utf-8")
