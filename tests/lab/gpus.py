"""GPUs without any: `nvidia-smi` on a host of the lab, about hardware that a test makes up. The parser is the real one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .host import Host
from .lab import Lab

PROGRAM = Path(__file__).with_name("nvidia_smi.py")
HARDWARE = "/run/lab-gpus.json"


def sound(index: int) -> dict[str, Any]:
    """A GPU with nothing wrong; keys are nvidia-smi's field names, besides links, fabric, recovery and remap_pending."""
    return {
        "index": str(index),
        "uuid": f"GPU-5d1f7b2c-0000-4000-8000-{index:012}",
        "name": "NVIDIA H100 80GB HBM3",
        "memory.total": "81559",
        "memory.used": "4",
        "driver_version": "550.90.07",
        "pci.bus_id": f"00000000:{0x1B + 0x20 * index:02X}:00.0",
        "ecc.errors.uncorrected.volatile.total": "0",
        "retired_pages.pending": "[N/A]",
        "mig.mode.current": "Disabled",
        "compute_mode": "Default",
        "persistence_mode": "Enabled",
        "clocks_event_reasons.active": "0x0000000000000001",
        "links": [True] * 18,
        "fabric": "Completed",
        "recovery": "None",
        "remap_pending": "No",
    }


def install(
    host: Host,
    count: int = 2,
    *,
    wrong: Mapping[int, Mapping[str, Any]] | None = None,
    every: Mapping[str, Any] | None = None,
    without: Sequence[str] = (),
    apps: Sequence[Mapping[str, Any]] = (),
    driver: str = "550.90.07",
    cuda: str = "12.4",
) -> None:
    """Give a host this many GPUs. `wrong` changes single ones, by index, `every` all; `without`: fields that this
    driver does not know; `apps`: {gpu, pid, mib, name} of processes that compute."""
    gpus = [{**sound(n), "driver_version": driver, **(every or {}), **(wrong or {}).get(n, {})} for n in range(count)]
    for gpu in gpus:
        for name in without:
            del gpu[name]
    hardware = {"gpus": gpus, "apps": [dict(app) for app in apps], "driver": driver, "cuda": cuda}
    host.write(HARDWARE, json.dumps(hardware))
    host.tool("nvidia-smi", f"#!{host.lab.python_without_torch} -I\n{PROGRAM.read_text()}")


def install_everywhere(lab: Lab, count: int = 2, **options: Any) -> None:
    for host in lab:
        install(host, count, **options)


def two_each(_lab: Lab) -> dict[str, Any]:
    """For `Fault.inventory`: two GPUs a node, and gloo, which needs none."""
    return {"defaults": {"gpus": 2, "processes": None}}


def stranger(host: Host, *, gpu: int = 1, mib: int = 64000) -> None:
    """Somebody else's process, really there, which nvidia-smi says computes on a GPU."""
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(300)  # train.py"
    process: subprocess.Popen[str] = host.popen([host.lab.python_without_torch, "-c", code], "root")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    app = {"gpu": str(gpu), "pid": pid, "mib": str(mib), "name": "/usr/bin/python3"}
    install(host, wrong={gpu: {"memory.used": str(mib + 500)}}, apps=[app])


def kernel_says(host: Host, *lines: str, age_s: float = 60.0) -> None:
    """The kernel's log of the host: these lines of the driver, written so long ago; only root may read it."""
    uptime = float(host.read("/proc/uptime").split()[0])
    text = "\n".join(f"[{uptime - age_s:12.6f}] {line}" for line in lines)
    host.write("/run/lab-kernel.log", text + "\n", mode=0o600)
    denied = "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1"
    host.tool("dmesg", f"[ $(id -u) = 0 ] || {{ {denied}; }}\ncat /run/lab-kernel.log")
    host.tool("journalctl", "exit 0")
