"""Whether a real Kubernetes cluster can be had here. Run as a program: prints why not, one sentence, or nothing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

PROGRAMS = Path(os.environ.get("RUNBOOK_KUBERNETES") or Path(__file__).resolve().parents[2] / ".venv" / "kubernetes")
"""Where build.sh puts what it makes."""

TOOLS = {
    "apt-get": "apt",
    "dpkg": "dpkg",
    "make": "make",
    "patch": "patch",
    "openssl": "openssl",
    "ldd": "libc-bin",
    "nsenter": "util-linux",
    "ip": "iproute2",
    "nft": "nftables",
}
ROOM = 8 << 30


def release() -> str:
    try:
        lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    told = dict(line.partition("=")[::2] for line in lines)
    return f"{told.get('ID', '')} {told.get('VERSION_ID', '')}".replace('"', "")


def built() -> bool:
    return (PROGRAMS / ".built").exists()


def kubernetes_missing() -> str | None:
    """Why no cluster can be had, one sentence; None where it can."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return f"the cluster is built for Linux on x86_64, and this is {sys.platform} on {platform.machine()}"
    if os.geteuid() != 0:
        return "a kubelet needs root"
    if not Path("/sys/fs/cgroup/memory").is_dir():
        return "Kubernetes 1.20, which is what Debian 12 has the source of, needs control groups of the first version"
    if built():
        return None
    if release() != "debian 12":
        return f"the cluster is built from Debian 12's packages, and this is {release() or 'another system'}"
    absent = sorted(package for tool, package in TOOLS.items() if shutil.which(tool) is None)
    if absent:
        return f"building a cluster needs these Debian packages: {' '.join(absent)}"
    free = shutil.disk_usage(PROGRAMS.parent if PROGRAMS.parent.exists() else "/").free
    return f"building a cluster takes {ROOM >> 30} GiB, and {free >> 30} are free" if free < ROOM else None


if __name__ == "__main__":
    print(kubernetes_missing() or "", end="")
