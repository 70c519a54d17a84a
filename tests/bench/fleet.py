"""The same two files and five commands on many hosts: runbook, ansible-core and pyinfra, each as its users run it.

Every run starts cold (no connection is open), pushes into a folder of its own, and checks every exit code. The
commands themselves compare the files' SHA-256 and leave a trace, so a tool that did less than it was asked is found
out. What runbook pushes besides, its supervisor and its node programs, comes on top. Beside them stands what no tool
goes below: one login to every host with OpenSSH's client, of which nothing is asked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import yaml
from lab import Lab

from .cost import BenchError, Cost, measure
from .table import ratio, table

OVER_ANSIBLE, OVER_PYINFRA = 25, 1.6
DEADLINE_S = 420.0
FORKS = 32
MOST_FOR_ANSIBLE = 128
TRACE = "~/trace"

TEMPLATE = (
    "#!/bin/sh\n# launches {{ ranks }} ranks; the rendezvous is {{ master }}\n"
    + "".join(f"export RUNBOOK_BENCH_SETTING_{number:02}='value {number} of {{{{ ranks }}}}'\n" for number in range(40))
    + 'test "$RUNBOOK_BENCH_SETTING_39" = "value 39 of {{ ranks }}"\n'
)


@dataclass(frozen=True)
class Work:
    """What is to be done on every host."""

    script: str
    payload: str
    variables: dict[str, object]
    commands: tuple[str, ...]


def work_for(lab: Lab) -> Work:
    variables: dict[str, object] = {"ranks": len(lab.hosts), "master": lab.hosts[0].name}
    script = TEMPLATE
    for name, value in variables.items():
        script = script.replace("{{ " + name + " }}", str(value))
    letters = random.Random(29500)
    payload = "".join(f"{letters.getrandbits(252):063x}\n" for _ in range(320))
    checks = [
        "sh ./launch.sh",
        f'test "$(wc -c <payload.txt)" -eq {len(payload)}',
        f"echo {hashlib.sha256(script.encode()).hexdigest()}  launch.sh | sha256sum -c",
        f"echo {hashlib.sha256(payload.encode()).hexdigest()}  payload.txt | sha256sum -c",
        "uname -n",
    ]
    commands = tuple(f"{check} && echo {number} >>{TRACE}" for number, check in enumerate(checks))
    return Work(script, payload, variables, commands)


def fleet(lab: Lab, tools: Path, rounds: int) -> list[str]:
    missing = [name for name in ("ansible-playbook", "pyinfra") if not (tools / "bin" / name).exists()]
    if missing:
        raise BenchError(f"{', '.join(missing)} not installed: run `make bench`")
    work = work_for(lab)
    runners: dict[str, Callable[[int], Cost]] = {
        "runbook": Runbook(lab, work).run,
        "pyinfra": Pyinfra(lab, work, tools).run,
        "ansible": Ansible(lab, work, tools).run,
        "logins": BareLogins(lab).run,
    }
    if len(lab.hosts) > MOST_FOR_ANSIBLE:
        del runners["ansible"]
    costs: dict[str, list[Cost]] = {name: [] for name in runners}
    warm_up(lab, runners)
    for turn in range(rounds):
        for name, run in runners.items():
            costs[name].append(run(turn))
            if name != "logins":
                look(lab, work, name)
    names = {
        "runbook": "runbook",
        "pyinfra": f"pyinfra {version(tools, 'pyinfra')}",
        "ansible": f"ansible-core {version(tools, 'ansible-core')}",
        "logins": "logins alone",
    }
    sizes = f"{len(work.script) / 1024:.1f} and {len(work.payload) / 1024:.1f} KiB"
    ours = costs["runbook"]
    return [
        f"{len(lab.hosts)} hosts over SSH: two files ({sizes}) and {len(work.commands)} commands on each, {rounds} rounds",
        "  CPU is the controller's, with its children; memory is that of its largest process",
        *table({names[name]: costs[name] for name in runners}),
        ratio("faster than ansible-core", costs["ansible"], ours, at_least=OVER_ANSIBLE).line()
        if "ansible" in runners
        else f"  ansible-core is left out: beyond {MOST_FOR_ANSIBLE} hosts one round of it takes ten minutes",
        ratio("faster than pyinfra", costs["pyinfra"], ours, at_least=OVER_PYINFRA).line(),
    ]


def version(tools: Path, package: str) -> str:
    (site,) = (tools / "lib").glob("python3*/site-packages")
    found = next(iter(metadata.distributions(name=package, path=[str(site)])), None)
    return found.version if found else "?"


def warm_up(lab: Lab, runners: dict[str, Callable[[int], Cost]]) -> None:
    """Everything once from the disk: the tools' code, and on the hosts sshd, the shell and Python."""
    for run in runners.values():
        run(-1)
    for host in lab:
        host.path(TRACE).unlink()


