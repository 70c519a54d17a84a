"""Collects what an expert would look at on a node, as the node's own tools print it. It only reads; nothing is written.

Argument, JSON: {"addresses": names and addresses to look up, "ports": [[first, last], ...], "python": the inventory's
interpreter, "activate": its activate line or null, "begin": lines of sh that run it, "names": prefixes of the
environment variables that may be shown, "seconds": how long to look, "age": how many seconds ago the run began, or
null}.

Says {"answers": [...], "users": [[login name, home, full name], ...], "hostnames": [...], "user": login name}. An
answer is {"name": its place in the archive, "command": what was run or read, "status", "code", "seconds", "out", "err",
"left_out"}. `status` is ok (whatever the exit code), missing (no such tool or file), denied (needs more rights),
timeout (the output until then is kept) or failed. `left_out` is the number of bytes between a kept head and a kept
tail, cut at line breaks.

Commands are fixed words. Values from the inventory are separate words and never text of a shell, except `activate`,
which is the user's own line of shell and is run as in every run.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
import re
import shlex
import time
from typing import NamedTuple

from runbook.node.proc import (
    all_pids,
    descriptor_targets,
    process_arguments,
    process_environment,
    process_stat,
    process_uid,
    read,
    tcp_sockets,
)
from runbook.node.tools import feed_from_stream, find_tool, run_status
from runbook.node.tools import run as run_tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from re import Pattern
    from typing import Any, Literal

    from runbook.transport.node_answers import Collected, CollectedAnswer

    Status = Literal["ok", "missing", "denied", "timeout", "failed"]
    Accounts = dict[int, tuple[str, str, str]]
    """By uid: login name, home, full name."""

MAX_OUTPUT_BYTES = 256 * 1024  # the most bytes kept of one answer's output
MAX_STDERR_BYTES = 16 * 1024  # the most bytes kept of a command's stderr
MAX_PARALLEL_COMMANDS = 8  # how many commands run at a time
MAX_ARGUMENT_CHARACTERS = 4096  # the most characters of a process's argument that is shown

KERNEL_LOG_LINE = re.compile(
    r"\bxid\b|nvrm|nvidia|nvlink|nvswitch|mlx[45]|infiniband|\bib\d|rdma|peermem|gdrdrv|\baer\b|pcie"
    r"|link (is )?(up|down)|oom|out of memory|killed process|segfault|hung task|blocked for more|soft lockup"
    r"|hard lockup|\bmce\b|hardware error|edac|i/o error|nf_conntrack|neighbou?r table overflow|thermal|throttl"
    r"|bond\d|iommu|\bacs\b",
    re.IGNORECASE,
)
"""The lines of the kernel's log that are kept: about GPUs, links, memory and errors."""
MODULE_LINE = re.compile(
    r"nvidia|nouveau|mlx|^ib_|rdma|peermem|gdrdrv|amdgpu|^efa|bnxt|irdma|nf_tables|ip_tables|conntrack"
)
"""The kernel modules that are kept in an answer."""
PCI_CARD_LINE = re.compile(
    r"nvidia|mellanox|infiniband|3d controller|ethernet|network controller|amd/ati|processing accel", re.I
)
"""The PCI devices that are kept in an answer."""
ACS_LINE = re.compile(r"^[0-9a-f]{2,4}:|ACSCtl|ACSCap|LnkSta:")

FILTER_NOTES = {
    KERNEL_LOG_LINE.pattern: "only lines about GPUs, links, memory and errors",
    MODULE_LINE.pattern: "only modules of GPUs, networks and firewalls",
    PCI_CARD_LINE.pattern: "only GPUs and network cards",
    ACS_LINE.pattern: "only ACS and link states",
}
"""By pattern, in words, which lines of an answer are kept."""

# The rights of a command: as the login user; as root (through `sudo -n`, which never asks); as one, then as the other.
USER, ROOT, USER_THEN_ROOT, ROOT_THEN_USER = "user", "root", "user, then root", "root, then user"


class CollectedCommand(NamedTuple):
    """The command that is run for one answer. `keep`: if given, only lines that match this pattern are kept."""

    name: str
    words: str | list[str]
    seconds: float = 5
    rights: str = USER
    keep: Pattern[str] | None = None

    @property
    def argv(self) -> list[str]:
        return self.words.split() if isinstance(self.words, str) else self.words


