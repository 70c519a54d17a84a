"""What the lab needs of this machine, and what of it is missing.

Run as a program, prints the Debian packages that are missing, one a line, so that a Makefile can install them.
"""

from __future__ import annotations

import functools
import glob
import os
import shutil
import subprocess
import sys

# Most of these live where an ordinary PATH does not look.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"])

PROGRAMS: dict[str, str] = {
    "bash": "bash",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "sudo": "sudo",
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "iptables": "iptables",
    "ufw": "ufw",
    "ping": "iputils-ping",
    "ps": "procps",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "pivot_root": "util-linux",
    "mount": "mount",
    "ibstat": "infiniband-diags",
    "ibsim": "ibsim-utils",
    "opensm": "opensm",
    "faketime": "faketime",
    "zsh": "zsh",
    "fish": "fish",
}
# Of the tests over Slurm alone: the rest of the lab does without them.
SLURM_PROGRAMS: dict[str, str] = {
    "srun": "slurm-client",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "munged": "munge",
}
# Of the tests in containers alone.
CONTAINER_PROGRAMS: dict[str, str] = {
    "podman": "podman",
    "crun": "crun",
}
# Of the tests that look at pages in a real browser alone.
BROWSER_PROGRAMS: dict[str, str] = {"chromium": "chromium"}
LIBRARIES: dict[str, tuple[str, str]] = {
    "libumad2sim.so": ("ibsim-utils", "/usr/lib/*/umad2sim/libumad2sim.so"),
    "libfaketimeMT.so.1": ("faketime", "/usr/lib/*/faketime/libfaketimeMT.so.1"),
}

# Every kind of thing the lab does, tried once where nothing can be left behind.
PROBE = """
mount -t tmpfs lab /mnt || { echo "mounting a tmpfs"; exit; }
mkdir /mnt/upper /mnt/work /mnt/root
over=lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work
mount -t overlay lab -o $over /mnt/root 2>/dev/null || echo "an overlay over /"
mount -t proc proc /mnt/work 2>/dev/null || echo "mounting /proc"
mount -t sysfs sysfs /mnt/upper 2>/dev/null || echo "mounting /sys"
ip link add name lab0 type veth peer name lab1 2>/dev/null || echo "veth pairs"
ip link add name lab2 type bridge 2>/dev/null || echo "bridges"
tc qdisc add dev lo root tbf rate 1mbit burst 32kb latency 50ms 2>/dev/null || echo "tc tbf"
nft add table inet lab 2>/dev/null || echo "nftables"
"""


def find_program(name: str) -> str:
    """The full path of a program the lab needs; `lab_missing` has said already if it is not there."""
    path = shutil.which(name, path=SEARCH_PATH)
    if path is None:
        package = {**PROGRAMS, **SLURM_PROGRAMS, **CONTAINER_PROGRAMS, **BROWSER_PROGRAMS}.get(name, "?")
        raise FileNotFoundError(f"{name} is not installed (Debian package {package})")
    return path


def find_library(name: str) -> str:
    """The full path of a library that hosts preload."""
    package, pattern = LIBRARIES[name]
    found = sorted(glob.glob(pattern))  # noqa: PTH207 - an absolute pattern
    if not found:
        raise FileNotFoundError(f"{name} is not installed (Debian package {package})")
    return found[0]


def missing_packages() -> list[str]:
    """Debian packages to install before the lab can be had."""
    absent = _absent(PROGRAMS)
    absent |= {package for package, pattern in LIBRARIES.values() if not glob.glob(pattern)}  # noqa: PTH207
    return sorted(absent)


def _absent(programs: dict[str, str]) -> set[str]:
    return {package for program, package in programs.items() if shutil.which(program, path=SEARCH_PATH) is None}


def slurm_missing() -> list[str]:
    """Why no Slurm cluster can be had in the lab; empty when it can."""
    packages = sorted(_absent(SLURM_PROGRAMS))
    return [f"Slurm in the lab needs these Debian packages: {' '.join(packages)}"] if packages else []


def containers_missing() -> list[str]:
    """Why no containers can be had in the lab; empty when they can."""
    packages = sorted(_absent(CONTAINER_PROGRAMS))
    return [f"containers in the lab need these Debian packages: {' '.join(packages)}"] if packages else []


def browser_missing() -> list[str]:
    """Why no browser can be had for tests; empty when one can."""
    packages = sorted(_absent(BROWSER_PROGRAMS))
    return [f"tests in a browser need these Debian packages: {' '.join(packages)}"] if packages else []


def lab_missing() -> list[str]:
    """Why the lab cannot be had here; empty when it can. Looked at once."""
    return list(_missing())


@functools.cache
def _missing() -> tuple[str, ...]:
    if not sys.platform.startswith("linux"):
        return (f"the lab needs Linux, this is {sys.platform}",)
    if os.geteuid() != 0:
        return ("the lab needs root: it makes network namespaces",)
    packages = missing_packages()
    if packages:
        return (f"the lab needs these Debian packages: {' '.join(packages)}",)
    command = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--propagation", "private"]
    try:
        probe = subprocess.run(
            [*command, "bash", "-c", PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            env={**os.environ, "PATH": SEARCH_PATH},
        )
    except subprocess.TimeoutExpired:
        return ("trying namespaces took longer than 20 s",)
    if probe.returncode != 0 and not probe.stdout:
        return (f"no namespaces here: {probe.stderr.strip()}",)
    return tuple(f"this kernel or container does not allow {line}" for line in probe.stdout.splitlines())


if __name__ == "__main__":
    print(
        "\n".join([*missing_packages(), *sorted(_absent({**SLURM_PROGRAMS, **CONTAINER_PROGRAMS, **BROWSER_PROGRAMS}))])
    )
