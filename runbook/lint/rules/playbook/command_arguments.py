"""What a launch's command says of the job itself, the same to every rank: a rank, and where to dial."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runbook.lint.rules.playbook.launch_commands import nested_launcher
from runbook.lint.staging import Staged
from runbook.load.address import is_loopback, strip_brackets
from runbook.load.templating import is_template
from runbook.model.errors import Problem, Span
from runbook.model.inventory import Inventory

_OPTION = re.compile(r"--?([A-Za-z][A-Za-z0-9_-]*)(?:=(.*))?", re.DOTALL)
_ENDPOINT = re.compile(r"(?:[a-z]+://)?(\[[^\]]*\]|[^/:\s]*|[0-9A-Fa-f:]*)(?::[0-9]+)?(?:[/?].*)?")
_DIALLED = {
    *("master-addr", "master-address", "master", "init-method", "dist-url", "dist-init-method", "dist-init-addr"),
    *("coordinator", "coordinator-address", "rdzv-endpoint"),
}


def rank_in_command(staged: Staged) -> Iterator[Problem]:
    if staged.cluster is None or any(True for _ in nested_launcher(staged)):
        return
    for option, value, index in _options(staged):
        others = _others(option, staged.cluster)
        if others is not None and value.isascii() and value.isdigit():
            message = f"`--{option} {value}` is said to every rank, and there are {others}"
            help = "leave it out, and let the program read RANK, LOCAL_RANK and WORLD_SIZE from its environment"
            yield Problem("playbook.rank-in-command", message, _span(staged, index), help)


def loopback_in_command(staged: Staged) -> Iterator[Problem]:
    cluster = staged.cluster
    if cluster is None or len(cluster.nodes) == 1 or cluster.one_machine or any(True for _ in nested_launcher(staged)):
        return
    for option, value, index in _options(staged):
        endpoint = _ENDPOINT.fullmatch(value)
        if option.replace("_", "-") in _DIALLED and endpoint and is_loopback(strip_brackets(endpoint[1])):
            message = f"every node would dial itself at {endpoint[1]}, and there are {len(cluster.nodes)}"
            help = "leave it out, and let the program read MASTER_ADDR and MASTER_PORT from its environment"
            yield Problem("playbook.loopback-in-command", message, _span(staged, index), help)


def jax_on_windows(staged: Staged) -> Iterator[Problem]:
    if staged.cluster is None or staged.stage.launch.get("launcher") != "jax":
        return
    windows = next((node for node in staged.cluster.nodes if node.windows and node.gpus), None)
    if windows is not None:
        message = f"JAX for Windows knows no GPUs, and `{windows.name}` is Windows with {len(windows.gpus)}"
        help = "run it in Linux, WSL2 included, or leave out `gpus` for CPU ranks"
        span = staged.stage.launch_spans.get(("launcher",), staged.stage.span)
        yield Problem("playbook.jax-on-windows", message, span, help)


def _others(option: str, cluster: Inventory) -> str | None:
    """Why one number cannot be right for all; None if it can."""
    name = option.replace("_", "-")
    if name in ("rank", "process-id", "global-rank") and cluster.world_size > 1:
        return f"{cluster.world_size} ranks"
    if name in ("node-rank", "machine-rank") and len(cluster.nodes) > 1:
        return f"{len(cluster.nodes)} nodes"
    most = max(node.slots for node in cluster.nodes)
    return f"up to {most} on a node" if name == "local-rank" and most > 1 else None


def _options(staged: Staged) -> Iterator[tuple[str, str, int]]:
    """`--option=value` and `--option value`: name, value, and which word holds the value."""
    given = staged.stage.launch.get("command", [])
    if not isinstance(given, list) or not staged.sound("launch", "command"):
        return
    words = [str(word) for word in given]
    for index, word in enumerate(words):
        option = _OPTION.fullmatch(word)
        if option is None or is_template(word):
            continue
        if option[2] is not None:
            yield option[1], option[2], index
        elif index + 1 < len(words) and not is_template(words[index + 1]):
            yield option[1], words[index + 1], index + 1


def _span(staged: Staged, index: int) -> Span | None:
    return staged.stage.launch_spans.get(("command", index), staged.stage.span)
