"""GPUs and InfiniBand ports of a host, from what its own tools printed. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runbook.parsers.ibstat import Port, from_sysfs, parse


@dataclass(frozen=True, slots=True)
class GpusFound:
    """`count` is None where nobody could look; `names` reads `8 x NVIDIA H100 80GB HBM3`.

    `doubt` says why or what is odd, with `{}` where the hosts go of which that is true.
    """

    count: int | None
    names: str = ""
    doubt: str | None = None


def gpus_of(nvidia_smi: Mapping[str, Any], devices: int | None) -> GpusFound:
    """From `nvidia-smi`'s lines; where it is missing, from the driver's own list in /proc."""
    if nvidia_smi.get("missing"):
        if devices:
            return GpusFound(devices, f"{devices} by the driver's list", "nvidia-smi is not on {}")
        return GpusFound(None, doubt="nvidia-smi is not on {}")
    if nvidia_smi.get("timed_out"):
        return GpusFound(devices, doubt="nvidia-smi does not return on {}: look at `dmesg | grep -i nvrm` there")
    rows = [line.split(", ") for line in str(nvidia_smi.get("out") or "").splitlines() if line.strip()]
    sound = [row for row in rows if len(row) >= 3 and row[0].strip().isdigit()]
    if nvidia_smi.get("code") != 0 or len(sound) != len(rows):
        said = str(nvidia_smi.get("out") or "") + str(nvidia_smi.get("err") or "")
        first = next((line.strip() for line in said.splitlines() if line.strip()), "it prints nothing")
        if "no devices were found" in said.lower():
            return GpusFound(0, doubt="nvidia-smi finds no devices on {}")
        return GpusFound(None, doubt=f"nvidia-smi fails on {{}}: {first[:100]}")
    kinds = Counter(row[2].strip() for row in sound)
    return GpusFound(len(sound), ", ".join(f"{count} x {kind}" for kind, count in kinds.items()))


def ports_of(ibstat: Mapping[str, Any]) -> list[Port]:
    """Ports as ibstat prints them, or as the kernel shows them."""
    ports = parse(str(ibstat.get("ibstat", {}).get("out") or ""))
    return ports or from_sysfs(ibstat.get("sysfs") or {})


def active(ports: Sequence[Port], link_layer: str) -> list[Port]:
    return [port for port in ports if port.state == "active" and port.link_layer.lower() == link_layer.lower()]
