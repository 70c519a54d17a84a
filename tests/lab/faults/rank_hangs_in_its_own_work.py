"""A rank hangs between two collectives, in its own arithmetic, while the others wait for what to do next."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import write_sitecustomize

WRAPPER = """\
import builtins, os, sys, time

real_import = builtins.__import__
calls = []


def slow_equal(real, *tensors):
    calls.append(1)
    if len(calls) == 3:
        time.sleep(1000)
    return real(*tensors)


def watching_import(name, *args, **options):
    module = real_import(name, *args, **options)
    torch = sys.modules.get("torch")
    if torch and hasattr(torch, "equal") and not torch.__spec__._initializing:
        builtins.__import__, real = real_import, torch.equal
        torch.equal = lambda *tensors: slow_equal(real, *tensors)
    return module


if "RANK" in os.environ:
    builtins.__import__ = watching_import
"""

FAULT = Fault(
    breaks=lambda lab: write_sitecustomize(lab["node-b"], WRAPPER),
    stage="small",
    cause="rank-behind",
    nodes="node-b",
    says=(r"rank 1 on node-b (?:is somewhere else|never called barrier) .* in slow_equal",),
    within_s=12,
)
