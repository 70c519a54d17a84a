"""Rules about launches: keys that contradict each other, a launch's place among the stages, scripts that cannot be
written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from runbook.engine.plan import Plan
from runbook.engine.scripts import node_files
from runbook.files.templating import is_template
from runbook.jobs.retry import FIRST_RETRY_INTERVAL_S, MAX_RETRY_INTERVAL_S
from runbook.launch.ranks import narrow_inventory
from runbook.lint.planned_stages import Staged
from runbook.lint.rules.node_values import UNEXPANDED_VARIABLE, not_expanded_problem
from runbook.model.errors import FilesWrong, Problem
from runbook.model.inventory import Inventory, Node
from runbook.model.units import seconds_text

_LOCAL_FOLDER = re.compile(r"/(tmp|var/tmp|dev|run|var/run|proc)(/|$)")
_RUN_ONLY_KEYS = (
    *("retries", "spares", "start_timeout", "rendezvous_timeout", "grace", "watch"),
    *("detach", "barrier", "barrier_folder"),
)
"""Keys that a rendered script knows nothing of."""


_MIN_STALL_S = 5.0
"""A step of a large model, an evaluation or a checkpoint takes longer; no rank can be looked at in less."""


def detached_launch_keys(staged: Staged) -> Iterator[Problem]:
    """Reports keys that do nothing, or not what they say, in a detached launch."""
    if not _is_launch_key_given(staged, "detach") or not staged.stage.launch.detach:
        return
    if _is_launch_key_given(staged, "retries") and staged.stage.launch.retries:
        message = (
            "with `detach: true` the job is tried again only while it is watched: "
            "in its first ten seconds, or by `runbook serve`"
        )
        help = "`runbook attach` names the cause of a later failure; without `detach` every failure has its retries"
        yield Problem("playbook.retries-of-detached", message, staged.span("launch", "retries"), help)
    if staged.stage.timeout_s is not None and staged.sound("timeout"):
        message = (
            "with `detach: true` nothing ends the job at this timeout: the stage is over once the job is left alone"
        )
        help = "remove it: `runbook stop` ends the job; a limit of its own belongs into the program"
        yield Problem("playbook.timeout-of-detached", message, staged.span("timeout"), help)


def watch_does_nothing(staged: Staged) -> Iterator[Problem]:
    """Reports a `watch:` that nobody acts on."""
    launch = staged.stage.launch
    if launch.watch is None or not staged.sound("launch"):
        return
    span = staged.key_span("launch", "watch")
    if launch.detach:
        message = "only `runbook serve` watches a detached job: a command leaves it after ten seconds"
        yield Problem("playbook.watch-does-nothing", message, span, "remove `watch`, or `detach`")
    elif launch.watch.on_stall == "retry" and not launch.retries:
        message = "`on_stall: retry` ends the job, and there is no other attempt without `retries`"
        yield Problem("playbook.watch-does-nothing", message, span, "add `retries: 1`, or write `on_stall: stop`")


def stall_too_short(staged: Staged) -> Iterator[Problem]:
    watch = staged.stage.launch.watch
    if watch is None or not staged.sound("launch"):
        return
    stall_s = watch.stall_s
    if stall_s is not None and stall_s < _MIN_STALL_S:
        message = f"a step that takes longer than {seconds_text(stall_s)} would count as a stall, and checkpoints do"
        help = "write minutes, such as `stall: 10m`; `auto` learns it from the steps"
        yield Problem("playbook.stall-too-short", message, staged.span("launch", "watch", "stall"), help)


def spares_do_nothing(staged: Staged) -> Iterator[Problem]:
    """Reports `spares:` that can never take another node's place."""
    launch = staged.stage.launch
    if not _is_launch_key_given(staged, "spares") or not launch.spares:
        return
    span = staged.key_span("launch", "spares")
    if launch.detach:
        message = "only `runbook serve` puts a spare into a detached job: a command leaves it after ten seconds"
        yield Problem("playbook.spares-do-nothing", message, span, "remove `spares`, or `detach`")
    elif not launch.retries:
        message = "a spare takes its place in another attempt, and there is none without `retries`"
        yield Problem("playbook.spares-do-nothing", message, span, "add `retries: 1`")


