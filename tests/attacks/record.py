"""Makes `recorded/*.json` anew: commands of runbook in the lab, what each node said in them, and how they ended.

`python -m attacks.record [NAME…]`, in `tests/`, as root; without names, every one. Nothing of the machine that the lab stands
on is in a recording: see `neutral`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from lab import Lab, runbook_cli
from lab.fault import all_faults, complaint, run_fault
from lab.lab import CHECKOUT

from .recorded_node import FOLDER, Json

FAULTS = (
    "firewall_iptables_nft",
    "gpu_all_sound",
    "ib_no_subnet_manager",
    "name_of_every_node",
    "path_loses_30_percent",
    "path_of_a_prohibiting_rule",
    "path_without_a_route",
    "port_none_left",
    "port_of_the_range_taken",
    "rank_calls_another_operation",
    "rank_stopped",
    "rank_wrong_data",
    "slow_link_one_node",
)

JOB = """\
name: a job
stages:
  - {name: words, shell: echo some words}
  - {name: train, launch: {command: [train.py], workdir: ~/work, grace: 1s, watch: {}}}
"""
DETACHED = JOB.replace("launch: {", "launch: {detach: true, ").replace(", watch: {}", "")
TRAIN = """\
import os, time
for number in range(40):
    print("line", number, flush=True)
deadline = time.monotonic() + 60
while not os.path.exists("enough") and time.monotonic() < deadline:
    time.sleep(0.1)
"""


@dataclass(frozen=True)
class Heard:
    """One command, and what it told: `command` as it was typed."""

    command: tuple[str, ...]
    code: int
    said: Mapping[str, Mapping[str, list[Json]]]
    playbook: str = ""
    causes: tuple[str, ...] = ()


class Ear:
    """A lab whose runbook is `wiretap`. The paths of its commands become the placeholders of a recording."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.file = lab.tmp / "said.json"
        lab.controller = ("-m", "attacks.wiretap", str(self.file))
        self.environment = {"PYTHONPATH": f"{CHECKOUT}{os.pathsep}{CHECKOUT / 'tests'}"}

    def heard(self, *command: str, **more: Any) -> Heard:
        """What the last command heard."""
        return Heard(command, said=json.loads(self.file.read_text()), **more)

    def listen(self, *command: str, playbook: str = "", code: int = 0) -> Heard:
        """Run a command that is to end with this code."""
        lab = self.lab
        (lab.tmp / "playbook.yml").write_text(playbook)
        run = lab.tmp / f"run-{time.monotonic_ns()}"
        run.mkdir()
        paths = {"inventory": lab.tmp / "inventory.yml", "playbook": lab.tmp / "playbook.yml", "run": run}
        done = runbook_cli(lab, *(word.format(**paths) for word in command), env=self.environment)
        _must(done.returncode == code, f"exit {done.returncode}, not {code}", done)
        return self.heard(*command, code=code, playbook=playbook)


def _must(true: bool, what: str, done: object) -> None:
    if not true:
        raise SystemExit(f"{what}\n{done}")


def _fault(name: str) -> Callable[[], None]:
    fault = all_faults()[name]

    def make() -> None:
        with Lab(fault.hosts) as lab:
            ear = Ear(lab)
            told = run_fault(replace(fault, environment={**fault.environment, **ear.environment}), lab)
            wrong = complaint(fault, lab, told)
            _must(wrong is None, f"{name}: {wrong}", told.text)
            words = ("run", "{playbook}", "-i", "{inventory}", "--run-dir", "{run}", *fault.arguments)
            causes = tuple(told.document["causes"])
            write(name, ear.heard(*words, code=fault.code, playbook=fault.playbook, causes=causes), lab)

    return make


def _jobs() -> None:
    """A job that is launched and ends; one that is looked at in every way; and two that are stopped."""
    with Lab(2) as lab:
        ear = Ear(lab)
        lab.inventory(defaults={"python": lab.python_without_torch})
        lab.work_file("train.py", TRAIN)
        run = ("run", "{playbook}", "-i", "{inventory}", "--run-dir", "{run}")

        def enough(change: str) -> None:
            for host in lab:
                host.run(f"{change} ~/work/enough", lab.user)

        enough("touch")
        write("job_run", ear.listen(*run, playbook=JOB), lab)
        enough("rm")
        ear.listen(*run, playbook=DETACHED)
        write("job_ps", ear.listen("ps", "-i", "{inventory}", "-o", "json"), lab)
        write("job_logs", ear.listen("logs", "-i", "{inventory}"), lab)
        ending = threading.Timer(6.0, enough, ("touch",))
        ending.start()
        write("job_attach", ear.listen("attach", "-i", "{inventory}"), lab)
        ending.join()
        write("job_clean", ear.listen("clean", "-i", "{inventory}", "--all"), lab)
        enough("rm")
        ear.listen(*run, playbook=DETACHED)
        write("job_stop", ear.listen("stop", "-i", "{inventory}"), lab)
        ear.listen("clean", "-i", "{inventory}", "--all")
        ear.listen(*run, playbook=DETACHED)
        write("job_stop_now", ear.listen("stop", "-i", "{inventory}", "--now"), lab)


