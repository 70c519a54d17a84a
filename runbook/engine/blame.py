"""Where in the user's files a value stands that a shell cannot carry."""

from __future__ import annotations

from collections.abc import Mapping

from runbook.launch.job import Job
from runbook.launch.quote import CannotQuote
from runbook.launch.recipe import Recipe
from runbook.launch.script import complaints
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


def blamed(error: CannotQuote, recipe: Recipe, node: Node, job: Job | None, origins: Origins) -> list[Problem]:
    """A problem with its place for everything in the recipe that the node's shell refuses; never none.

    `error` is what stopped the script: it is told where no single value is to blame, such as a line that is too long.
    """
    redactor = Redactor(recipe.environment.values())
    return [
        Problem(
            "script.cannot-carry",
            f"no .{node.shell} script can hold this: {redactor.text(str(refused))}",
            _span(refused.place, recipe, node, job, origins),
        )
        for refused in list(complaints(recipe, node.shell)) or [error]
    ]


def _span(place: tuple[str, ...], recipe: Recipe, node: Node, job: Job | None, origins: Origins) -> Span | None:
    what, *names = place or ("",)
    if what in ("environment", "secret") and names:
        return _of_variable(names[0], node, job, origins)
    if what == "command" and job and recipe.command:
        # A launcher puts its own words before the job's: those at the end are the same.
        index = int(names[0]) + len(job.programs[node.name].command) - len(recipe.command)
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