COMMANDS = [
    # The slow ones first.
    CollectedCommand("gpu/nvidia-smi", "nvidia-smi", 10),
    CollectedCommand("gpu/nvidia-smi-list", "nvidia-smi -L", 10),
    CollectedCommand("gpu/nvidia-smi-topology", "nvidia-smi topo -m", 10),
    CollectedCommand("gpu/nvidia-smi-nvlink", "nvidia-smi nvlink -s", 10),
    CollectedCommand(
        "gpu/nvidia-smi-details",
        "nvidia-smi -q -d ECC,TEMPERATURE,POWER,CLOCK,PERFORMANCE,PAGE_RETIREMENT,ROW_REMAPPER",
        10,
    ),
    CollectedCommand("gpu/rocm-smi", "rocm-smi", 10),
    CollectedCommand("gpu/fabric-manager", "systemctl is-active nvidia-fabricmanager"),
    CollectedCommand("gpu/persistence", "systemctl is-active nvidia-persistenced"),
    CollectedCommand("system/kernel-log", "dmesg -T", 8, USER_THEN_ROOT, KERNEL_LOG_LINE),
    CollectedCommand("system/uname", "uname -a"),
    CollectedCommand("system/uptime", "uptime"),
    CollectedCommand("system/date", ["date", "-u", "+%Y-%m-%dT%H:%M:%S.%NZ"]),
    CollectedCommand("system/timedatectl", "timedatectl"),
    CollectedCommand("system/chrony", "chronyc -n tracking"),
    CollectedCommand("system/chrony-sources", "chronyc -n sources"),
    CollectedCommand("system/ntpq", "ntpq -pn"),
    CollectedCommand("system/cpu", "lscpu"),
    CollectedCommand("system/numa", "numactl --hardware"),
    CollectedCommand("system/memory", "free -m"),
    CollectedCommand("system/disks", "df -hPT"),
    CollectedCommand("system/shared-memory", "df -h /dev/shm"),
    CollectedCommand("system/virtualization", "systemd-detect-virt"),
    CollectedCommand("system/sudo", ["sudo", "-n", "true"]),
    CollectedCommand("system/ssh", "ssh -V"),
    CollectedCommand("system/sshd", "sshd -V"),
    CollectedCommand("network/ip-address", "ip -d address show"),
    CollectedCommand("network/ip-link", "ip -s link show"),
    CollectedCommand("network/ip-route", "ip -4 route show table all"),
    CollectedCommand("network/ip-route-6", "ip -6 route show table all"),
    CollectedCommand("network/ip-rule", "ip -4 rule show"),
    CollectedCommand("network/ip-rule-6", "ip -6 rule show"),
    CollectedCommand("network/ip-neighbours", "ip neighbour show"),
    CollectedCommand("network/sockets", "ss -s"),
    CollectedCommand("firewall/nft", "nft list ruleset", 5, ROOT),
    CollectedCommand("firewall/iptables", "iptables-save", 5, ROOT),
    CollectedCommand("firewall/ip6tables", "ip6tables-save", 5, ROOT),
    CollectedCommand("firewall/ufw", "ufw status verbose", 5, ROOT),
    CollectedCommand("firewall/firewalld-state", "firewall-cmd --state"),
    CollectedCommand("firewall/firewalld-zones", "firewall-cmd --list-all-zones", 5, ROOT),
    CollectedCommand("infiniband/ibstat", "ibstat", 8),
    CollectedCommand("infiniband/ibstatus", "ibstatus", 8),
    CollectedCommand("infiniband/ibv_devinfo", "ibv_devinfo", 8),
    CollectedCommand("infiniband/ibdev2netdev", "ibdev2netdev", 8),
    CollectedCommand("infiniband/perfquery", "perfquery -x", 8, USER_THEN_ROOT),
    CollectedCommand("infiniband/rdma-link", "rdma link show"),
    CollectedCommand("infiniband/show_gids", "show_gids", 8),
    CollectedCommand("infiniband/ofed", "ofed_info -s"),
    CollectedCommand("pci/cards", "lspci -nn", 5, USER, PCI_CARD_LINE),
    CollectedCommand("pci/tree", "lspci -tv"),
    CollectedCommand("pci/acs-and-links", "lspci -vvv", 8, ROOT, ACS_LINE),
]
FILES = [
    ("system/os-release", "/etc/os-release", None),
    ("system/load", "/proc/loadavg", None),
    ("system/limits", "/proc/self/limits", None),
    ("system/cgroup", "/proc/self/cgroup", None),
    ("system/cgroup-memory-max", "/sys/fs/cgroup/memory.max", None),
    ("system/kernel-command-line", "/proc/cmdline", None),
    ("system/kernel-modules", "/proc/modules", MODULE_LINE),
    ("network/hosts", "/etc/hosts", None),
    ("network/resolv.conf", "/etc/resolv.conf", None),
    ("network/nsswitch.conf", "/etc/nsswitch.conf", re.compile(r"^\s*hosts\s*:")),
    ("network/gai.conf", "/etc/gai.conf", re.compile(r"^\s*[^#\s]")),
    ("network/tcp-counters", "/proc/net/netstat", None),
    ("network/snmp-counters", "/proc/net/snmp", None),
    ("gpu/driver", "/proc/driver/nvidia/version", None),
    ("nccl/nccl.conf", "/etc/nccl.conf", None),
    ("nccl/user-nccl.conf", "~/.nccl.conf", None),
]
"""Files that are read: name of the answer, path, and the pattern of kept lines or None."""
SYSCTLS = """
    kernel/osrelease kernel/numa_balancing kernel/yama/ptrace_scope kernel/dmesg_restrict
    vm/overcommit_memory vm/max_map_count
    net/core/rmem_max net/core/wmem_max net/core/rmem_default net/core/wmem_default net/core/somaxconn
    net/core/netdev_max_backlog net/core/default_qdisc net/core/busy_poll
    net/ipv4/ip_local_port_range net/ipv4/ip_local_reserved_ports net/ipv4/ip_forward
    net/ipv4/tcp_rmem net/ipv4/tcp_wmem
    net/ipv4/tcp_congestion_control net/ipv4/tcp_mtu_probing net/ipv4/tcp_syn_retries net/ipv4/tcp_retries2
    net/ipv4/tcp_keepalive_time net/ipv4/tcp_max_syn_backlog net/ipv4/tcp_tw_reuse net/ipv4/tcp_timestamps
    net/ipv4/tcp_available_congestion_control net/ipv4/conf/all/rp_filter net/ipv4/conf/default/rp_filter
    net/ipv4/conf/all/arp_ignore net/ipv4/conf/all/arp_announce net/ipv4/conf/all/arp_filter
    net/ipv4/neigh/default/gc_thresh1 net/ipv4/neigh/default/gc_thresh2 net/ipv4/neigh/default/gc_thresh3
    net/ipv6/conf/all/disable_ipv6 net/ipv6/bindv6only
    net/netfilter/nf_conntrack_count net/netfilter/nf_conntrack_max net/netfilter/nf_conntrack_tcp_be_liberal
""".split()
"""Settings of the kernel that are read, as paths below /proc/sys."""

