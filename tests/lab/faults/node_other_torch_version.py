"""One node runs another version of torch than the others."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def install(lab: Lab) -> None:
    """The real torch, with the version.py of another one."""
    code = (
        "import sys, types\n"
        "version = sys.modules['torch.version'] = types.ModuleType('torch.version')\n"
        "version.__version__ = '2.1.0+cu118'; version.cuda = version.hip = version.xpu = version.git_version = None\n"
        "version.debug = False\n"
    )
    lab["node-b"].write("/opt/other/sitecustomize.py", code)


FAULT = Fault(
    breaks=install,
    inventory=lambda lab: {"nodes": {"node-b": {"env": {"PYTHONPATH": "/opt/other"}}}},
    hosts=3,
    stage="reach",
    cause="torch-version-mismatch",
    ranks=True,
    nodes="node-b",
    says=(r"2.1.0",),
    within_s=6,
)
