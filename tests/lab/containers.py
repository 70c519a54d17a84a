"""Containers on the hosts of a lab: Debian's own podman and crun, one container a host, whose files are the host's.

The ordinary user enters them through `sudo`, as on machines where containers are root's. Nothing of it stands outside
the lab's namespaces: it ends with the lab.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from .host import Host
from .lab import Lab, merged

ENGINE = """\
[containers]
cgroups = "disabled"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
"""
STORAGE = """\
[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/run/containers/graph"
"""
ROOT = "/run/lab-container"
"""Where a container's files lie on its host: a copy-on-write view of those of the host."""


class ContainerLab(Lab):
    """A lab with a container `train` on each host, with the network of its host, in which the job runs."""

    name = "train"

    def __enter__(self) -> ContainerLab:
        self.start()
        return self

    def _start(self) -> None:
        super()._start()
        for host in self.hosts:
            self._prepare(host)
            self.run_container(host)

    def _prepare(self, host: Host) -> None:
        host.write("/etc/containers/containers.conf", ENGINE)
        host.write("/etc/containers/storage.conf", STORAGE)
        host.tool("podman", 'exec sudo -n /usr/bin/podman "$@"')
        # crun wants some mount of the kind under /sys/fs/cgroup, whatever it then does with it.
        host.run(
            f"mount -t tmpfs cgroup /sys/fs/cgroup; mkdir {ROOT}; mount -t tmpfs train {ROOT}; cd {ROOT}; mkdir upper work root; "
            "mount -t overlay train -o lowerdir=/,upperdir=upper,workdir=work root",
            "root",
        )

    def run_container(self, host: Host, *, network: str = "host", python: bool = True) -> None:
        """Start the container of a host, in the place of one that is there; without `python` none is in it."""
        base = str(Path(sys.base_prefix).resolve())
        shown = ["/opt/runbook-lab", *([base] if base != "/usr" else [])] if python else []
        if not python:
            host.run(
                f"find {ROOT}/root -xdev -maxdepth 5 -path '*/bin/*python*' -delete; rm -rf {ROOT}/root/opt/runbook-lab",
                "root",
            )
        volumes = [f"--volume={path}:{path}:ro" for path in shown]
        argv = ["run", "--detach", "--name", self.name, "--network", network, *volumes]
        host.run(["/usr/bin/podman", "rm", "--force", "--time=0", self.name], "root", check=False)
        self.podman(host, *argv, "--rootfs", f"{ROOT}/root", "sleep", "infinity")

    def podman(self, host: Host, *argv: str) -> str:
        """Run podman as root."""
        return host.run(["/usr/bin/podman", *argv], "root").stdout

    def within(self, host: Host) -> list[str]:
        """The command lines of what runs in the host's container beside its first process."""
        root = Path(f"/proc/{host.anchor}/root/proc")  # the host's own, where its pids are
        found = []
        for folder in root.glob("[0-9]*"):
            try:
                inner = (folder / "ns/pid").readlink() != (root / "1/ns/pid").readlink()
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:  # it has ended meanwhile
                continue
            if inner and line not in ("", "sleep infinity"):
                found.append(line)
        return found

    def inventory(self, file: str = "inventory.yml", **overrides: Any) -> Path:
        over = {"defaults": {"container": {"runtime": "podman", "name": self.name}}}
        return super().inventory(file, **merged(over, overrides))