# Torch's own collect_env is not used: it asks pip and conda, which takes longer than everything else here.
ENVIRONMENT_SCRIPT = r"""
import os, sys, platform
sys.path[:] = [p for p in sys.path if p]
print("python", platform.python_version(), sys.executable)
try:
    from importlib import metadata
except ImportError:
    metadata = None
import re
wanted = re.compile(r"(torch|nvidia|triton|numpy|nccl|cuda|cupy|jax|deepspeed|accelerate|transformers|megatron|apex"
                    r"|mpi4py|horovod|pytorch|lightning|flash|xformers|tensorflow|ray$|vllm|runbook)", re.I)
found = {}
for one in (metadata.distributions() if metadata else ()):
    name = one.metadata["Name"] or ""
    if wanted.match(name):
        found[name.lower()] = "%s==%s" % (name, one.version)
print("\n".join(found[name] for name in sorted(found)))
for key, value in sorted(os.environ.items()):
    if key.startswith(tuple(sys.argv[1].split(","))):
        print("%s=%s" % (key, value))
sys.stdout.flush()
try:
    import torch
except ImportError as error:
    print("import torch:", error)
    sys.exit(0)
print("torch", torch.__version__, "built for cuda", torch.version.cuda, "hip", getattr(torch.version, "hip", None))
for name, look in (
    ("nccl", lambda: torch.cuda.nccl.version()),
    ("cudnn", lambda: torch.backends.cudnn.version()),
    ("distributed", lambda: torch.distributed.is_available()),
    ("backends", lambda: [n for n in ("gloo", "nccl", "mpi", "ucc")
                          if getattr(torch.distributed, "is_%s_available" % n, bool)()]),
    ("visible gpus", lambda: torch.cuda.device_count()),
    ("gpu kinds built for", lambda: torch.cuda.get_arch_list()),
):
    try:
        print(name, look())
    except Exception as error:
        print(name, "unknown:", type(error).__name__, error)
"""


