"""Lets a training be asked where it is: at a signal that nothing else uses, the stacks of all its threads go into a
file. A crash is asked at once: its own thread's stack goes to stderr.

A child that is forked writes into a file of its own: a data loader that hangs is often why its rank waits.

Pushed as `sitecustomize.py` into a folder of its own, which the launch script puts first on PYTHONPATH, unless `watch:`
says `stacks: false`. Python imports it before the program; the `sitecustomize` that it hides is imported as well.
Python 3.8, standard library.

Environment: RUNBOOK_STACKS, that folder. Writes FOLDER/PID.stack; a reader of the stacks sends SIGRTMIN + 7, only to a
process that catches it by /proc/PID/status.
"""

from __future__ import annotations

import faulthandler
import importlib.machinery
import importlib.util
import os
import signal
import sys

ABOVE_RTMIN = 7


def dump_at_a_crash() -> None:
    """Unless the program's user asked for that. Of the thread that crashes alone: the others run on."""
    try:
        if not faulthandler.is_enabled():
            faulthandler.enable(all_threads=False)
    except (OSError, ValueError, RuntimeError, AttributeError):
        pass  # it has no stderr


def register(folder: str) -> None:
    number = getattr(signal, "SIGRTMIN", None)
    if number is None or not hasattr(faulthandler, "register"):
        return
    number = int(number) + ABOVE_RTMIN
    try:
        if signal.getsignal(number) != signal.SIG_DFL:
            return
    except ValueError:
        return
    write_into_own_file(number, folder)
    os.register_at_fork(after_in_child=lambda: write_into_own_file(number, folder))


def write_into_own_file(number: int, folder: str) -> None:
    try:
        path = os.path.join(folder, "%d.stack" % os.getpid())
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.register(number, file=descriptor, all_threads=True)
    except (OSError, ValueError, RuntimeError):
        pass  # a training must not fail because it cannot be asked for stacks


def hidden(folder: str) -> None:
    """Import the `sitecustomize` that would have been found without us."""
    elsewhere = [path for path in sys.path if os.path.abspath(path) != folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("RUNBOOK_STACKS"):
    dump_at_a_crash()
    register(os.environ["RUNBOOK_STACKS"])
    hidden(os.path.abspath(os.environ["RUNBOOK_STACKS"]))
