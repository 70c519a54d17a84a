"""Rules about stages and variables of a playbook: errors of the planner, and plans that make no sense."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator

from runbook.checks.allreduce import AllReduce
from runbook.checks.base import Check
from runbook.files.templating import condition_holds, is_template, template_variables
from runbook.files.yaml_document import iterate_scalars
from runbook.launch.ranks import hca_expression, network_environment
from runbook.lint.planned_stages import Staged, plan_stages
from runbook.lint.rule_inputs import PlaybookFile
from runbook.lint.rules import commands, launches
from runbook.model.errors import FilesWrong, Problem
from runbook.model.inventory import Inventory, Node
from runbook.model.units import bytes_text, seconds_text, significant_digits_text

_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"")
_MAX_CLUSTERS = 20_000  # clusters that are tried
_COUNTS = ("node_count", "world_size", "gpus")


def never_runs(staged: Staged) -> Iterator[Problem]:
    """Reports a `when:` that is false on every cluster. It is tried on all clusters that could make a difference.

    Not judged: a condition on variables, which `-e` may set, on the names of nodes, or with arithmetic in it.
    """
    when = staged.stage.when
    if when is None:
        return
    clusters = _clusters_to_judge(when, frozenset(staged.file.playbook.vars))
    if clusters is None:
        return
    try:
        if any(condition_holds(when, cluster) for cluster in clusters):
            return
    except FilesWrong:
        return  # the planner says what is wrong with it
    message = f"`when: {when}` is false on every cluster, so this stage never runs"
    help = "mend the condition; to keep a stage for later, give it a tag and use --skip-tags"
    yield Problem("playbook.never-runs", message, staged.span("when"), help)


def _clusters_to_judge(when: str, variables: frozenset[str]) -> list[dict[str, object]] | None:
    """The facts of every cluster on which the condition may come out differently; None if they are too many, or if the
    condition is not judged."""
    expression = when.strip().removeprefix("{{").removesuffix("}}")
    names = sorted(template_variables("{{ " + expression + " }}"))
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
    if math.prod(map(len, choices)) > _MAX_CLUSTERS:
        return None
    clusters = (dict(zip(names, values, strict=True)) for values in itertools.product(*choices))
    return list(filter(_is_possible_cluster, clusters))


def _is_possible_cluster(facts: dict[str, object]) -> bool:
    nodes, ranks, gpus = (facts.get(name) for name in _COUNTS)
    if nodes == 0 or ranks == 0:
        return False
    if isinstance(nodes, int) and isinstance(ranks, int) and ranks < nodes:
        return False
    return not (isinstance(gpus, int) and isinstance(ranks, int) and gpus > ranks)


# Bandwidth gates that cannot be met, and checks of several ranks that are given one.

MIN_ALLREDUCE_S = 5e-6
"""Seconds: no AllReduce over a network is quicker, however small."""


def one_rank(staged: Staged) -> Iterator[Problem]:
    """Reports a check of several ranks, or a gate, in a stage with a single rank."""
    check = staged.planned.check if staged.planned else None
    if staged.cluster is None or check is None or not check.needs_ranks or staged.cluster.world_size > 1:
        return
    node = staged.cluster.nodes[0].name
    help = "select more nodes, or give the node more `gpus` (`processes` on a CPU)"
    if isinstance(check, AllReduce) and _numeric_gate(check):
        message = f"this gate can never be met: {node} alone is one rank, and its bus bandwidth is zero by definition"
        yield Problem("playbook.gate-one-rank", message, staged.span("with", "min_busbw_gbytes"), help)
    else:
        message = f"`{check.id}` needs several ranks to prove anything, and here it has one, on {node}"
        yield Problem("playbook.one-rank", message, staged.span("check"), help)


def gate_too_high(staged: Staged) -> Iterator[Problem]:
    """Reports a bandwidth gate above what the adapters of a node can carry."""
    gate, cluster = _busbw_gate(staged), staged.cluster
    if gate is None or cluster is None or cluster.infiniband is None or len(cluster.nodes) < 2:
        return
    rate = cluster.infiniband.min_rate_gbps
    if rate is None or cluster.one_machine:
        return
    adapters, node = min(((_adapter_count(cluster, node), node) for node in cluster.nodes), key=lambda pair: pair[0])
    wire = adapters * rate / 8
    environment = network_environment(cluster, node)
    algorithm = str(environment.get("NCCL_ALGO", "")).lower()
    if str(environment.get("NCCL_COLLNET_ENABLE", 0)) != "0" or "collnet" in algorithm:
        return  # switches add up the data: a node then sends half of the bytes that bus bandwidth counts
    rings = algorithm.removeprefix("allreduce:") == "ring"
    limit = wire if rings else wire * _busbw_factor(cluster.world_size) / _busbw_factor(len(cluster.nodes))
    if gate <= limit:
        return
    many = "one adapter" if adapters == 1 else f"{adapters} adapters"
    message = (
        f"a gate of {significant_digits_text(gate)} GB/s is above what {node.name} can carry: "
        f"{many} of {significant_digits_text(rate)} Gbit/s, that is {significant_digits_text(wire)} GB/s"
    )
    if limit > wire:
        message += (
            f", which shows as {significant_digits_text(limit)} GB/s at most where ranks "
            "add up inside of their node first"
        )
    help = "lower the gate; 8 Gbit/s are 1 GB/s"
    yield Problem("playbook.gate-too-high", message, staged.span("with", "min_busbw_gbytes"), help)


def _busbw_factor(parties: int) -> float:
    """The bytes that an AllReduce among so many parties moves for each byte of data, as its bus bandwidth counts
    them."""
    return 2 * (parties - 1) / parties


def gate_too_small(staged: Staged) -> Iterator[Problem]:
    """Reports a gate at so small a message that latency alone takes longer."""
    gate, check = _busbw_gate(staged), staged.planned.check if staged.planned else None
    if gate is None or not isinstance(check, AllReduce) or staged.cluster is None or staged.cluster.world_size < 2:
        return
    ranks = staged.cluster.world_size
    seconds = _busbw_factor(ranks) * check.max_bytes / (gate * 1e9)
    if seconds >= MIN_ALLREDUCE_S:
        return
    message = (
        f"a gate of {significant_digits_text(gate)} GB/s at {bytes_text(check.max_bytes)} needs an AllReduce within "
        f"{significant_digits_text(seconds * 1e6)} µs, and latency alone is longer"
    )
    help = "the gate looks at the largest size: raise `max_bytes`, for example to 1G"
    yield Problem("playbook.gate-too-small", message, staged.span("with", "min_busbw_gbytes"), help)


def _busbw_gate(staged: Staged) -> float | None:
    check = staged.planned.check if staged.planned else None
    return _numeric_gate(check) if isinstance(check, AllReduce) else None


def _numeric_gate(check: AllReduce) -> float | None:
    """The gate where it is a number above zero; `auto` is judged by the run, which sees the hardware."""
    return check.min_busbw_gbytes or None if isinstance(check.min_busbw_gbytes, float) else None


def _adapter_count(cluster: Inventory, node: Node) -> int:
    """The number of a node's adapters: as many as its HCA expression names with their numbers, or else one a GPU, as
    most machines are built."""
    expression = hca_expression(cluster, node) or ""
    names = [name for name in expression.removeprefix("=").split(",") if name]
    if names and not expression.startswith("^") and all(re.search(r"[0-9](:[0-9]+)?$", name) for name in names):
        exact = [name.partition(":")[0] for name in names]
        if expression.startswith("=") or all(re.search(r"_[0-9]+$", name) for name in exact):
            return len(set(names))
    return max(1, len(node.gpus))


# Times of a stage that contradict each other, and a tag that means something elsewhere.


def contradicting_timeouts(staged: Staged) -> Iterator[Problem]:
    """Reports a timeout of a stage that comes before another time of the stage is over."""
    timeout = staged.stage.timeout_s
    check = staged.planned.check if staged.planned else None
    if timeout is None or check is None:
        return
    shown = seconds_text(timeout)
    where = staged.span("timeout")
    if check.user_job is not None:
        start = check.user_job.launch.start_timeout_s
        if start is not None and start > timeout:
            message = f"the nodes may take {seconds_text(start)} to be ready, and the launch {shown} in all"
            help = (
                "`timeout` is for the whole program, `start_timeout` for the time until every node is ready to start it"
            )
            yield Problem("playbook.start-timeout-above-timeout", message, where, help)
        return
    budget, stall = _seconds_argument(check, "budget"), _seconds_argument(check, "stall")
    if budget is not None and timeout < budget:
        message = f"the timeout of {shown} comes before the stage's own budget of {seconds_text(budget)} is used up"
        help = "leave `timeout` out: it is then the budget and what joining may take on top"
        yield Problem("playbook.timeout-below-budget", message, where, help)
    if stall is not None and timeout < stall:
        message = f"the timeout of {shown} comes before {seconds_text(stall)} of silence count as a stall"
        help = "a stall names the rank that is behind, a timeout does not: make `stall` shorter"
        yield Problem("playbook.stall-above-timeout", message, where, help)


def ansible_tag(staged: Staged) -> Iterator[Problem]:
    if "never" in staged.stage.tags:
        message = "the tag `never` keeps no stage from running, as it would in Ansible"
        help = "leave the stage out with --skip-tags, or remove the tag"
        yield Problem("playbook.ansible-tag", message, staged.span("tags"), help)


def _seconds_argument(check: Check, name: str) -> float | None:
    value = getattr(check, name, None)
    return float(value) if isinstance(value, int | float) else None


# Variables that are not used or that hide something, and templates where none is filled in.

_MAX_PARSED_TEMPLATES = 2000  # templates of one file; of more, every word counts as a variable that is used
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
CLUSTER_FACTS = ("nodes", "node_count", "world_size", "gpus", "backend", "infiniband", "master")


def unused_vars(file: PlaybookFile) -> Iterator[Problem]:
    """Reports variables that no stage uses. Uses are looked for in the stages as typed: a stage that is wrong elsewhere
    still uses its variables."""
    if any(problem.id == "yaml.unquoted-template" for problem in file.document.problems):
        return  # the template that uses a variable may be lost
    stages = file.document.mapping.get("stages")
    if not isinstance(stages, list):
        return  # all uses are lost
    unused = _unused_variables(set(file.playbook.vars), stages)
    for name in file.playbook.vars:
        if name in unused and file.document.key_span("vars", name) is not None:
            message = f"no stage uses the variable `{name}`"
            help = "remove it, or use it: {{ " + name + " }}"
            yield Problem("playbook.unused-var", message, file.document.key_span("vars", name), help)


def shadowed_facts(file: PlaybookFile) -> Iterator[Problem]:
    for name in file.playbook.vars:
        if name in CLUSTER_FACTS:
            message = f"the variable `{name}` hides the fact of that name, which follows the inventory"
            yield Problem("playbook.shadowed-fact", message, file.document.key_span("vars", name), "rename it")


def templates_in_vars(file: PlaybookFile) -> Iterator[Problem]:
    for keys, text in iterate_scalars(file.document.mapping.get("vars"), ("vars",)):
        if isinstance(text, str) and is_template(text):
            message = f"`{text}` is not filled in: a stage that uses the variable gets the braces"
            help = "compute it in the stage that uses it"
            yield Problem("playbook.template-in-var", message, file.document.span(*keys), help)


_UNTEMPLATED_KEYS: tuple[tuple[str, ...], ...] = (
    *(("name",), ("inventory",), ("stages", "name"), ("stages", "tags")),
    *(("stages", "expect", "stdout"), ("stages", "launch", "barrier_folder")),
)


def misplaced_templates(file: PlaybookFile) -> Iterator[Problem]:
    """Reports templates at keys that are not filled in, and where no other rule reports them."""
    for keys, text in iterate_scalars(file.document.data):
        way = tuple(key for key in keys if isinstance(key, str))
        if way in _UNTEMPLATED_KEYS and isinstance(text, str) and "{{" in text and keys not in file.wrong:
            message = f"the template in `{way[-1]}` is not filled in: it stays as it is"
            help = "templates belong into `with`, `shell`, and `command`, `env` or `workdir` of a launch"
            yield Problem("playbook.template-not-here", message, file.document.span(*keys), help)


def _unused_variables(variables: set[str], stages: object) -> set[str]:
    """The variables that no template mentions, nor any `when`, which is an expression without braces."""
    parsed = 0
    for keys, text in iterate_scalars(stages):
        if not isinstance(text, str):
            continue
        condition = keys[-1:] == ("when",)
        words = set(_IDENTIFIER.findall(text)) if variables and (condition or is_template(text)) else set()
        if variables.isdisjoint(words):
            continue
        parsed += 1
        names = set()
        if parsed <= _MAX_PARSED_TEMPLATES:
            names = template_variables(text) | (template_variables("{{ " + text + " }}") if condition else set())
        variables = variables - (names or words)  # every word counts of a template that cannot be parsed
    return variables


# All of them.


def reach_listed(stage: Staged) -> Iterator[Problem]:
    if stage.stage.check == "reach" and stage.sound():
        message = "`reach` always runs first and need not be listed: it runs once"
        yield Problem("playbook.reach-listed", message, stage.span(), "remove this stage")


STAGE_RULES: tuple[Callable[[Staged], Iterable[Problem]], ...] = (
    reach_listed,
    never_runs,
    one_rank,
    gate_too_high,
    gate_too_small,
    contradicting_timeouts,
    ansible_tag,
    *commands.STAGE_RULES,
    *launches.STAGE_RULES,
)


def stages(file: PlaybookFile) -> Iterator[Problem]:
    """Reports the planner's problems, and those of all rules about stages."""
    staged, problems = plan_stages(file)
    yield from problems
    for stage in staged:
        for rule in STAGE_RULES:
            yield from rule(stage)
    for order_rule in launches.ORDER_RULES:
        yield from order_rule(staged)


PLAYBOOK_RULES = (stages, unused_vars, shadowed_facts, templates_in_vars, misplaced_templates)
