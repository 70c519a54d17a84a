"""Ends an attempt: collects evidence first, sends TERM to all processes, waits for the grace, sends KILL. Only a
process that was seen to end counts as ended."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from runbook.checks.context import Facts
from runbook.jobs.kept_processes import ENDED_STATE, KeptProcesses
from runbook.jobs.watch import UNREAD_NEWS_INTERVAL_S, fetch_news
from runbook.model.errors import Unreachable
from runbook.model.inventory import Node
from runbook.model.safe_files import BadName, write_file_below
from runbook.node.journal import MIN_LOG_ANSWER_BYTES

T = TypeVar("T")

LOOK_ANSWER_TIMEOUT_S = 9.0
"""Seconds that a node may take to answer a look, beyond the time for which it observes its processes."""
SLOW_LOGS_TIMEOUT_S = 4.0
"""Seconds for which a node may answer with fewer than MIN_LOG_ANSWER_BYTES bytes of its logs, before the rest is left
there: a node that sends fewer does not have the bytes that it announces."""

ALL_LOGS_TIMEOUT_S = 1800.0
"""Seconds after which fetching the rest of the logs ends in any case."""


def freeze(kept: KeptProcesses, *, seconds: float = 0.3) -> dict[str, Facts]:
    """What the surviving ranks do, by node, asked of all nodes at once: states, stacks, and CPU time and traffic for
    `seconds`. The answers are stored in RUN_DIR/hang. A node that has not answered LOOK_ANSWER_TIMEOUT_S after that is
    left out."""

    def look(node: Node) -> Facts | None:
        processes = [member for member in kept.on(node.name) if not member.over]
        alive = {str(one.place.ranks[0]): one.journal["pid"] for one in processes if one.journal.get("pid")}
        if not alive:
            return None
        gpus = sorted({gpu for one in processes for gpu in one.place.gpus})
        order = {"leaders": alive, "seconds": seconds, "stacks": kept.stacks.get(node.name), "gpus": gpus}
        return kept.at.session(node).call("rank_processes", order, timeout_s=LOOK_ANSWER_TIMEOUT_S + seconds)

    seen = _call_each_node(kept, look, LOOK_ANSWER_TIMEOUT_S + seconds, kept.nodes, at_once=len(kept.nodes))
    found = {name: facts for name, facts in seen.items() if facts is not None and not isinstance(facts, BaseException)}
    for name, facts in found.items():
        text = json.dumps(kept.logs.redactor_of(name).anything(facts), indent=1)
        with contextlib.suppress(OSError, BadName):
            write_file_below(kept.at.run.run_dir, "hang", f"{kept.folder}.{name}.json", data=text)
    return found


def learn_keeper_ends(kept: KeptProcesses) -> None:
    """Learns why keepers are gone that recorded nothing: whoever ended a keeper may have left the reason beside its
    journal."""
    gone = {member.place.node for member in kept.members if member.keeper_gone}
    for answer in _send_order(kept, {"do": "watch", "look": True, "most": 0}, gone).values():
        for journal in [] if isinstance(answer, BaseException) else answer["kept"]:
            for member in kept.on(journal["node"]):
                if member.place.name == journal["name"]:
                    kept.learn(member, journal)


def end_processes(
    kept: KeptProcesses,
    *,
    grace_s: float,
    why: str,
    hurry: Callable[[], bool] = lambda: False,
    leaving: Callable[[], bool] = lambda: False,
) -> list[str]:
    """Stops every process that lives, on every node that answers. The names of the nodes on which the end of all
    processes is not certain.

    Both callables are asked again and again: `hurry` cuts the grace short; `leaving` returns at once and leaves the
    rest to the keepers, which end their processes in time.
    """
    for member in kept.members:
        if member.remote is None or member.gone:
            continue
        with contextlib.suppress(Unreachable):
            if member.state == "none":  # this keeper never sent anything, so it has started nothing
                member.remote.signal("SIGKILL")
            else:
                member.remote.feed(f"stop {grace_s:g} {why}\n".encode())
    if kept.members and all(member.remote is None for member in kept.members):
        _send_order(kept, {"do": "stop", "why": why}, kept.nodes)
    deadline = time.monotonic() + grace_s + 6.0
    while time.monotonic() < deadline and not hurry() and not all(member.gone for member in kept.members):
        if leaving():
            return [*kept.nodes]
        kept.take_news(0.1)
        kept.note_losses()
    unsure = {name for name in kept.nodes if name not in kept.live_nodes()}
    doubtful = {m.place.node for m in kept.members if m.keeper_gone or m.state != ENDED_STATE or not m.gone}
    if doubtful:
        for name, answer in _send_order(kept, {"do": "kill", "why": why}, doubtful - unsure).items():
            if not isinstance(answer, dict) or any(journal["lives"] for journal in answer["kept"]):
                unsure.add(name)
    return sorted(unsure)


def fetch_rest_of_logs(kept: KeptProcesses, *, enough: Callable[[], bool] = lambda: False) -> list[str]:
    """Fetches every log as far as it has been written by now. Stops early if a node sends nothing more, the reader has
    `enough`, or the user presses for an end. The names of the nodes that alone have a part of the logs: it did not
    come, or could not be written on this machine."""

    def over() -> bool:
        return kept.at.hurry.is_set() or enough()

    end = time.monotonic() + ALL_LOGS_TIMEOUT_S

    def rest(node: Node) -> None:
        session, name = kept.at.session(node), node.name
        deadline, wanted, here = time.monotonic() + SLOW_LOGS_TIMEOUT_S, None, kept.fetched(name)
        while not session.lost and time.monotonic() < min(deadline, end):
            if not fetch_news(kept, session, name) or over():
                return
            if wanted is None:
                wanted = kept.fetched(name) + kept.unread[name]  # bytes that are written meanwhile are not waited for
            if kept.fetched(name) >= wanted or not kept.unread[name]:
                kept.unread[name] = 0
                return
            came = kept.fetched(name) - here >= MIN_LOG_ANSWER_BYTES
            here = kept.fetched(name)
            deadline = time.monotonic() + SLOW_LOGS_TIMEOUT_S if came else deadline
            time.sleep(UNREAD_NEWS_INTERVAL_S if came else 0.05)

    names = [name for name in kept.nodes if kept.voices(name)]
    for name in names:
        kept.unread[name] = 1  # counts as unread until the node has said that there is nothing more
        kept.seen.pop(name, None)
    _call_each_node(kept, rest, ALL_LOGS_TIMEOUT_S, names, unless=over)
    kept.take_news(0.0)
    kept.logs.close()
    for name, why in kept.logs.unwritten.items():
        kept.at.say(f"part of the logs of {name} could not be written here: {why}", name)
    return [name for name in names if kept.unread.get(name) or name in kept.logs.unwritten]


def clean(kept: KeptProcesses, names: Collection[str]) -> None:
    """Removes the files of all attempts from these nodes; the caller has fetched them."""

    def one(node: Node) -> Facts:
        session = kept.at.session(node)
        return session.call("job_control", {"do": "clean", "folder": session.folder}, timeout_s=5.0)

    _call_each_node(kept, one, 8.0, {*names} & {*kept.live_nodes()})


def _send_order(kept: KeptProcesses, told: Facts, names: Collection[str]) -> Mapping[str, Facts | BaseException]:
    """Gives an order to these nodes; the answers or errors by node."""

    def one(node: Node) -> Facts:
        order = {**told, "folder": kept.folders[node.name]}
        return kept.at.session(node).call("job_control", order, timeout_s=10.0)

    return _call_each_node(kept, one, 12.0, names)


def _call_each_node(
    kept: KeptProcesses, work: Callable[[Node], T], timeout_s: float, names: Collection[str], **how: Any
) -> Mapping[str, T | BaseException]:
    """The same as `Site.each`, for those of these nodes on which the attempt has a folder."""
    nodes = [kept.at.inventory.node(name) for name in kept.folders if name in names]
    return kept.at.run.site.each(nodes, work, timeout_s=timeout_s, **how)
