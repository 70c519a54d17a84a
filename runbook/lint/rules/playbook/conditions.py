"""A `when:` that is false on every cluster."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from runbook.lint.staging import Staged
from runbook.load.templating import names_used, truth
from runbook.model.errors import FilesWrong, Problem

_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"")
_MOST = 20_000  # clusters that are tried
_COUNTS = ("node_count", "world_size", "gpus")


def never_runs(staged: Staged) -> Iterator[Problem]:
    """Tried on all clusters that could make a difference.

    Not judged: a condition on variables, which `-e` may set, on the names of nodes, or with arithmetic in it.
    """
    when = staged.stage.when
    if when is None:
        return
    clusters = _clusters(when, frozenset(staged.file.playbook.vars))
    if clusters is None:
        return
    try:
        if any(truth(when, cluster) for cluster in clusters):
            return
    except FilesWrong:
        return  # the planner says what is wrong with it
    message = f"`when: {when}` is false on every cluster, so this stage never runs"
    help = "mend the condition; to keep a stage for later, give it a tag and use --skip-tags"
    yield Problem("playbook.never-runs", message, staged.span("when"), help)


def _clusters(when: str, variables: frozenset[str]) -> list[dict[str, object]] | None:
    """The facts of every cluster on which the condition may come out differently; None where they are too many."""
    expression = when.strip().removeprefix("{{").removesuffix("}}")
    names = sorted(names_used("{{ " + expression + " }}"))
    if set(names) - {*_COUNTS, "backend", "infiniband"} or variables & set(names):
        return None
    bare = _TEXT.sub("", expression)
    if re.search(r"[-+*/%|~.{}]", bare):
        return None
    written = {int(number) for number in re.findall(r"[0-9]{1,15}", bare)}
    numbers = sorted({0, 1, 2, 3, 8, 64, *written, *(number + 1 for number in written), *(n - 1 for n in written if n)})
    choices: list[list[object]] = [
        list(numbers) if name in _COUNTS else [True, False] if name == "infiniband" else ["nccl", "gloo"]
        for name in names
    ]
    total = 1
    for choice in choices:
        total *= len(choice)
    if total > _MOST:
        return None
    return [
        facts for values in itertools.product(*choices) if _possible(facts := dict(zip(names, values, strict=True)))
    ]


def _possible(facts: dict[str, object]) -> bool:
    nodes, ranks, gpus = (facts.get(name) for name in _COUNTS)
    if nodes == 0 or ranks == 0:
        return False
    if isinstance(nodes, int) and isinstance(ranks, int) and ranks < nodes:
        return False
    return not (isinstance(gpus, int) and isinstance(ranks, int) and gpus > ranks)