def _collect() -> None:
    with Lab(2) as lab:
        lab.inventory(defaults={"python": lab.python_without_torch})
        words = ("collect", "-i", "{inventory}", "--out", "{run}/collected.tar.gz", "-o", "json")
        write("collect", Ear(lab).listen(*words), lab)


def _inventory_init() -> None:
    with Lab(2) as lab:
        write("inventory_init", Ear(lab).listen("inventory", "init", *lab.names, "--out", "{run}/made.yml"), lab)


SCENES: Mapping[str, Callable[[], None]] = {
    **{name: _fault(name) for name in FAULTS},
    "jobs": _jobs,
    "collect": _collect,
    "inventory_init": _inventory_init,
}


# What may be told of the machine that the lab stands on: nothing.

UUID = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
NOBODYS_UUID = "0000feed-0000-4000-8000-00000000beef"
OF_THE_LAB = ("network/", "infiniband/", "processes")
"""What `collect` brings of the lab's own network; all else that it looks at is this machine's."""


def neutral(text: str, lab: Lab) -> str:
    """JSON text without names, paths and numbers of this machine, or of this lab alone."""
    here = os.uname()
    for ours, instead in (
        (str(lab.tmp), "/home/rblab"),
        (str(CHECKOUT), "/opt/runbook"),
        (str(lab.subnet.network_address).removesuffix(".0"), "10.77.0"),
        (here.release, "6.1.0-18-amd64"),
        (here.version, "#1 SMP"),
    ):
        text = text.replace(json.dumps(ours)[1:-1], instead)
    text = re.sub(rf"(?<![\w.-]){re.escape(here.nodename)}(?![\w.-])", "controller", text)
    return UUID.sub(NOBODYS_UUID, text)


def only_of_the_lab(said: dict[str, list[Json]], lab: Lab) -> None:
    """Leave out what nodes told of processes, kernel messages and accounts that are this machine's; and besides beats that
    came again because it was slow, and calls that went well long before."""
    for halt in filter(None, said.get("rank_processes", ())):
        halt["kernel_says"] = []
        for number, busy in enumerate(halt["busy"]):
            busy.update(user="somebody", command=f"python busy-{number}.py")
    for rank, messages in enumerate(said.get("rank", ())):
        said["rank"][rank] = [now for before, now in pairwise([None, *messages]) if now != before]
    for name in [name for name in said if name.startswith("read flight-")]:
        said[name] = [text and _latest_calls(text) for text in said[name]]
    for collected in filter(None, said.get("collect", ())):
        collected["users"] = [user for user in collected["users"] if user[0] in ("root", lab.user)]
        collected["hostnames"] = [name for name in collected["hostnames"] if name in (*lab.names, "localhost")]
        for one in collected["answers"]:
            if not one["name"].startswith(OF_THE_LAB):
                one["out"] = "".join(f"line {number}\n" for number in range(min(3, one["out"].count("\n"))))
                one["err"] = one["err"] and "an error\n"


def _latest_calls(text: str) -> str:
    told = json.loads(text)
    if told["flight"] and told["flight"].get("entries"):
        told["flight"]["entries"] = told["flight"]["entries"][-4:]
    return json.dumps(told)


def write(name: str, heard: Heard, lab: Lab) -> None:
    """Each answer on a line of its own, so that what changed can be seen."""
    said = {node: dict(programs) for node, programs in sorted(heard.said.items())}
    for programs in said.values():
        only_of_the_lab(programs, lab)
    head = {
        "command": heard.command,
        "code": heard.code,
        "causes": heard.causes,
        "inventory": (lab.tmp / "inventory.yml").read_text() if "{inventory}" in heard.command else "",
        "playbook": heard.playbook,
    }
    fields = [f"{json.dumps(field)}: {json.dumps(value)}" for field, value in head.items()]
    nodes = ",\n".join(f"{json.dumps(node)}: {_programs(programs)}" for node, programs in said.items())
    text = neutral("{" + ",\n".join([*fields, f'"said": {{\n{nodes}\n}}']) + "}\n", lab)
    path = FOLDER / f"{name}.json"
    path.write_text(text)
    print(f"{path.name}: {len(text)} bytes", flush=True)


def _programs(programs: Mapping[str, list[Json]]) -> str:
    told = [
        f" {json.dumps(program)}: [\n  " + ",\n  ".join(map(json.dumps, answers)) + "]"
        for program, answers in programs.items()
    ]
    return "{\n" + ",\n".join(told) + "\n}"


def main(names: Sequence[str]) -> None:
    for name in names or SCENES:
        SCENES[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
