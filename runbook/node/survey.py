"""Further facts for `inventory init`, besides those of `host_facts` and `ibstat`; only quick ones.

Says {"login": [address, port] of this node at which this login arrived, or null, "speeds": {interface:
Mbit/s}, "nvidia_smi": its output about GPUs, "nvidia_devices": how many the driver shows in /proc, or null}.
"""

from __future__ import annotations

import os

from runbook.node.proc import read
from runbook.node.tools import run_if_installed, sendable_result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runbook.transport.node_answers import SurveyAnswer

NVIDIA_GPUS_FOLDER = "/proc/driver/nvidia/gpus"
GPU_QUERY_OPTION = "--query-gpu=index,uuid,name,memory.total,memory.used"
NVIDIA_SMI_TIMEOUT_S = 10


def login_endpoint() -> tuple[str, int] | None:
    """The address and port of this node at which this login arrived, by SSH_CONNECTION, which sshd sets; else None."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return (words[2], int(words[3])) if len(words) == 4 and words[3].isdecimal() else None


def interface_speeds() -> dict[str, int]:
    found: dict[str, int] = {}
    try:
        names = os.listdir("/sys/class/net")
    except OSError:
        return found
    for name in names:
        speed = read("/sys/class/net/%s/speed" % name)  # unreadable if the link is down, -1 if unknown
        if speed and speed.isdecimal() and int(speed) > 0:
            found[name] = int(speed)
    return found


def nvidia_devices() -> int | None:
    try:
        return len(os.listdir(NVIDIA_GPUS_FOLDER))
    except OSError:
        return None


def look(_arguments: dict[str, Any]) -> SurveyAnswer:
    return {
        "login": login_endpoint(),
        "speeds": interface_speeds(),
        "nvidia_smi": sendable_result(
            run_if_installed("nvidia-smi", [GPU_QUERY_OPTION, "--format=csv,noheader,nounits"], NVIDIA_SMI_TIMEOUT_S)
        ),
        "nvidia_devices": nvidia_devices(),
    }
