"""Prepare: on every node, push and verify the scripts, look for what an earlier try left, and have a keeper say READY."""

from __future__ import annotations

import json
from collections.abc import Callable

from runbook.checks.context import Context, Facts, no_answer
from runbook.checks.port import holders
from runbook.checks.training.attempt import about
from runbook.checks.training.crew import Crew, Member, wait_for
from runbook.launch.quote import CannotQuote
from runbook.model.inventory import Node
from runbook.model.verdict import Finding, Outcome
from runbook.transport import Session

READY_S = 30.0
"""How long a node may take to be ready, where the stage's `start_timeout` says nothing else."""


def prepare(
    crew: Crew, *, grace_s: float, ready_s: float, facts: Facts, barrier: Callable[[Node], Facts | None]
) -> dict[str, Outcome]:
    """Outcomes of the nodes that are not ready, by name; empty when every keeper waits for its word."""
    at = crew.at
    nodes = [at.inventory.node(name) for name in crew.nodes]
    answers = at.run.site.each(nodes, lambda node: _node(crew, node, facts), timeout_s=ready_s)
    problems: dict[str, Outcome] = {}
    told: dict[str, Facts] = {}
    for name, answer in answers.items():
        if isinstance(answer, CannotQuote):
            problems[name] = Outcome.failed(
                name, Finding("program-error", f"the launch script for {name}: {answer}", "correct that value")
            )
        elif isinstance(answer, BaseException):
            problems[name] = no_answer(name, "job", answer)
        elif finding := _in_the_way(name, answer):
            problems[name] = Outcome.failed(name, finding)
        else:
            told[name] = answer
    problems |= _programs(told)
    if not problems:
        problems |= _port(at, crew)
    if problems:
        return problems
    for node in nodes:
        for member in crew.on(node.name):
            _keeper(crew, node, member, grace_s, barrier(node))
    wait_for(crew, lambda: all(m.state != "none" or m.over for m in crew.members), ready_s)
    absent = {m.place.node for m in crew.members if m.state == "none"}
    return {name: _absent(crew, name, ready_s) for name in crew.nodes if name in absent}


def _node(crew: Crew, node: Node, facts: Facts) -> Facts:
    session = crew.at.session(node)
    attempt = crew.attempt
    folder = f"{session.folder}/{attempt.folder}"
    crew.folders[node.name] = folder
    program = attempt.job.programs[node.name]
    files = [
        word if word.startswith(("/", "~")) or not program.workdir else f"{program.workdir}/{word}"
        for word in _sources(program.command)
    ]
    order = {
        "do": "prepare",
        "folder": session.folder,
        "attempt": attempt.folder,
        "about": about(attempt, node.name, facts),
        "hash": files,
    }
    answer = session.call("job", order, timeout_s=15.0)
    script = attempt.script(node.name, crew.at.run.made_from)
    for name, data in script.files.items():
        session.push(f"{attempt.folder}/{name}", data, mode=0o700 if name == script.name else 0o600)
    session.push_program("keeper")
    return {**answer, "script": script.name}


def _sources(command: tuple[str, ...]) -> list[str]:
    """Words of a command that name Python files: what has to be the same on every node."""
    return [word for word in command if word.endswith(".py") and not word.startswith("-")]


def _in_the_way(node: str, answer: Facts) -> Finding | None:
    """A process of an earlier try that lives, or another job on our GPUs."""
    if old := answer["alive"]:
        names = ", ".join(f"{one['name']} of attempt {one['attempt']}" for one in old)
        return Finding(
            "gpu-busy",
            f"on {node} {names} of this job still lives, which would meet the new ranks",
            f"runbook stop {old[0]['job']}",
            tuple(f"process {one.get('pid')}, started by its keeper {one['keeper']}" for one in old[:6]),
        )
    if others := answer["gpus"]:
        one = others[0]
        return Finding(
            "gpu-busy",
            f"GPU {', '.join(map(str, one['gpus']))} of {node} is used by {one['name']} of the job {one['job']}, which runs there",
            f"wait for it (`runbook ps`), or end it: `runbook stop {one['job']}`",
            tuple(f"{o['job']}: {o['name']}, process {o.get('pid')}" for o in others[:6]),
        )
    return None


