"""Lets a training be asked where it stands. At one signal that nothing else uses, the stack of its main thread goes
into a file; at a second one, the stacks of all of its threads. At a crash, the crashing thread's stack goes to stderr.

The second signal is only for a process that is over. Python walks the stacks of other threads while they run: 3.12 and
3.13 crashed after three such signals while three threads called functions, 3.11 after seventeen.

A forked child writes into a file of its own: a data loader that hangs is often the reason why its rank waits.

This file is pushed as `sitecustomize.py` into a folder of its own, which the launch script puts first on PYTHONPATH,
unless `watch:` says `stacks: false`. Python imports it before the program; the `sitecustomize` that it hides is
imported as well. Python 3.8, standard library.
Environment: RUNBOOK_STACKS, that folder. Writes FOLDER/PID.stack. A reader of the stacks sends SIGRTMIN + 7, or + 8,
only to a process that catches the signal by /proc/PID/status.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib.machinery
import importlib.util
import os
import signal
import sys

STACK_SIGNAL_OFFSET, ALL_STACKS_SIGNAL_OFFSET = 7, 8


def enable_crash_dump() -> None:
    """Enables faulthandler at a crash, unless the user has: only for the crashing thread, since the others run on."""
    try:
        if not faulthandler.is_enabled():
            faulthandler.enable(all_threads=False)
    except (OSError, ValueError, RuntimeError, AttributeError):
        pass  # the process has no stderr


def register_stack_signals(folder: str) -> None:
    first = getattr(signal, "SIGRTMIN", None)
    if first is None or not hasattr(faulthandler, "register"):
        return
    for number, all_threads in (
        (int(first) + STACK_SIGNAL_OFFSET, False),
        (int(first) + ALL_STACKS_SIGNAL_OFFSET, True),
    ):
        try:
            if signal.getsignal(number) != signal.SIG_DFL:
                continue
        except ValueError:
            continue
        register_own_stack_file(number, folder, all_threads)
        os.register_at_fork(after_in_child=functools.partial(register_own_stack_file, number, folder, all_threads))


def register_own_stack_file(number: int, folder: str, all_threads: bool) -> None:
    try:
        path = os.path.join(folder, "%d.stack" % os.getpid())
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.register(number, file=descriptor, all_threads=all_threads)
    except (OSError, ValueError, RuntimeError):
        pass  # a training must not fail because it cannot be asked for stacks


def import_hidden_sitecustomize(folder: str) -> None:
    """Imports the `sitecustomize` that Python would have found without this one."""
    elsewhere = [path for path in sys.path if os.path.abspath(path) != folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("RUNBOOK_STACKS"):
    enable_crash_dump()
    register_stack_signals(os.environ["RUNBOOK_STACKS"])
    import_hidden_sitecustomize(os.path.abspath(os.environ["RUNBOOK_STACKS"]))
