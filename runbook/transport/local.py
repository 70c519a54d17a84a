"""This machine as a node: the same supervisor, behind a pair of pipes."""

from __future__ import annotations

from runbook.transport.bootstrap import command
from runbook.transport.process import ProcessStream


class LocalStream(ProcessStream):
    """Runs the bootstrap under a shell."""

    def __init__(self, python: str, shell: str = "/bin/sh") -> None:
        super().__init__([shell, "-c", command(python)])