class HeadAndTail:
    """Keeps the head and the tail of a text, in bounded memory."""

    def __init__(self, most: int) -> None:
        self.half = most // 2
        self.head = bytearray()
        self.tail = bytearray()
        self.size = 0

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        room = self.half - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if len(self.tail) > 4 * self.half:
            del self.tail[: -self.half]

    @property
    def left_out(self) -> int:
        """How many bytes between the head and the tail are not kept."""
        return self.size - sum(map(len, self.parts()))

    def parts(self) -> tuple[bytes, ...]:
        """The kept head and tail, cut at line breaks, since half a secret is still a secret; or the whole text."""
        if self.size <= 2 * self.half:
            return (bytes(self.head + self.tail),)
        head = bytes(self.head)
        tail = bytes(self.tail[-self.half :])
        begin = tail.find(b"\n") + 1
        return head[: head.rfind(b"\n") + 1], tail[begin:] if begin else b""

    def text(self) -> str:
        return ("[... %d bytes left out here ...]\n" % self.left_out).join(map(utf8_text, self.parts()))


def utf8_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


class MatchingLines:
    """Passes on only the lines that match a pattern."""

    def __init__(self, pattern: Pattern[str], kept: HeadAndTail) -> None:
        self.pattern = pattern
        self.kept = kept
        self.rest = b""

    def feed(self, data: bytes) -> None:
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()[-MAX_OUTPUT_BYTES:]
        for line in lines:
            if self.pattern.search(utf8_text(line)):
                self.kept.feed(line + b"\n")

    def text(self) -> str:
        if self.rest:
            self.feed(b"\n")
        return self.kept.text()


def run(
    name: str,
    argv: list[str],
    seconds: float,
    as_root: bool = False,
    keep: Pattern[str] | None = None,
    shown: str | None = None,
) -> CollectedAnswer:
    """Runs one command; its answer. Never raises, never takes much longer than `seconds`, never keeps more than
    MAX_OUTPUT_BYTES. With `shown`, for the job's own Python, the answer shows that text and the command gets the
    login's environment."""
    begun = time.monotonic()
    env = dict(os.environ, LC_ALL="C", LANG="C", SYSTEMD_COLORS="0", SYSTEMD_PAGER="") if shown is None else os.environ
    shown = shown or shlex.join((["sudo", "-n"] if as_root and os.geteuid() != 0 else []) + argv)
    if keep and keep.pattern in FILTER_NOTES:
        shown += "  # " + FILTER_NOTES[keep.pattern]
    path = argv[0] if os.path.isabs(argv[0]) else find_tool(argv[0])
    if path is None:
        return collected_answer(name, shown, "missing", err="there is no %s here" % argv[0])
    sudo = find_tool("sudo") if as_root and os.geteuid() != 0 else None
    if as_root and os.geteuid() != 0 and sudo is None:
        return collected_answer(name, shown, "denied", err="it needs root, and there is no sudo here")
    out, err = HeadAndTail(MAX_OUTPUT_BYTES), HeadAndTail(MAX_STDERR_BYTES)
    sink = MatchingLines(keep, out) if keep else out
    try:
        said = run_tool([path, *argv[1:]], seconds, sudo=sudo, env=env, out=sink, err=err)
    except (OSError, RuntimeError) as error:
        return collected_answer(name, shown, "failed", err=str(error))
    answer = collected_answer(name, shown, run_status(said), said["code"], sink.text(), said["err"] or err.text())
    answer["left_out"] = out.left_out
    answer["seconds"] = round(time.monotonic() - begun, 3)
    return answer


def collected_answer(
    name: str, command: str, status: Status, code: int | None = None, out: str = "", err: str = ""
) -> CollectedAnswer:
    return {
        "name": name,
        "command": command,
        "status": status,
        "code": code,
        "seconds": 0.0,
        "out": out,
        "err": err,
        "left_out": 0,
    }