def retries_above_timeout(staged: Staged) -> Iterator[Problem]:
    timeout, retries = staged.stage.timeout_s, staged.stage.launch.retries
    if timeout is None or not retries or staged.stage.launch.detach:
        return
    waits = sum(min(MAX_RETRY_INTERVAL_S, FIRST_RETRY_INTERVAL_S * 2**number) for number in range(retries))
    if waits >= timeout and staged.sound("launch", "retries"):
        attempts = f"{retries} more attempts" if retries > 1 else "another attempt"
        message = (
            f"the waits before {attempts} are {seconds_text(waits)}, and all has to fit into {seconds_text(timeout)}"
        )
        help = "`timeout` is for all attempts together, with what they compute: leave it out, or retry less often"
        yield Problem("playbook.retries-above-timeout", message, staged.span("launch", "retries"), help)


def grace_above_timeout(staged: Staged) -> Iterator[Problem]:
    timeout, grace = staged.stage.timeout_s, staged.stage.launch.grace_s
    if timeout is None or not _is_launch_key_given(staged, "grace"):
        return
    if grace > timeout and not staged.stage.launch.detach:
        message = f"the ranks may run for {seconds_text(timeout)} and then take {seconds_text(grace)} to end"
        help = "`timeout` is for the whole training, and ends it; a launch without one lasts as long as its ranks"
        yield Problem("playbook.grace-above-timeout", message, staged.span("launch", "grace"), help)


def barrier_folder_unused(staged: Staged) -> Iterator[Problem]:
    if (
        _is_launch_key_given(staged, "barrier_folder")
        and staged.sound("launch")
        and staged.stage.launch.barrier != "file"
    ):
        message = "`barrier_folder` does nothing without `barrier: file`: here the controller starts all nodes together"
        span = staged.key_span("launch", "barrier_folder")
        yield Problem("playbook.barrier-folder-unused", message, span, "add `barrier: file`, or remove it")


def barrier_not_shared(staged: Staged) -> Iterator[Problem]:
    """Reports a barrier in a folder that is each node's own: every node would wait in it for the others, alone."""
    launch, nodes = staged.stage.launch, staged.cluster.nodes if staged.cluster else ()
    if launch.barrier != "file" or not staged.sound("launch"):
        return
    if staged.cluster and (len(nodes) < 2 or all(node.connection == "local" for node in nodes)):
        return
    folder = launch.barrier_folder
    own = _folder_not_shared(folder, nodes) if folder is not None else _workdirs_not_shared(nodes)
    if own:
        place = "barrier" if folder is None else "barrier_folder"
        help = "name a folder that all of them mount, for example `barrier_folder: /shared/barrier`"
        yield Problem("playbook.barrier-not-shared", own, staged.span("launch", place), help)


def barrier_not_expanded(staged: Staged) -> Iterator[Problem]:
    """Reports a `barrier_folder` with text that only a shell would replace, as `inventory.not-expanded`."""
    folder = staged.stage.launch.barrier_folder
    if folder is not None and not is_template(folder) and UNEXPANDED_VARIABLE.search(folder):
        yield not_expanded_problem(folder, staged.span("launch", "barrier_folder"))


def launch_on_windows(staged: Staged) -> Iterator[Problem]:
    """Reports keys of a launch that scripts for Windows know nothing of."""
    if not _is_all_windows(staged):
        return
    given = [key for key in _RUN_ONLY_KEYS if _is_launch_key_given(staged, key)]
    if given:
        names = " and ".join(f"`{key}`" for key in given)
        verb = "is" if len(given) == 1 else "are"
        message = (
            f"{names} {verb} for `runbook run`, which does not run stages on Windows: the scripts know nothing of it"
        )
        span = staged.key_span("launch", given[0])
        help = "remove it; the script runs its ranks once, and waits"
        yield Problem("playbook.launch-on-windows", message, span, help)


