"""Where in the user's files a value stands that a shell cannot carry."""

from __future__ import annotations

from collections.abc import Mapping

from runbook.launch.job import Job
from runbook.launch.quote import CannotQuote
from runbook.launch.script import complaints
from runbook.launch.spec import ScriptSpec
from runbook.load.document import Keys
from runbook.load.origins import Origins
from runbook.model.errors import Problem, Span
from runbook.model.inventory import Node
from runbook.model.redact import Redactor

_DERIVED: Mapping[str, Keys] = {
    "MASTER_ADDR": ("rendezvous", "address"),
    "GLOO_SOCKET_IFNAME": ("network", "interface"),
    "NCCL_SOCKET_IFNAME": ("network", "interface"),
    "NCCL_IB_HCA": ("infiniband", "hca"),
}
"""Where a variable comes from that nobody set in an `env:`."""


def blamed(error: CannotQuote, spec: ScriptSpec, node: Node, job: Job | None, origins: Origins) -> list[Problem]:
    """A problem with its place for everything in the spec that the node's shell refuses; never none.

    `error` is what stopped the script: it is told where no single value is to blame, such as a line that is too long.
    """
    redactor = Redactor(spec.environment.values())
    refused = list(complaints(spec, node.shell))
    return [
        Problem(
            "script.cannot-carry",
            f"no .{node.shell} script can hold this: {redactor.text(str(one))}",
            _span(one, spec, node, job, origins) if refused else _of_longest_word(one, spec, node, job, origins),
        )
        for one in refused or [error]
    ]


def _of_longest_word(
    error: CannotQuote, spec: ScriptSpec, node: Node, job: Job | None, origins: Origins
) -> Span | None:
    """Where words are well one by one, and too long together."""
    words = job.programs[node.name].command if job else ()
    longest = max(range(len(words)), key=lambda index: len(words[index]), default=0)
    return job.span("command", longest) if job else _span(error, spec, node, job, origins)


def _span(refused: CannotQuote, spec: ScriptSpec, node: Node, job: Job | None, origins: Origins) -> Span | None:
    what, *names = refused.place or ("",)
    if what in ("environment", "secret") and names:
        # Of two names that are one on Windows, the value is one, and the place only the last of all.
        alike = [name for name in reversed(list(spec.environment)) if name.upper() == (refused.value or "").upper()]
        spans = (_of_variable(name, node, job, origins) for name in (names[0], *alike))
        return next((span for span in spans if span), None)
    if what == "command" and job and spec.command:
        # A launcher puts its own words before the job's: those at the end are the same.
        index = int(names[0]) + len(job.programs[node.name].command) - len(spec.command)
        return job.span("command", index) if index >= 0 else origins.span(node.name, "python")
    if what == "workdir" and job:
        return job.span("workdir")
    if what == "activate":
        return origins.span(node.name, "activate")
    if what in ("command", "python"):
        return origins.span(node.name, "python")
    if what == "address":
        return _of_variable("MASTER_ADDR", node, job, origins)
    return job.span() if job else None


def _of_variable(name: str, node: Node, job: Job | None, origins: Origins) -> Span | None:
    if job and name in job.programs[node.name].env:
        return job.span("env", name)
    own = origins.span(node.name, "env", name)
    return origins.document.span(*_DERIVED[name]) if own is None and name in _DERIVED else own
