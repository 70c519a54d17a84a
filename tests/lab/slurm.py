"""A Slurm cluster over the hosts of a lab: Debian's own daemons, one slurmd a host, slurmctld on the lab's login host.

Nothing of it stands outside the lab's namespaces: it ends with the lab. What a user types on the login host, `programs`
holds for this machine: the same names, each of which enters the login host as the lab's ordinary user.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .host import Host
from .lab import CHECKOUT, Lab, merged
from .processes import LabError, wait_until

CONF = """\
ClusterName=lab
SlurmctldHost={login}({address})
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
GresTypes=gpu
KillWait=3
{settings}
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
COMMANDS = ("srun", "salloc", "sbatch", "scontrol", "squeue", "sinfo", "scancel", "munge")
GPUS = "/run/lab-gpu"
"""Device nodes there look like GPUs to slurmd, which only wants to see that they are."""


class Slurm:
    """`Slurm(lab, gpus=2)` for a lab with a login host: all nodes are idle when it returns."""

    def __init__(self, lab: Lab, *, gpus: int = 0, settings: Mapping[str, object] | None = None) -> None:
        """`settings` are lines of slurm.conf besides those that every cluster of ours has."""
        self.lab = lab
        self.gpus = gpus
        gres = f" Gres=gpu:{gpus}" if gpus else ""
        nodes = (f"NodeName={h.name} NodeAddr={h.address} CPUs=4 RealMemory=1000{gres} State=UNKNOWN" for h in lab)
        self.conf = CONF.format(
            login=lab.login.name,
            address=lab.login.address,
            settings="\n".join(f"{key}={value}" for key, value in (settings or {}).items()),
            nodes="\n".join(nodes),
        )
        key = secrets.token_hex(64)
        for host in (lab.login, *lab):
            self._prepare(host, key)
        lab.login.run(["slurmctld", "-c"], "root")
        for host in lab:
            self.start_slurmd(host)
        wait_until("all nodes are idle", lambda: set(self.states().values()) == {"idle"}, pause=0.05)
        self.programs = self._commands()

    def _prepare(self, host: Host, key: str) -> None:
        host.write("/etc/slurm/slurm.conf", self.conf)
        host.write("/etc/slurm/cgroup.conf", "CgroupPlugin=cgroup/v1\n")
        devices = f"NodeName={host.name} Name=gpu File={GPUS}/g[0-{self.gpus - 1}]\n" if self.gpus else ""
        host.write("/etc/slurm/gres.conf", devices if host is not self.lab.login else "")
        host.write("/etc/munge/munge.key", key, mode=0o400)
        make = "; ".join(f"mknod {GPUS}/g{number} c 195 {number}" for number in range(self.gpus))
        # slurmd wants some mount under /sys/fs/cgroup, whatever it then does with it.
        host.run(
            "mount -t tmpfs cgroup /sys/fs/cgroup; mkdir -p /run/munge /var/log/munge /var/lib/munge /var/spool/slurmctld "
            f"/var/spool/slurmd {GPUS}; chown root: /etc/munge /etc/munge/munge.key /var/log/munge /var/lib/munge; {make}",
            "root",
        )
        self.start_munged(host)

    # Daemons

    def start_munged(self, host: Host, *, env: Mapping[str, str] | None = None) -> None:
        host.run(["munged", "--force"], "root", env=env)

    def start_slurmd(self, host: Host) -> None:
        host.run(["slurmd"], "root")

    def stop(self, host: Host, daemon: str) -> None:
        """End munged, slurmd or slurmctld on a host, at once."""
        host.run(f"kill -KILL $(cat /run/{'munge/' if daemon == 'munged' else ''}{daemon}.pid)", "root")

    # What an administrator and a user type

    def admin(self, *argv: str, check: bool = True) -> str:
        """Run one of Slurm's commands as root on the login host."""
        return self.lab.login.run(list(argv), "root", check=check).stdout

    def user(self, *argv: str, check: bool = True) -> str:
        return self.lab.login.run(list(argv), check=check).stdout

    def states(self) -> dict[str, str]:
        """Each node's state as sinfo has it."""
        lines = self.admin("sinfo", "-N", "-h", "-o", "%N %T", check=False).split("\n")
        return dict(line.split() for line in lines if len(line.split()) == 2)

    def allocate(self, *options: str, nodes: int | None = None) -> int:
        """A job of the ordinary user, on all nodes or so many, in which nothing runs. Gives its id."""
        count = nodes or len(self.lab.hosts)
        argv = ["salloc", "--no-shell", f"-N{count}", *options]
        done = self.lab.login.run(argv)
        words = done.stderr.split()
        if "allocation" not in words:
            raise LabError(f"no allocation: {done.stderr}")
        return int(words[words.index("allocation") + 1])

    def _commands(self) -> Path:
        """A folder for PATH: the commands as they are on the login host, in the environment of a login there."""
        folder = self.lab.tmp / "slurm-programs"
        folder.mkdir()
        for name in COMMANDS:
            self._command(folder / name, self.lab.user)
        return folder

    def may_administrate(self) -> None:
        """From now on `scontrol` of `programs` is root's, as where sudo or an operator's account allows it."""
        self._command(self.programs / "scontrol", "root")

    def _command(self, program: Path, user: str) -> None:
        login = self.lab.login
        settings = [f"{name}={value}" for name, value in login.environment(user).items()]
        enter = shlex.join(login.entered([program.name], user))
        program.write_text(f'#!/bin/sh\nexec env -i {shlex.join(settings)} {enter} "$@"\n')
        program.chmod(0o755)


class SlurmLab(Lab):
    """A lab whose hosts are reached over a job of its own cluster, as those of a `Lab` are over SSH."""

    def __init__(
        self,
        hosts: int = 2,
        *,
        gpus: int = 0,
        settings: Mapping[str, object] | None = None,
        job: bool = True,
        **options: Any,
    ) -> None:
        """`job`: whether the ordinary user has one on all hosts from the start, `self.job`."""
        super().__init__(hosts, login="login", **options)
        self.gpus = gpus
        self.settings = settings
        self._with_job = job
        self.job = 0

    def __enter__(self) -> SlurmLab:
        self.start()
        return self

    def _start(self) -> None:
        super()._start()
        self.slurm = Slurm(self, gpus=self.gpus, settings=self.settings)
        if self._with_job:
            self.job = self.slurm.allocate(*([f"--gres=gpu:{self.gpus}"] if self.gpus else []))

    def environment(self) -> dict[str, str]:
        env = super().environment()
        return {**env, "PATH": f"{self.slurm.programs}{os.pathsep}{env['PATH']}"}

    def install_runbook(self) -> None:
        """The `runbook` of this checkout on every host's PATH, as on a cluster with a shared file system."""
        site = self.shared / "site"
        for part in ("runbook", "schemas", "playbooks", "inventories"):
            shutil.copytree(CHECKOUT / part, site / part, ignore=shutil.ignore_patterns("__pycache__"))
        for host in (self.login, *self.hosts):
            host.tool("runbook", f'PYTHONPATH=/shared/site exec {self.python} -m runbook "$@"')

    def inventory(self, file: str = "inventory.yml", **overrides: Any) -> Path:
        over = {"defaults": {"connection": "slurm", "ssh": None, "slurm": {"job": self.job}}}
        return super().inventory(file, **merged(over, overrides))