def _programs(told: dict[str, Facts]) -> dict[str, Outcome]:
    """Nodes whose program file is not there, or is another one than most nodes have."""
    problems: dict[str, Outcome] = {}
    files = {path for answer in told.values() for path in answer["sha256"]}
    for path in sorted(files):
        hashes = {name: answer["sha256"][path] for name, answer in told.items() if path in answer["sha256"]}
        for name in [name for name, found in hashes.items() if found is None]:
            finding = Finding(
                "program-error",
                f"{name} has no readable file {path}",
                "copy it there, or correct `command:` or `workdir:`",
            )
            problems.setdefault(name, Outcome.failed(name, finding))
        kinds = [found for found in hashes.values() if found]
        usual = max(kinds, key=kinds.count, default=None)
        for name, found in hashes.items():
            if found and found != usual:
                same = [other for other, its in hashes.items() if its == usual]
                finding = Finding(
                    "program-differs",
                    f"{path} on {name} is not the same file as on {', '.join(same[:4])}: the ranks would run different programs",
                    f"copy one of them to all nodes; `sha256sum {path}` shows which is which",
                    tuple(f"{other}: sha256 {(its or '')[:16]}…" for other, its in hashes.items())[:8],
                    tuple(same),
                )
                problems.setdefault(name, Outcome.failed(name, finding))
    return problems


def _port(at: Context, crew: Crew) -> dict[str, Outcome]:
    """Who sits on the rendezvous port of this try, on the master."""
    master = at.inventory.node(crew.attempt.inventory.rendezvous.master)
    port = crew.attempt.port

    def arguments(node: Node) -> Facts:
        return {"address": None, "speaks": at.data_address(node), "ports": [port]}

    answer = at.ask("port", arguments, timeout_s=8.0, nodes=[master])[master.name]
    if isinstance(answer, Outcome):
        return {master.name: answer}
    found = holders(master, answer, port)
    return {master.name: Outcome.failed(master.name, *found)} if found else {}


def _keeper(crew: Crew, node: Node, member: Member, grace_s: float, barrier: Facts | None) -> None:
    session = crew.at.session(node)
    order = {
        "argv": [
            "/bin/sh",
            f"{crew.folders[node.name]}/launch.sh",
            *([] if _whole(crew, node) else [str(member.place.local_rank)]),
        ],
        "folder": crew.folders[node.name],
        "name": member.place.name,
        "job": crew.at.run.run_id,
        "attempt": crew.attempt.number,
        "node": node.name,
        "ranks": list(member.place.ranks),
        "local_rank": member.place.local_rank,
        "gpus": list(member.place.gpus),
        "grace_s": grace_s,
        "detached": crew.detached,
        "barrier": barrier,
    }
    member.remote = _start(session, order, crew, member, grace_s)


def _whole(crew: Crew, node: Node) -> bool:
    """Whether one process of the script is all there is of the node."""
    return len(crew.on(node.name)) == 1 and len(crew.on(node.name)[0].place.ranks) > 1


def _start(session: Session, order: Facts, crew: Crew, member: Member, grace_s: float):  # type: ignore[no-untyped-def]
    python = str(session.hello["executable"])
    return session.start(
        [python, "-S", "-E", "-s", f"{session.folder}/keeper.py", json.dumps(order)],
        on_message=lambda message: crew.news.put((member, message)),
        on_end=lambda: crew.news.put((member, None)),
        grace_s=grace_s + 8.0,
        spared=crew.detached,
    )


def _absent(crew: Crew, node: str, ready_s: float) -> Outcome:
    members = [m for m in crew.on(node) if m.state == "none"]
    said = [m.remote.error for m in members if m.remote and m.remote.error]
    return Outcome.unknown(
        node,
        Finding(
            "ranks-missing",
            f"{node} did not say that it is ready within {ready_s:g} s: {', '.join(m.label for m in members)}",
            f"look at the load of {node}, and give it longer with `start_timeout:`",
            tuple(str(one) for one in said[:4]),
        ),
    )