def unchecked_launch(stages: Sequence[Staged]) -> Iterator[Problem]:
    """Reports the first launch if the checks that could say why it fails come later or not at all."""
    number = next((number for number, staged in enumerate(stages) if staged.stage.kind == "launch"), None)
    if number is None:
        return
    launch = stages[number]
    before = [staged for staged in stages[:number] if staged.stage.check != "reach"]
    later = [staged for staged in stages[number:] if staged.stage.kind == "check" and staged.stage.check != "reach"]
    message = None
    if later and not any(staged.stage.kind == "check" for staged in before):
        message = f"`{later[0].stage.name}` comes after this launch, which it should guard"
    elif not before and launch.cluster and len({node.address for node in launch.cluster.nodes}) > 1:
        windows = any(node.windows for node in launch.cluster.nodes)
        if not windows:
            message = "nothing is checked before this launch: what is blocked shows as a job that hangs"
    if message:
        help = "put `- check: ping`, `- check: port`, `- check: firewall` and `- check: connection` before it"
        yield Problem("playbook.unchecked-launch", message, launch.span("launch"), help)


_NETWORK_CHECKS = ("ping", "port", "firewall", "ibstat")
_RANK_CHECKS = ("connection", "links", "allreduce")


def check_too_late(stages: Sequence[Staged]) -> Iterator[Problem]:
    """Reports a check of the way between the nodes that comes after a check with ranks on the same nodes: the latter
    fails for the same reason, and stops the run."""
    stopping: list[Staged] = []
    seen: set[str | None] = set()
    for staged in stages:
        check = staged.stage.check
        if check in _NETWORK_CHECKS and check not in seen and not _is_skipped(staged):
            first = next((one for one in stopping if _is_on_nodes_of(staged, one)), None)
            if first is not None:
                message = f"where `{check}` would find the cause, `{first.stage.name}` has failed and stopped the run"
                help = f"put it before `{first.stage.name}`"
                yield Problem("playbook.check-too-late", message, staged.span("check"), help)
        seen.add(check)
        if check in _RANK_CHECKS and staged.stage.on_failure == "stop" and not _is_skipped(staged):
            stopping.append(staged)


def stage_after_detached(stages: Sequence[Staged]) -> Iterator[Problem]:
    """Reports a stage that needs ports and GPUs while a detached job on the same nodes still has them."""
    running: list[Staged] = []
    for staged in stages:
        needs = staged.stage.kind in ("check", "launch") and staged.stage.check not in ("reach", "ping", "ibstat")
        job = next((one for one in running if _share_a_node(one, staged)), None)
        if needs and job is not None:
            message = f"`{job.stage.name}` is detached and still runs then: it holds the rendezvous port and its GPUs"
            help = "put it before, or into another playbook"
            yield Problem("playbook.stage-after-detached", message, staged.span(), help)
        stays = staged.stage.kind == "launch" and staged.stage.launch.detach
        if stays and not _is_skipped(staged) and not _is_all_windows(staged):
            running.append(staged)


def _is_all_windows(staged: Staged) -> bool:
    return staged.cluster is not None and all(node.windows for node in staged.cluster.nodes)


def _share_a_node(one: Staged, other: Staged) -> bool:
    """Whether two stages share a node, as far as that is known."""
    if _is_skipped(other):
        return False
    if one.cluster is None or other.cluster is None:
        return one.stage.nodes == other.stage.nodes
    return bool({node.name for node in one.cluster.nodes} & {node.name for node in other.cluster.nodes})


