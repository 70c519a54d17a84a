"""This node's counters: errors of the job's interfaces and of InfiniBand ports, TCP segments sent again, swapping and
waiting for a CPU, the state of GPUs, and the kernel's log about them. It only reads; unreadable values are null.

Argument: {"interfaces": those that carry the job, "gpus": indices (if empty, nvidia-smi is not started), "deadline_s":
seconds for nvidia-smi, "pid": of a rank, whose control group may hold it back, or null}.
Gives {"clock": seconds of this node's monotonic clock, "interfaces": {name: {counter: number or null}}, with the
devices below a bond or VLAN, "tcp": {"OutSegs", "RetransSegs"} or null, "ports": {"mlx5_0:1": {counter: number
or null}}, "machine": {counter: number or null}, "gpus": in the form of `gpu` in gpus.py, or null, "xids": lines of the
kernel's log, or null}.
"""

from __future__ import annotations

import glob
import re
import time

from runbook.node.adapters import SYS_CLASS_NET, physical_devices, read_integer
from runbook.node.cpu_waits import process_and_descendants, throttled_us
from runbook.node.gpus import query_gpus
from runbook.node.proc import digits_as_integer, kernel_counters, read
from runbook.node.tools import find_tool, run_if_installed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from runbook.transport.node_answers import Counters, Segments

INTERFACE_COUNTERS = "rx_packets tx_packets rx_errors tx_errors rx_crc_errors rx_dropped tx_dropped".split()
IB_PORT_COUNTERS = {
    "counters": """symbol_error link_error_recovery link_downed port_rcv_errors port_xmit_discards
        local_link_integrity_errors excessive_buffer_overrun_errors""".split(),
    "hw_counters": ["local_ack_timeout_err", "rnr_nak_retry_err"],
}
IB_PORT_FOLDERS = "/sys/class/infiniband/*/ports/*"
GPU_COUNTER_FIELDS = """index uuid name pci.bus_id clocks.sm clocks.max.sm temperature.gpu
    ecc.errors.uncorrected.volatile.total clocks_event_reasons.active""".split()
XID_LINE = re.compile(r"\bS?Xid \(")  # a line about a fault of a GPU or an NVSwitch
MAX_XID_LINES = 200  # the most lines kept of the kernel's log
DMESG_TIMEOUT_S = 3


def look(arguments: dict[str, Any]) -> Counters:
    names = [device for name in arguments["interfaces"] for device in [name] + physical_devices(name)]
    smi = find_tool("nvidia-smi") if arguments["gpus"] else None
    return {
        "clock": time.monotonic(),
        "interfaces": {name: interface_counters(name) for name in dict.fromkeys(names)},
        "tcp": tcp_segment_counts(),
        "ports": port_counters(),
        "machine": machine_counters(arguments["pid"]),
        "gpus": query_gpus(smi, GPU_COUNTER_FIELDS, arguments["deadline_s"], arguments["gpus"]) if smi else None,
        "xids": xid_log_lines() if arguments["gpus"] else None,
    }


def interface_counters(name: str) -> dict[str, int | None]:
    found = {key: read_integer(SYS_CLASS_NET + name + "/statistics/" + key) for key in INTERFACE_COUNTERS}
    found["carrier_down_count"] = read_integer(SYS_CLASS_NET + name + "/carrier_down_count")
    return found


def tcp_segment_counts() -> Segments | None:
    said = kernel_counters("/proc/net/snmp", "Tcp:")
    return {"OutSegs": said["OutSegs"], "RetransSegs": said["RetransSegs"]} if said else None


def port_counters() -> dict[str, dict[str, int | None]]:
    found = {}
    for base in sorted(glob.glob(IB_PORT_FOLDERS)):
        hca, _, port = base.split("/")[-3:]
        found["%s:%s" % (hca, port)] = {
            key: read_integer("%s/%s/%s" % (base, folder, key))
            for folder, keys in IB_PORT_COUNTERS.items()
            for key in keys
        }
    return found


def machine_counters(pid: int | None) -> dict[str, int | None]:
    """Counts of the machine: pages swapped, and microseconds in which some process waited for memory or a CPU, or the
    control group of the rank was held back."""
    pages = dict(line.split(None, 1) for line in (read("/proc/vmstat") or "").splitlines())
    found = {name: digits_as_integer(pages.get(name)) for name in ("pswpin", "pswpout")}
    for what in ("cpu", "memory"):
        waited = re.search(r"^some .*\btotal=(\d+)", read("/proc/pressure/" + what) or "", re.MULTILINE)
        found[what + "_waited_us"] = digits_as_integer(waited.group(1) if waited else None)
    found["quota_us"] = throttled_us(process_and_descendants(pid)) if pid else None
    return found


def xid_log_lines() -> list[str] | None:
    """The driver's lines about faults in the kernel's log, or None. Read without `sudo`, which would leave an entry in
    the log every half a minute."""
    said = run_if_installed("dmesg", [], DMESG_TIMEOUT_S)
    if said.get("code") != 0:
        return None
    return [line for line in said["out"].splitlines() if XID_LINE.search(line)][-MAX_XID_LINES:]