def look(lab: Lab, work: Work, name: str) -> None:
    """Every command ran once on every host, in order."""
    wanted = "".join(f"{number}\n" for number in range(len(work.commands)))
    for host in lab:
        trace = host.path(TRACE)
        did = trace.read_text() if trace.exists() else ""
        if did != wanted:
            raise BenchError(f"{name} did not run every command once on {host.name}: {did.split()}")
        trace.unlink()


class BareLogins:
    """Log in to every host, run `true`, leave."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.hosts = lab.tmp / "fleet-hosts"
        self.hosts.write_text("".join(f"{host.name}\n" for host in lab))

    def run(self, turn: int) -> Cost:  # noqa: ARG002  every run is alike
        login = ["ssh", "-n", "-F", str(self.lab.ssh_config), "{}", "true"]
        argv = ["xargs", "-a", str(self.hosts), "-P", str(FORKS), "-I", "{}", *login]
        log = self.lab.tmp / "fleet-logins.log"
        return measure("ssh", argv, env=self.lab.environment(), cwd=self.lab.tmp, log=log, deadline_s=DEADLINE_S)


class Runbook:
    """Two stages that write the files into the run's folder, and a stage for each command."""

    def __init__(self, lab: Lab, work: Work) -> None:
        self.lab = lab
        self.playbook = lab.tmp / "fleet.yml"
        stages = [
            {"name": "push launch.sh", "shell": here_document("launch.sh", TEMPLATE)},
            {"name": "push payload.txt", "shell": here_document("payload.txt", work.payload)},
            *({"name": f"command {number}", "shell": line} for number, line in enumerate(work.commands)),
        ]
        content = {"name": "fleet", "nodes": "all", "vars": work.variables, "stages": stages}
        self.playbook.write_text(yaml.safe_dump(content, sort_keys=False))
        self.inventory = lab.inventory("fleet_inventory.yml", defaults={"python": lab.python_without_torch})

    def run(self, turn: int) -> Cost:
        folder = self.lab.tmp / f"fleet-run-{turn}"
        argv = [sys.executable, "-m", "runbook", "run", str(self.playbook), "-i", str(self.inventory)]
        return measure(
            "runbook",
            [*argv, "--run-dir", str(folder)],
            env=self.lab.environment(),
            cwd=self.lab.tmp,
            log=self.lab.tmp / "fleet-runbook.log",
            deadline_s=DEADLINE_S,
        )


def here_document(file: str, text: str) -> str:
    return f"umask 077; cat >{file} <<'END-OF-FILE'\n{text}END-OF-FILE\n"


