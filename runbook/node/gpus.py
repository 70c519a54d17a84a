"""The node's GPUs, as nvidia-smi and the kernel show them. Says one message and ends. Python 3.8, standard library.

Argument, JSON: {"run_id": the run whose own processes on a GPU do not count, "deadline_s": seconds for each start of
nvidia-smi, "in_all_s": seconds for all starts that ask for its list}.

A GPU driver that hangs makes nvidia-smi hang, sometimes in a state in which not even KILL ends it. So the queries run
in parallel, each in a process group of its own and with a deadline, and the answers that come are reported whatever
happens to the other queries.
"""

from __future__ import annotations

import glob
import os
import re
import threading
import time

from runbook.node.proc import account_name, command_line, process_run_id, process_uid, read
from runbook.node.tools import find_tool, run, sendable_result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from runbook.transport.node_answers import GpuProcess, GpusAnswer, Ran

KERNEL_LOG_TIMEOUT_S = 4  # seconds for reading the kernel's log
GPU_QUERY_FIELDS = """index uuid name memory.total memory.used driver_version pci.bus_id
    ecc.errors.uncorrected.volatile.total retired_pages.pending mig.mode.current compute_mode
    clocks_event_reasons.active""".split()
FORMER_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
"""By name of a field, its name before driver 535."""

REFUSED_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')
NVIDIA_LOG_LINE = re.compile(r"NVRM|SXid|nvidia-nvswitch")
MAX_KERNEL_LINES = 300  # how many of the log's newest lines are kept


def query_gpus(
    smi: str, fields: Iterable[str], seconds: float, indices: Iterable[int] | None = None, in_all_s: float = 0.0
) -> Ran:
    """The result of asking nvidia-smi for `fields`, one line a GPU, only of the GPUs in `indices`, so that the driver
    wakes no others. If this driver does not know a field, the others are asked for again, which may wake the GPUs
    again: each start has `seconds`, all together `in_all_s`. Only a start that had its full `seconds` can time out."""
    fields = list(fields)
    deadline = time.monotonic() + max(seconds, in_all_s)
    which = [] if indices is None else ["-i", ",".join(map(str, indices))]
    while True:
        arguments = ["--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"]
        left_s = max(1.0, deadline - time.monotonic())
        said = run([smi] + which + arguments, min(seconds, left_s))
        if said.get("timed_out") and left_s < seconds:
            said = {"code": None, "out": "", "err": "it refused fields, and no time was left to ask for the others"}
        refused = REFUSED_FIELD.search(said.get("out", "") + said.get("err", ""))
        if not refused or refused.group(1) not in fields[1:]:
            said = sendable_result(said)
            said["fields"] = fields
            return said
        at = fields.index(refused.group(1))
        former = FORMER_NAMES.get(fields[at])
        fields[at : at + 1] = [former] if former else []


def nvidia_log_lines(argv: list[str]) -> list[str] | None:
    """The kernel's log lines about NVIDIA, by this command; None if the log may not be read."""
    path = find_tool(argv[0])
    if path is None:
        return None
    root = find_tool("sudo") if os.geteuid() else None  # `sudo -n` asks for nothing
    for sudo in (None, root) if root else (None,):
        said = run([path, *argv[1:]], KERNEL_LOG_TIMEOUT_S, sudo=sudo)
        lines = said["out"].splitlines()
        # For users who may not read the system's journal, journalctl ends with 0 and prints nothing.
        if said["code"] == 0 and lines:
            return [line for line in lines if NVIDIA_LOG_LINE.search(line)][-MAX_KERNEL_LINES:]
    return None


def count_pci_gpus() -> int | None:
    """How many of NVIDIA's graphics cards and accelerators are on the PCI bus; None if there is no such bus."""
    found = None
    for folder in glob.glob("/sys/bus/pci/devices/*"):
        found = found or 0
        if read(folder + "/vendor") == "0x10de" and (read(folder + "/class") or "").startswith(("0x0300", "0x0302")):
            found += 1
    return found


def gpu_process_facts(pid: int, run_id: str) -> GpuProcess:
    """The user of a process, its command line, and whether it belongs to this run; {} if it cannot be seen."""
    uid = process_uid(pid)
    if uid is None:
        return {}
    return {
        "user": account_name(uid) or str(uid),
        "command": command_line(pid) or "",
        "ours": process_run_id(pid) == run_id,
    }


def look(arguments: dict[str, Any]) -> GpusAnswer:
    facts: dict[str, Any] = {"pci": count_pci_gpus(), "amd": find_tool("rocm-smi") or find_tool("amd-smi")}
    smi = find_tool("nvidia-smi")
    jobs: dict[str, Callable[[], Any]] = {
        "dmesg": lambda: nvidia_log_lines(["dmesg"]),
        "journal": lambda: nvidia_log_lines(["journalctl", "-k", "-q", "--no-pager", "-o", "short-monotonic"]),
    }
    if smi is None:
        facts["gpu"] = {"missing": True}
    else:
        seconds = arguments["deadline_s"]
        apps = "--query-compute-apps=pid,gpu_uuid,used_memory,process_name"
        jobs["gpu"] = lambda: query_gpus(smi, GPU_QUERY_FIELDS, seconds, in_all_s=arguments["in_all_s"])
        jobs["apps"] = lambda: sendable_result(run([smi, apps, "--format=csv,noheader,nounits"], seconds))
        jobs["links"] = lambda: sendable_result(run([smi, "nvlink", "-s"], seconds))
        jobs["all"] = lambda: sendable_result(run([smi, "-q"], seconds))

    def work(name: str, job: Callable[[], Any]) -> None:
        facts[name] = job()

    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in jobs.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pids = {int(match) for match in re.findall(r"^(\d+),", facts.get("apps", {}).get("out", ""), re.MULTILINE)}
    facts["processes"] = {str(pid): gpu_process_facts(pid, arguments["run_id"]) for pid in sorted(pids)}
    facts["uptime_s"] = float((read("/proc/uptime") or "0").split()[0])
    found: GpusAnswer = facts  # type: ignore[assignment]  # filled by threads
    return found