def run_with_rights(one: CollectedCommand) -> CollectedAnswer:
    """Runs a command with the rights that it needs; its answer. If it is run twice, the answer is the one that was
    permitted; of two refusals, the one about root."""
    root_first = one.rights in (ROOT, ROOT_THEN_USER)
    first = run(one.name, one.argv, one.seconds, root_first, one.keep)
    if one.rights in (USER, ROOT) or os.geteuid() == 0 or first["status"] != "denied":
        return first
    second = run(one.name, one.argv, one.seconds, not root_first, one.keep)
    return first if second["status"] == "denied" and root_first else second


def read_file(name: str, path: str, keep: Pattern[str] | None = None) -> CollectedAnswer:
    begun = time.monotonic()
    answer = collected_answer(name, "cat " + path, "ok", 0)
    out = HeadAndTail(MAX_OUTPUT_BYTES)
    sink = MatchingLines(keep, out) if keep else out
    try:
        descriptor = os.open(os.path.expanduser(path), os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", 0) as stream:
            feed_from_stream(stream, sink)
        answer["out"], answer["left_out"] = sink.text(), out.left_out
    except OSError as error:
        answer["code"] = None
        if isinstance(error, FileNotFoundError):
            answer["status"], answer["err"] = "missing", "there is no %s here" % path
        elif isinstance(error, PermissionError):
            answer["status"], answer["err"] = "denied", "%s may not be read by this user" % path
        else:
            answer["status"], answer["err"] = "failed", str(error)
    answer["seconds"] = round(time.monotonic() - begun, 3)
    return answer


def own_answer(name: str, command: str, lines: Iterable[str]) -> CollectedAnswer:
    """An answer with lines that this program found out itself."""
    return collected_answer(name, command, "ok", 0, "".join(line + "\n" for line in lines))


def sysctls_answer() -> CollectedAnswer:
    lines = []
    for key in SYSCTLS:
        value = read("/proc/sys/" + key)
        if value is not None:
            lines.append("%s = %s" % (key.replace("/", "."), " ".join(value.split())))
    for key in sorted(os.listdir("/proc/sys/net/ipv4/conf")):
        value = read("/proc/sys/net/ipv4/conf/%s/rp_filter" % key)
        if value and key not in ("all", "default"):
            lines.append("net.ipv4.conf.%s.rp_filter = %s" % (key, value))
    return own_answer("system/sysctl", "sysctl of net.*, vm.* and kernel.* that matter", lines)


def sysfs_interfaces_answer() -> CollectedAnswer:
    """The answer with what sysfs says about every network interface."""
    lines = []
    for name in sorted(os.listdir("/sys/class/net")):
        facts = []
        for fact in ("operstate", "mtu", "speed", "duplex", "carrier_changes", "device/vendor", "device/numa_node"):
            value = read("/sys/class/net/%s/%s" % (name, fact))
            if value not in (None, ""):
                facts.append("%s=%s" % (fact.split("/")[-1], value))
        for fact in ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors"):
            value = read("/sys/class/net/%s/statistics/%s" % (name, fact))
            if value and value != "0":
                facts.append("%s=%s" % (fact, value))
        lines.append("%s: %s" % (name, " ".join(facts)))
    return own_answer("network/interfaces", "/sys/class/net", lines)


def hcas_answer() -> CollectedAnswer:
    base = "/sys/class/infiniband"
    lines = []
    for hca in sorted(os.listdir(base)):
        for fact in ("fw_ver", "board_id", "hca_type", "node_desc", "device/numa_node"):
            value = read("%s/%s/%s" % (base, hca, fact))
            if value:
                lines.append("%s %s: %s" % (hca, fact, value))
        for port in sorted(os.listdir("%s/%s/ports" % (base, hca))):
            here = "%s/%s/ports/%s" % (base, hca, port)
            for fact in ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid"):
                lines.append("%s port %s %s: %s" % (hca, port, fact, read("%s/%s" % (here, fact))))
            for counters in ("counters", "hw_counters"):
                if os.path.isdir("%s/%s" % (here, counters)):
                    for counter in sorted(os.listdir("%s/%s" % (here, counters))):
                        value = read("%s/%s/%s" % (here, counters, counter))
                        if value not in (None, "0"):
                            lines.append("%s port %s %s: %s" % (hca, port, counter, value))
    return own_answer("infiniband/sysfs", base, lines)


def listed_accounts() -> Accounts:
    """The accounts that are listed on this node, 20,000 at most."""
    found: Accounts = {}
    try:
        import pwd

        for entry in pwd.getpwall()[:20000]:
            found[entry.pw_uid] = (entry.pw_name, entry.pw_dir, entry.pw_gecos.split(",")[0])
    except (ImportError, OSError):
        pass
    return found


def account_of_uid(uid: int, known: Accounts) -> tuple[str, str, str]:
    """The account of a uid. A directory service may not list all accounts, so a missing one is asked for by itself."""
    if uid not in known:
        try:
            import pwd

            entry = pwd.getpwuid(uid)
            known[uid] = (entry.pw_name, entry.pw_dir, entry.pw_gecos.split(",")[0])
        except (ImportError, KeyError, OSError):
            known[uid] = (str(uid), "", "")
    return known[uid]


def ports_by_inode(ports: list[tuple[int, int]]) -> dict[str, int]:
    """By inode, the local port of each socket that uses one of the ports."""
    return {row.inode: row.port for row in tcp_sockets() if any(first <= row.port <= last for first, last in ports)}


def processes_answer(ports: list[tuple[int, int]], known: Accounts) -> tuple[CollectedAnswer, set[int]]:
    """The answer about processes that hold GPUs or the ports, are stuck in the kernel, or are left of an earlier run,
    as far as this user may see them; and the uids of all processes."""
    sockets = ports_by_inode(ports)
    lines: list[str] = []
    uids: set[int] = set()
    hidden = 0
    for pid in sorted(all_pids()):
        its, uid = process_stat(pid), process_uid(pid)
        if its is None or uid is None:
            continue
        uids.add(uid)
        why = []
        if its.state == "D":
            why.append("in uninterruptible sleep at %s" % (read("/proc/%d/wchan" % pid) or "?"))
        try:
            targets = descriptor_targets(pid)
            why += [
                "port %d" % sockets[one[8:-1]] for one in targets if one[8:-1] in sockets and one.startswith("socket:[")
            ]
            why += sorted({one for one in targets if one.startswith(("/dev/nvidia", "/dev/kfd", "/dev/infiniband"))})
            run_id = re.search(r"(?:^|\0)RUNBOOK_RUN_ID=([\w.-]+)", utf8_text(b"\0".join(process_environment(pid))))
            if run_id and run_id.group(1) != os.environ.get("RUNBOOK_RUN_ID"):
                why.append("of the run %s of runbook" % run_id.group(1))
        except OSError:
            hidden += 1
        if why:
            words = (
                word if len(word) <= MAX_ARGUMENT_CHARACTERS else "(a long word)" for word in process_arguments(pid)
            )
            shown = " ".join(words) or "(kernel)"
            lines.append("%d %s %s [%s] %s" % (pid, account_of_uid(uid, known)[0], its.state, ", ".join(why), shown))
    if hidden:
        lines.append("(%d processes of other users could not be inspected)" % hidden)
    return own_answer("processes", "processes with a GPU or one of the ports, stuck, or left of a run", lines), uids


def kernel_log_of_run(kernel_log: CollectedAnswer, age: float) -> CollectedAnswer:
    """The answer with only the kernel's lines since the run began, by this machine's own clock."""
    begun = time.time() - age - 2
    lines = []
    for line in kernel_log["out"].splitlines():
        stamp = re.match(r"\[([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ", line)
        try:
            if stamp and time.mktime(time.strptime(stamp.group(1))) >= begun:
                lines.append(line)
        except ValueError:
            continue
    command = kernel_log["command"] + ", since the run began"
    answer = own_answer("system/kernel-log-of-the-run", command, lines)
    answer["status"], answer["err"] = kernel_log["status"], kernel_log["err"]
    return answer


def environment_answer(prefixes: list[str]) -> CollectedAnswer:
    lines = ["%s=%s" % (key, value) for key, value in sorted(os.environ.items()) if key.startswith(tuple(prefixes))]
    return own_answer("nccl/environment", "env (names on a list only, as this login gives them)", lines)


def inventory_python_answer(arguments: dict[str, Any]) -> CollectedAnswer:
    """The answer of the inventory's Python, run after its activate line by the shell that would start the job."""
    argv = [os.path.expanduser(arguments["python"]), "-c", ENVIRONMENT_SCRIPT, ",".join(arguments["names"])]
    activate = arguments.get("activate")
    shown = "%s%s -c (versions, variables and what torch can do)" % (activate + " && " if activate else "", argv[0])
    if not activate:
        return run("python", argv, 25, shown=shown)
    words = " ".join(shlex.quote(word) for word in argv)  # as arguments of sh they would reach files that it sources
    line = "%sexec %s\n" % (arguments["begin"], words)
    return run("python", ["/bin/sh", "-c", line], 25, shown=shown)


def port_commands(ports: list[tuple[int, int]]) -> list[CollectedCommand]:
    """The commands that list the sockets on these ports; with root, `ss` names the processes of other users too."""
    around = " or ".join(
        "( %s >= :%d and %s <= :%d )" % (side, first, side, last)
        for first, last in ports
        for side in ("sport", "dport")
    )
    listeners = " or ".join("( sport >= :%d and sport <= :%d )" % (first, last) for first, last in ports)
    return [
        CollectedCommand("network/listening", ["ss", "-tlnp", listeners], 5, ROOT_THEN_USER),
        CollectedCommand("network/connections", ["ss", "-tnpi", around], 5, ROOT_THEN_USER),
    ]


def address_commands(addresses: list[str]) -> list[CollectedCommand]:
    commands = []
    for number, address in enumerate(addresses[:16], 1):
        commands.append(CollectedCommand("network/lookup-%d" % number, ["getent", "ahosts", address]))
        if re.match(r"[0-9.]+$|[0-9A-Fa-f:]+$", address):
            commands.append(CollectedCommand("network/route-%d" % number, ["ip", "route", "get", address]))
    return commands


def interface_commands() -> list[CollectedCommand]:
    try:
        names = sorted(name for name in os.listdir("/sys/class/net") if name != "lo" and not name.startswith("veth"))
    except OSError:
        names = []
    return [CollectedCommand("network/ethtool-" + name, ["ethtool", name]) for name in names[:16]]


def look(arguments: dict[str, Any]) -> Collected:
    begun = time.monotonic()
    deadline = begun + arguments["seconds"]
    ports = [(int(first), int(last)) for first, last in arguments["ports"]]
    known = listed_accounts()
    uids = {os.getuid()}

    def of_processes() -> CollectedAnswer:
        answer, found = processes_answer(ports, known)
        uids.update(found)
        return answer

    jobs: list[tuple[str, Callable[[], CollectedAnswer]]] = [("python", lambda: inventory_python_answer(arguments))]
    for one in COMMANDS + port_commands(ports) + address_commands(arguments["addresses"]) + interface_commands():
        jobs.append((one.name, functools.partial(run_with_rights, one)))
    for name, path, keep in FILES:
        jobs.append((name, functools.partial(read_file, name, path, keep)))
    jobs += [
        ("system/sysctl", sysctls_answer),
        ("network/interfaces", sysfs_interfaces_answer),
        ("nccl/environment", lambda: environment_answer(arguments["names"])),
        ("processes", of_processes),
    ]
    if os.path.isdir("/sys/class/infiniband"):
        jobs.append(("infiniband/sysfs", hcas_answer))
    pool = concurrent.futures.ThreadPoolExecutor(MAX_PARALLEL_COMMANDS)
    asked = [(name, pool.submit(job)) for name, job in jobs]
    concurrent.futures.wait([future for _, future in asked], timeout=max(0.1, deadline - time.monotonic()))
    answers = []
    for name, future in asked:
        if not future.done():
            future.cancel()
            answers.append(collected_answer(name, "", "timeout", err="not done within %g s" % arguments["seconds"]))
        elif future.exception() is not None:
            answers.append(collected_answer(name, "", "failed", err=repr(future.exception())))
        else:
            answers.append(future.result())
    pool.shutdown(wait=False)
    if arguments.get("age") is not None:
        answers += [kernel_log_of_run(one, arguments["age"]) for one in answers if one["name"] == "system/kernel-log"]
    me = account_of_uid(os.getuid(), known)
    owner_list = [account_of_uid(uid, known) for uid in sorted(uids)]
    people = [entry for uid, entry in known.items() if 1000 <= uid < 65534 and entry not in owner_list]
    return {
        "answers": answers,
        "user": me[0],
        "users": [me, (me[0], os.path.expanduser("~"), ""), *owner_list, *people],
        "hostnames": known_hostnames(),
        "seconds": round(time.monotonic() - begun, 3),
    }


def known_hostnames() -> list[str]:
    """This machine's names, and all names in its /etc/hosts."""
    names = [os.uname().nodename, read("/etc/hostname") or ""]
    for line in (read("/etc/hosts") or "").splitlines()[:5000]:
        words = line.partition("#")[0].split()
        names += words[1:]
    return [name for name in dict.fromkeys(names) if name]
