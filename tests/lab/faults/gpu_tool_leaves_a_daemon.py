"""nvidia-smi starts a daemon, which keeps its output open: it has answered all the same."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install_everywhere, two_each


def breaks(lab: Lab) -> None:
    install_everywhere(lab)
    host = lab["node-b"]
    host.write("/usr/local/bin/nvidia-smi.real", host.read("/usr/local/bin/nvidia-smi"), mode=0o755)
    host.tool("nvidia-smi", '(setsid sleep 300 &)\nexec /usr/local/bin/nvidia-smi.real "$@"')


FAULT = Fault(
    breaks=breaks,
    inventory=two_each,
    cause=None,
    says=(r"2 GPUs",),
    within_s=8,
)
