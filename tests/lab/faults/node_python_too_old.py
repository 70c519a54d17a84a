"""The interpreter that the inventory names is Python 3.6."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def age(lab: Lab) -> None:
    """A Python that takes itself for 3.6: this machine need not have one."""
    young = "import sys; sys.version_info = (3, 6, 15, 'final', 0); sys.version = '3.6.15'; "
    lab["node-b"].tool(
        "python3.6",
        'options=; while [ "$1" != -c ]; do options="$options $1"; shift; done; code=$2; shift 2\n'
        f'exec {lab.python_without_torch} $options -c "{young}$code" "$@"',
    )


FAULT = Fault(
    breaks=age,
    inventory=lambda lab: {"nodes": {"node-b": {"python": "/usr/local/bin/python3.6"}}},
    stage="reach",
    cause="python-too-old",
    nodes="node-b",
    says=(r"older than Python 3.8",),
    within_s=6,
)
