"""A host whose ranks call something else than their program does: broken user code, or broken hardware, stands in there."""

from __future__ import annotations

import sys
import textwrap

from .host import Host

WRAPPER = """\
# Wraps a function of torch.distributed in every rank on this host, as a careless `sitecustomize` does.
import builtins, os, signal, sys, time

called, done = 0, False
real_import = builtins.__import__


def meddled(real, *args, **options):
    global called
    called += 1
{code}


def watching_import(name, *args, **options):
    global done
    module = real_import(name, *args, **options)
    dist = sys.modules.get("torch.distributed")
    if dist and not done and hasattr(dist, "{name}") and not dist.__spec__._initializing:
        builtins.__import__, done = real_import, True
        real = dist.{name}
        dist.{name} = lambda *args, **options: meddled(real, *args, **options)
    return module


if "RANK" in os.environ:
    builtins.__import__ = watching_import
"""


def meddle(host: Host, code: str, name: str = "all_reduce") -> None:
    """Have `code` run in place of a function of torch.distributed. It sees `real`, `args`, `options` and `called`, how
    often it was called with this time, and returns what the function should give."""
    write_sitecustomize(host, WRAPPER.format(code=textwrap.indent(code, "    "), name=name))


def at_start(host: Host, code: str) -> None:
    """Have `code` run at the start of every rank's Python on this host."""
    write_sitecustomize(host, f'import os, time\nif "RANK" in os.environ:\n{textwrap.indent(code, "    ")}\n')


def write_sitecustomize(host: Host, text: str) -> None:
    folder = f"/opt/runbook-lab/venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    host.write(f"{folder}/sitecustomize.py", text)