class Ansible:
    """With what its documentation recommends for speed: pipelining, connections shared and kept, no facts, 32 forks."""

    def __init__(self, lab: Lab, work: Work, tools: Path) -> None:
        self.lab = lab
        self.program = tools / "bin" / "ansible-playbook"
        self.folder = lab.tmp / "ansible"
        self.folder.mkdir()
        (self.folder / "launch.sh.j2").write_text(TEMPLATE)
        (self.folder / "payload.txt").write_text(work.payload)
        folder = "{{ folder }}"
        tasks: list[dict[str, dict[str, str]]] = [
            # First: with the slash it also makes the folder.
            {"ansible.builtin.copy": {"src": "payload.txt", "dest": f"{folder}/", "mode": "0600"}},
            {"ansible.builtin.template": {"src": "launch.sh.j2", "dest": f"{folder}/launch.sh", "mode": "0700"}},
            *({"ansible.builtin.shell": {"cmd": line, "chdir": folder}} for line in work.commands),
        ]
        play = {"hosts": "all", "gather_facts": False, "strategy": "linear", "vars": work.variables, "tasks": tasks}
        (self.folder / "play.yml").write_text(yaml.safe_dump([play], sort_keys=False))
        hosts = {host.name: {"ansible_host": host.address} for host in lab}
        variables = {
            "ansible_user": lab.user,
            "ansible_python_interpreter": lab.python_without_torch,
            "ansible_ssh_private_key_file": str(lab.key),
        }
        (self.folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": variables}}))
        self.sockets = self.folder / "cp"
        (self.folder / "ansible.cfg").write_text(
            f"[defaults]\nforks = {FORKS}\ngathering = explicit\nhost_key_checking = True\nretry_files_enabled = False\n"
            "[ssh_connection]\npipelining = True\n"
            f"ssh_args = -F {lab.ssh_config} -o ControlMaster=auto -o ControlPersist=60s\n"
            f"control_path_dir = {self.sockets}\n"
        )

    def run(self, turn: int) -> Cost:
        folder = f"{self.lab.hosts[0].home}/ansible-{turn}"
        argv = [str(self.program), "-i", "hosts.yml", "-e", json.dumps({"folder": folder}), "play.yml"]
        env = {**self.lab.environment(), "ANSIBLE_CONFIG": str(self.folder / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        env.pop("PYTHONPATH")
        log = self.folder / "log"
        try:
            return measure("ansible-playbook", argv, env=env, cwd=self.folder, log=log, deadline_s=DEADLINE_S)
        finally:
            self.hang_up()

    def hang_up(self) -> None:
        """End the connections it keeps: the next run starts cold as well, and nothing stays."""
        for socket in sorted(self.sockets.glob("*")) if self.sockets.exists() else []:
            command = ["ssh", "-F", str(self.lab.ssh_config), "-o", f"ControlPath={socket}", "-O", "exit", "lab"]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(command, capture_output=True, timeout=10, check=False)
        shutil.rmtree(self.sockets, ignore_errors=True)


PYINFRA_INVENTORY = """\
hosts = {hosts!r}, {data!r}
"""
PYINFRA_DEPLOY = """\
from pyinfra import host
from pyinfra.operations import files, server

files.template(src="launch.sh.j2", dest=host.data.folder + "/launch.sh", mode="700", **{variables!r})
files.put(src="payload.txt", dest=host.data.folder + "/payload.txt", mode="600")
for command in {commands!r}:
    server.shell(commands=["cd " + host.data.folder + " && " + command])
"""


class Pyinfra:
    """With its defaults; on strict host keys, like the others."""

    def __init__(self, lab: Lab, work: Work, tools: Path) -> None:
        self.lab = lab
        self.program = tools / "bin" / "pyinfra"
        self.folder = lab.tmp / "pyinfra"
        self.folder.mkdir()
        (self.folder / "launch.sh.j2").write_text(TEMPLATE)
        (self.folder / "payload.txt").write_text(work.payload)
        data = {
            "ssh_user": lab.user,
            "ssh_key": str(lab.key),
            "ssh_known_hosts_file": str(lab.known_hosts),
            "ssh_strict_host_key_checking": "yes",
        }
        hosts = [host.address for host in lab]
        (self.folder / "inventory.py").write_text(PYINFRA_INVENTORY.format(hosts=hosts, data=data))
        text = PYINFRA_DEPLOY.format(variables=work.variables, commands=list(work.commands))
        (self.folder / "deploy.py").write_text(text)

    def run(self, turn: int) -> Cost:
        folder = f"{self.lab.hosts[0].home}/pyinfra-{turn}"
        argv = [
            str(self.program),
            "-y",
            "--parallel",
            str(FORKS),
            "--data",
            f"folder={folder}",
            "inventory.py",
            "deploy.py",
        ]
        env = self.lab.environment()
        env.pop("PYTHONPATH")
        log = self.folder / "log"
        return measure("pyinfra", argv, env=env, cwd=self.folder, log=log, deadline_s=DEADLINE_S)