def _is_on_nodes_of(staged: Staged, other: Staged) -> bool:
    """Whether every node of a stage is one of the other's, as far as that is known."""
    if staged.cluster is None or other.cluster is None:
        return staged.stage.nodes == other.stage.nodes
    return {node.name for node in staged.cluster.nodes} <= {node.name for node in other.cluster.nodes}


def _is_skipped(staged: Staged) -> bool:
    return staged.planned is not None and staged.planned.skip is not None


def _is_launch_key_given(staged: Staged, key: str) -> bool:
    return (*staged.keys, "launch", key) in staged.file.document.key_spans and staged.sound("launch", key)


def _folder_not_shared(folder: str, nodes: Sequence[Node]) -> str | None:
    if is_template(folder) or UNEXPANDED_VARIABLE.search(folder):
        return None
    if _LOCAL_FOLDER.match(folder):
        return f"`{folder}` is another folder on every node, and the nodes are to meet in it"
    return _homes_not_shared(folder, nodes)


def _workdirs_not_shared(nodes: Sequence[Node]) -> str | None:
    """Why the workdirs, in which nodes meet without `barrier_folder`, are not one folder; None if they may be one."""
    for node in nodes:
        if _LOCAL_FOLDER.match(node.workdir):
            return f"the nodes are to meet in their workdir, and `{node.workdir}` of {node.name} is that node's own"
    for node in nodes[1:]:
        if node.workdir != nodes[0].workdir:
            each = ", ".join(f"{one.name} in `{one.workdir}`" for one in (nodes[0], node))
            return f"the nodes are to meet in their workdir: {each}"
    return _homes_not_shared(nodes[0].workdir, nodes) if nodes else None


def _homes_not_shared(folder: str, nodes: Sequence[Node]) -> str | None:
    """Why a folder in the home folder is not one folder: different users log in. None if it may be one."""
    if folder.startswith("/"):
        return None
    users = {node.ssh.user: node for node in nodes if node.connection == "ssh" and node.ssh.user}
    if len(users) < 2:
        return None
    (one, a), (other, b) = list(users.items())[:2]
    return f"`{folder}` lies in the home of {one} on {a.name} and of {other} on {b.name}: these are two folders"


# Problems with the scripts of a stage, found by writing the scripts as `render` does.

MAX_SCRIPTED_NODES = 300
"""At most so many nodes, each of another kind, have their scripts written for lint."""


def script_problems(staged: Staged) -> Iterator[Problem]:
    """Reports what writing the scripts of a stage fails on."""
    planned, inventory = staged.planned, staged.file.inventory
    if staged.cluster is None or planned is None or inventory is None or not planned.starts_ranks:
        return
    if not staged.sound("launch") or not inventory.sound("env", "activate", "python", "workdir"):
        return
    plan = Plan(staged.file.playbook, _one_node_of_each_kind(staged.cluster), (planned,))
    try:
        node_files(plan, inventory.origins)
    except FilesWrong as wrong:
        yield from wrong.problems


def _one_node_of_each_kind(cluster: Inventory) -> Inventory:
    """The cluster with one node of each kind: scripts of a kind differ only in names, addresses and numbers, which any
    shell carries."""
    kinds: dict[object, Node] = {}
    for node in cluster.nodes:
        settings = (node.shell, node.python, node.activate, node.workdir, repr(node.env), repr(node.vars))
        kinds.setdefault(settings, node)
    return narrow_inventory(cluster, list(kinds.values())[:MAX_SCRIPTED_NODES])


STAGE_RULES = (
    script_problems,
    detached_launch_keys,
    spares_do_nothing,
    watch_does_nothing,
    stall_too_short,
    retries_above_timeout,
    grace_above_timeout,
    barrier_folder_unused,
    barrier_not_shared,
    barrier_not_expanded,
    launch_on_windows,
)

ORDER_RULES = (unchecked_launch, check_too_late, stage_after_detached)
