"""One thing that is wrong with a lab of hosts, and what runbook has to say of it.

Each file in `faults/` holds one: `FAULT = Fault(...)`. The tests run them for the verdict, `make bench` for the time.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import faults as folder
from .cli import CliResult, runbook_finish, runbook_start
from .host import Host
from .lab import Lab
from .needs import SEARCH_PATH

EVERY_CHECK = """\
name: every check
vars: {min_bytes: 1K, max_bytes: 4M, iterations: 5, budget: 5s, gate: 0}
stages:
  - check: ping
  - check: port
  - check: firewall
  - check: ibstat
  - check: connection
  - {name: small, check: allreduce, with: {min_bytes: 1K, max_bytes: 64K, iterations: 3, warmup: 2, budget: 3s}}
  - name: full
    check: allreduce
    with:
      min_bytes: "{{ min_bytes }}"
      max_bytes: "{{ max_bytes }}"
      iterations: "{{ iterations }}"
      budget: "{{ budget }}"
      min_busbw_gbytes: "{{ gate }}"
"""

BEFORE_RANKS = ("reach", "ping", "port", "firewall", "ibstat")
"""The stages that start no rank, in their order; `reach` is always there."""

LONG = ("-e", "max_bytes=256M", "-e", "budget=40s", "-e", "iterations=2000")
"""A full AllReduce that is still under way when something strikes it."""

SLOW = ("-e", "min_bytes=256K", "-e", "max_bytes=2M", "-e", "budget=20s", "-e", "iterations=2")
"""A full AllReduce that is short even over a link of 50 Mbit/s, and large enough for a gate."""

EVERY = "every node"
"""For `Fault.nodes`: all nodes fail alike, so the cause is common to them, and runbook says so."""

DEADLINE_S = 120.0


def no_overrides(_lab: Lab) -> dict[str, Any]:
    return {}


def nothing(_lab: Lab) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Strike:
    """Something that happens in the middle of a run: `does`, once `stage` is under way and, with `moving`, has told its
    first row of bandwidth."""

    does: Callable[[Lab], object]
    stage: str = "full"
    moving: bool = True

    def wait(self, events: Path) -> bool:
        """Whether the moment came within the deadline."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            text = events.read_text() if events.exists() else ""
            begun = re.search(rf'"event": "stage-started"[^\n]*"stage": "{re.escape(self.stage)}"', text)
            if begun and (not self.moving or '"row"' in text[begun.end() :]):
                return True
            time.sleep(0.02)
        return False


@dataclass(frozen=True, slots=True)
class Fault:
    """What is broken, and the verdict that names it.

    `breaks` is done to the lab before the run, `strike` in the middle of it. `inventory` gives what to change in the
    lab's inventory. `nodes` are all nodes that must be blamed, with `cause` as the first of the run's causes, at
    `stage`; `unreachable` ones cannot be judged (exit 3 instead of 1). `also` are further (node, cause) pairs that are
    true as well. `says` are regular expressions to be found in what is printed: the rule, the process, the number.
    `mends`: the printed remedy, run as root on the blamed node, makes the same run pass. `within_s`, from the start of
    the run (or from the strike) to its end, is looked at by `make bench` only. `torchrun`: bare torchrun can be tried
    on the same fault. `quick`: stands for its family in `make test`; `make test-all` tries every one. `needs`: programs
    beyond the lab's own (`needs.PROGRAMS`); where one is not installed the fault is not tried, see `missing`. `ranks`:
    it is told before any rank starts, and only because some will be.

    Without a `cause` it looks like a fault and is none: the run passes.
    """

    cause: str | None
    within_s: float
    stage: str | None = None
    nodes: str | tuple[str, ...] = ()
    breaks: Callable[[Lab], object] = nothing
    strike: Strike | None = None
    inventory: Callable[[Lab], Mapping[str, Any]] = no_overrides
    arguments: tuple[str, ...] = ()
    hosts: int = 2
    unreachable: bool = False
    also: tuple[tuple[str, str], ...] = ()
    says: tuple[str, ...] = ()
    mends: bool = False
    torchrun: bool = False
    quick: bool = False
    needs: tuple[str, ...] = ()
    ranks: bool = False
    playbook: str = EVERY_CHECK
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def code(self) -> int:
        if self.cause is None:
            return 0
        return 3 if self.unreachable else 1

    def shortened(self, *, mended: bool = False) -> Fault:
        """The same without what takes the time: the stages with ranks where the fault is told before them; `mended`: what
        comes after the stage that failed, since that one is to pass now.

        A node whose playbook has no rank is not asked for its torch, which takes seconds to import."""
        if self.playbook is not EVERY_CHECK or self.stage not in BEFORE_RANKS or self.ranks:
            return self
        last = max(1, BEFORE_RANKS.index(self.stage)) if mended else len(BEFORE_RANKS) - 1
        stages = "".join(f"  - check: {name}\n" for name in BEFORE_RANKS[1 : last + 1])
        variables = next(line for line in EVERY_CHECK.splitlines() if line.startswith("vars:"))
        return replace(self, playbook=f"name: no ranks\n{variables}\nstages:\n{stages}")

    def blamed(self, lab: Lab) -> set[str]:
        if self.nodes == EVERY:
            return set(lab.names)
        return {self.nodes} if isinstance(self.nodes, str) else set(self.nodes)


@dataclass(frozen=True, slots=True)
class Told:
    """What runbook made of a fault. `seconds`: from the start, or from the strike, to the end of the program."""

    done: CliResult
    folder: Path
    document: Mapping[str, Any]
    seconds: float

    def findings(self, verdict: str) -> list[tuple[str, dict[str, Any]]]:
        """(node, finding) of every outcome with this verdict."""
        return [
            (outcome["node"], finding)
            for stage in self.document["stages"]
            for outcome in stage["outcomes"]
            if outcome["verdict"] == verdict
            for finding in outcome["findings"]
        ]

    @property
    def text(self) -> str:
        return self.done.stdout + self.done.stderr


def all_faults() -> dict[str, Fault]:
    """Every fault by the name of its file, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(folder.__path__))
    return {name: importlib.import_module(f"{folder.__name__}.{name}").FAULT for name in names}


def missing(fault: Fault) -> str | None:
    """Why this fault cannot be tried here: a program that even the lab can do without; None when it can."""
    absent = [name for name in fault.needs if shutil.which(name, path=SEARCH_PATH) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def run_fault(fault: Fault, lab: Lab) -> Told:
    """Break the lab and run every check in it."""
    fault.breaks(lab)
    return run_every_check(fault, lab)


def run_every_check(fault: Fault, lab: Lab) -> Told:
    playbook = lab.tmp / "every_check.yml"
    playbook.write_text(fault.playbook)
    run_dir = lab.tmp / f"run-{time.monotonic_ns()}"
    inventory = lab.inventory(**fault.inventory(lab))
    begun = [time.monotonic()]
    words: tuple[str | Path, ...] = ("run", playbook, "-i", inventory, "--run-dir", run_dir, *fault.arguments)
    process = runbook_start(lab, *words, env=fault.environment)
    striking = threading.Thread(target=_strike, args=(fault.strike, lab, run_dir / "events.jsonl", begun), daemon=True)
    if fault.strike:
        striking.start()
    done = runbook_finish(process, timeout=DEADLINE_S)
    seconds = time.monotonic() - begun[-1]
    if fault.strike:
        striking.join(5)
        assert len(begun) == 2, f"the moment to strike never came\n{done}"
    result = run_dir / "result.json"
    assert result.exists(), f"no result\n{done}"
    return Told(done, run_dir, json.loads(result.read_text()), seconds)


def _strike(strike: Strike | None, lab: Lab, events: Path, begun: list[float]) -> None:
    if strike and strike.wait(events):
        begun.append(time.monotonic())
        strike.does(lab)


def named(fault: Fault, lab: Lab) -> Told:
    """What runbook told of a fault; fails where that is not its name, or accuses another node."""
    told = run_fault(fault, lab)
    wrong = complaint(fault, lab, told)
    assert wrong is None, f"{wrong}\n{told.text}"
    return told


def complaint(fault: Fault, lab: Lab, told: Told) -> str | None:
    """What is wrong with the verdict, or None."""
    document, blamed = told.document, fault.blamed(lab)
    # What this machine's own want of CPU explains as well is unknown, and says so.
    starved = fault.code == 1 and document["exit_code"] == 3 and "/proc/pressure/cpu here" in told.done.stdout
    code, verdict = (3, "unknown") if starved or fault.unreachable else (fault.code, "fail")
    pairs = {(node, finding["cause"]) for node, finding in told.findings(verdict)}
    wanted = {(node, str(fault.cause)) for node in blamed} | set(fault.also)
    said = told.done.stdout
    if document["exit_code"] != code or told.done.returncode != code:
        return f"exit {told.done.returncode}, not {code}"
    for pattern in fault.says:
        if not re.search(pattern, said):
            return f"nothing printed matches {pattern!r}"
    if fault.cause is None:
        return f"not a fault, and yet told: {sorted(pairs)}" if pairs or document["causes"] else None
    if document["stopped_at"] != fault.stage:
        return f"stopped at {document['stopped_at']}, not {fault.stage}"
    if document["causes"][:1] != [fault.cause]:
        return f"the causes are {document['causes']}, the first should be {fault.cause}"
    if missing := wanted - pairs:
        return f"not told: {sorted(missing)}"
    if not fault.unreachable and (surplus := pairs - wanted):
        return f"told as well: {sorted(surplus)}"
    if "fix " not in said:
        return "no remedy is printed"
    if fault.nodes == EVERY and len(lab.names) > 1 and "common cause" not in said:
        return "not told as a common cause"
    return None


def mend(fault: Fault, lab: Lab, told: Told) -> None:
    """Do what the remedies say, each on its node: text such as `on node-a: COMMAND`, or a bare command."""
    for node, finding in told.findings("fail"):
        if finding["cause"] == fault.cause:
            remedy = finding["remedy"].removeprefix(f"on {node}: ").strip("`")
            lab[node].run(remedy, user="root")


def strike_ranks(lab: Lab, name: str, number: int) -> None:
    """Send a signal to every rank on a host."""
    host: Host = lab[name]
    for pid, command in host.processes():
        if "rank.py" in command:
            host.signal(pid, number)


def listener(
    host: Host, port: int, *, user: str | None = None, address: str = "", says: bytes | None = None
) -> subprocess.Popen[str]:
    """A process on the host that listens on a port until the lab ends; with `says`, it accepts, says that and waits."""
    code = (
        f"import socket, time\ns = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        f"s.bind(({address!r}, {port})); s.listen(); print('up', flush=True); held = []\n"
        f"while {says is not None}: held.append(s.accept()[0]); held[-1].sendall({says!r})\n"
        f"time.sleep(300)"
    )
    process = host.popen([host.lab.python_without_torch, "-c", code], user=user)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n", f"{host.name}: nothing can listen on {port}"
    return process


def filter_rule(host: Host, rule: str, hook: str = "input") -> None:
    """One nft rule in a table of its own."""
    host.firewall(
        f"table inet lab {{\n chain {hook} {{\n type filter hook {hook} priority 0; policy accept;\n {rule}\n }}\n}}\n"
    )


def routed(lab: Lab) -> None:
    """node-a and node-b in subnets of their own on the data network, with node-c as the router between them."""
    lab.data_network()
    left, right, router = lab.hosts
    router.ip("addr flush dev eth1", "addr add 10.44.1.254/24 dev eth1", "addr add 10.44.2.254/24 dev eth1")
    router.knob("net.ipv4.ip_forward", 1)
    for name in ("all", "eth1"):  # it would tell both that they can reach each other without it
        router.knob(f"net.ipv4.conf.{name}.send_redirects", 0)
    for host, mine, other in ((left, 1, 2), (right, 2, 1)):
        host.data_addresses = [f"10.44.{mine}.{host.index + 1}"]
        host.ip(
            *("addr flush dev eth1", f"addr add {host.data_addresses[0]}/24 dev eth1"),
            f"route add 10.44.{other}.0/24 via 10.44.{mine}.254",
        )
