"""Reads /proc: processes, their environment, files and sockets, TCP's tables, counters. On systems other than Linux,
and for facts that this user may not see, results are empty."""

from __future__ import annotations

import os
import re
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

RUN_ID_VARIABLE = "RUNBOOK_RUN_ID"
JOB_VARIABLE = "RUNBOOK_JOB"
SLURM_JOB_VARIABLE = "SLURM_JOB_ID"  # set in processes of a Slurm job
ESTABLISHED, SYN_SENT, TIME_WAIT, LISTEN = "01", "02", "06", "0A"  # states in the kernel's TCP tables
RETRANSMIT_TIMER = "01:"  # the beginning of a socket's timer while segments are sent again
MAX_COMMAND_CHARACTERS = 200
SHELL_PROCESSES = ("sh", "bash", "dash")
"""Names of processes that only start the program of a script."""

SETTING_NAME = re.compile(r"(?:TORCH|NCCL|GLOO)_[A-Z0-9_]{1,80}\Z")  # a variable of torch, NCCL or gloo
MAX_SETTINGS = 100
MAX_SETTING_CHARACTERS = 200
MAX_ANSWER_INTEGER = 1 << 62  # the largest number in an answer
MAX_RANK = 10_000_000
MAX_OPEN_FILES = 16384  # the most open files that are asked for


def raise_open_file_limit() -> None:
    """Raises this process's limit of open files to MAX_OPEN_FILES, or as far as the machine allows: a shell's usual
    limit of 1024 is too low for the connections of many nodes."""
    try:
        import resource

        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MAX_OPEN_FILES if most == resource.RLIM_INFINITY else min(most, MAX_OPEN_FILES)
        if now != resource.RLIM_INFINITY and now < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    except (ImportError, OSError, ValueError):
        pass


def read(path: str) -> str | None:
    """The text of a small file without the white space around it; None if it cannot be read."""
    try:
        with open(path, errors="replace") as file:  # a comment in a file of /etc may hold any bytes
            return file.read().strip()
    except (OSError, ValueError):
        return None


def digits_as_integer(text: str | None) -> int | None:
    """The number in a text of decimal digits, with white space around it or not; None for other texts and for more
    digits than an answer may carry."""
    digits = (text or "").strip()
    return int(digits) if digits.isdecimal() and len(digits) < len(str(MAX_ANSWER_INTEGER)) else None


def bounded_amount(number: int) -> int:
    """A number of bytes or files as an answer carries it: at most MAX_ANSWER_INTEGER. The kernel's numbers go up to
    2^64 - 1; some file systems report nearly as many (EFS: 2^63 - 2^20 bytes free); Python shows a limit from 2^63 on
    as negative."""
    return MAX_ANSWER_INTEGER if number < 0 else min(number, MAX_ANSWER_INTEGER)


def sleep_seconds(seconds: float) -> None:
    """Sleeps without time.sleep(), which raises under a shifted clock (libfaketime)."""
    threading.Event().wait(seconds)


def this_machine() -> str:
    """An id of this machine and network namespace, so that a job on one host cannot pass as one on two; empty if there
    is none. `rank.py`, which is sent alone, has the same function."""
    found = [read(path) for path in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id")]
    words = [word for word in found if word][:1]
    try:
        words.append(os.readlink("/proc/self/ns/net"))
    except OSError:
        pass
    return " ".join(words)


class Stat:
    """The fields of /proc/PID/stat, as proc(5) numbers them; times are in ticks."""

    __slots__ = ("born", "comm", "pages", "parent", "reaped", "session", "state", "ticks")

    def __init__(self, text: str) -> None:
        rest = text.rpartition(")")[2].split()
        self.comm = text[text.index("(") + 1 : text.rindex(")")]
        self.state = rest[0]
        self.parent = int(rest[1])
        self.session = int(rest[3])
        self.ticks = int(rest[11]) + int(rest[12])
        self.reaped = int(rest[13]) + int(rest[14])  # CPU time of children that have ended
        self.born = int(rest[19])  # time of the start, since boot
        self.pages = int(rest[21])  # resident memory

    @property
    def lives(self) -> bool:
        return self.state not in ("Z", "X")


def process_stat(pid: int) -> Stat | None:
    try:
        with open("/proc/%d/stat" % pid, errors="replace") as file:
            return Stat(file.read())
    except (OSError, ValueError, IndexError):
        return None


def process_start_ticks(pid: int) -> int | None:
    """When a living process started, in ticks since boot; else None. A pid that is used again has another start."""
    found = process_stat(pid)
    return found.born if found and found.lives else None


def all_pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []


def process_environment(pid: int) -> list[bytes]:
    """The environment that a process was started with, as `NAME=value`. Raises OSError."""
    with open("/proc/%d/environ" % pid, "rb") as file:
        return file.read().split(b"\0")


def process_variable(pid: int, name: str) -> str | None:
    try:
        values = [one for one in process_environment(pid) if one.startswith(name.encode() + b"=")]
    except OSError:
        return None
    return values[0].decode("utf-8", "replace").partition("=")[2] if values else None


def process_rank(pid: int) -> int | None:
    """The RANK in the environment of a process, or None."""
    rank = digits_as_integer(process_variable(pid, "RANK"))
    return rank if rank is not None and rank <= MAX_RANK else None


def settings_of_ranks(those: Iterable[int]) -> dict[str, dict[str, str]]:
    """By rank, the variables of torch, NCCL and gloo in the environment of its first process that is no shell.
    Processes that this user may not see are left out."""
    found: dict[str, dict[str, str]] = {}
    for pid in those:
        rank, its = process_rank(pid), process_stat(pid)
        if rank is None or its is None or its.comm in SHELL_PROCESSES or str(rank) in found:
            continue
        try:
            told = [one.decode("utf-8", "replace").partition("=") for one in process_environment(pid)]
        except OSError:
            continue
        set_ = [(name, value[:MAX_SETTING_CHARACTERS]) for name, _, value in told if SETTING_NAME.match(name)]
        found[str(rank)] = dict(set_[:MAX_SETTINGS])
    return found


def process_run_id(pid: int) -> str | None:
    """The id of the run that a process belongs to, or None."""
    return process_variable(pid, RUN_ID_VARIABLE)


def tagged_pids(tags: Mapping[str, str], session: int = 0) -> list[int]:
    """The pids of living processes, this one excepted, whose environment has all tags, or that are in this session."""
    needles = {(name + "=" + value).encode() for name, value in tags.items()}
    found = []
    for pid in all_pids():
        if pid == os.getpid():
            continue
        its = process_stat(pid) if session else None
        try:
            if (its and its.session == session) or needles <= set(process_environment(pid)):
                its = its or process_stat(pid)
                if its and its.lives:
                    found.append(pid)
        except OSError:
            continue
    return found


def descendant_pids(pid: int) -> set[int]:
    """The pids of the living children of a process, of their children, and so on."""
    parents = {one: its.parent for one in all_pids() if (its := process_stat(one)) and its.lives}
    found: set[int] = set()
    more = {pid}
    while more:
        more = {one for one, parent in parents.items() if parent in more and one not in found}
        found |= more
    return found


def descriptor_targets(pid: int) -> list[str]:
    """The targets of a process's open descriptors. Raises OSError if this user may not see them."""
    folder, found = "/proc/%d/fd/" % pid, []
    for name in os.listdir(folder):
        try:
            found.append(os.readlink(folder + name))
        except OSError:
            continue  # closed meanwhile
    return found


def socket_inodes(pid: int) -> set[str]:
    """The inodes of a process's open sockets."""
    try:
        return {target[8:-1] for target in descriptor_targets(pid) if target.startswith("socket:[")}
    except OSError:
        return set()


def status_field(pid: int, field: str) -> str:
    """The first word of a field of /proc/PID/status; "" if there is none."""
    for line in (read("/proc/%d/status" % pid) or "").splitlines():
        if line.startswith(field + ":"):
            return line.split()[1]
    return ""


def process_uid(pid: int) -> int | None:
    """The uid of a process, or None. (The owner of its folder in /proc is not enough: that of a process that may not be
    dumped is root.)"""
    uid = status_field(pid, "Uid")
    return int(uid) if uid else None


def account_name(uid: int | None) -> str | None:
    """The name of a user, or None."""
    try:
        import pwd

        return None if uid is None else pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return None


def process_arguments(pid: int) -> list[str]:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return [word.decode("utf-8", "replace") for word in file.read().split(b"\0") if word]
    except OSError:
        return []


def command_line(pid: int, longest: int = MAX_COMMAND_CHARACTERS) -> str | None:
    """The command line of a process, at most `longest` characters; None if this user sees none."""
    return " ".join(" ".join(process_arguments(pid)).split())[:longest] or None


class TcpSocket:
    """A row of the kernel's TCP tables. `port` is the local port; `inode` is "0" if no process holds it any more."""

    __slots__ = ("_words", "inode", "port", "state", "uid")

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self.port = int(words[1].partition(":")[2], 16)
        self.state, self.uid, self.inode = words[3], int(words[7]), words[9]

    @property
    def local(self) -> tuple[str, int]:
        return kernel_endpoint(self._words[1])

    @property
    def remote(self) -> tuple[str, int]:
        return kernel_endpoint(self._words[2])

    @property
    def queued(self) -> tuple[int, int]:
        """The bytes that were sent and are not acknowledged, and the bytes that arrived and are not read."""
        unacked, _, unread = self._words[4].partition(":")
        return int(unacked, 16), int(unread, 16)

    @property
    def resent(self) -> int:
        """How often in a row the oldest segment that is not acknowledged was sent again."""
        return int(self._words[6], 16) if self._words[5].startswith(RETRANSMIT_TIMER) else 0


def tcp_sockets() -> list[TcpSocket]:
    """The TCP sockets of IPv4 and IPv6, each once: the kernel gives its table a page at a time, and lists a socket
    twice if another was opened between two pages."""
    tables = [read("/proc/net/" + name) or "" for name in ("tcp", "tcp6")]
    rows = (line.split() for table in tables for line in table.splitlines()[1:])
    # The sockets of ended connections share inode 0, so both addresses are needed to distinguish sockets.
    return list({(words[1], words[2], words[9]): TcpSocket(words) for words in rows}.values())


def kernel_endpoint(text: str) -> tuple[str, int]:
    """Address and port from a text like `0100007F:1F90` in the kernel's tables: words in the machine's byte order."""
    import socket  # imported here, since few programs need it and every node pays for it
    import struct

    words, _, port = text.partition(":")
    packed = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    if packed[:12] == b"\0" * 10 + b"\xff\xff":
        packed = packed[12:]  # an IPv4 address in a socket of both versions
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed), int(port, 16)


def is_local_address(address: str) -> bool:
    """Whether an address is this machine's own, by the kernel's tables."""
    import ipaddress  # imported here, since few programs need it and every node pays for it

    wanted = ipaddress.ip_address(address.partition("%")[0])
    if wanted.version == 6:
        lines = (read("/proc/net/if_inet6") or "").splitlines()
        return any(line.split()[0] == wanted.packed.hex() for line in lines if line)
    network = ""
    for line in (read("/proc/net/fib_trie") or "").splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            network = words[1]
        elif words[1:] == ["host", "LOCAL"] and wanted in ipaddress.ip_network(network + words[0], strict=False):
            return True
    return False


def bind_proves_nothing(address: str, ipv6: bool) -> bool:
    """Whether a successful bind does not prove that an address is this machine's: some kernels allow any address."""
    anything = read("/proc/sys/net/%s/ip_nonlocal_bind" % ("ipv6" if ipv6 else "ipv4")) == "1"
    return anything and not is_local_address(address)


def kernel_counters(path: str, head: str) -> dict[str, int]:
    """The kernel's counters in the two lines that begin with `head`, one of names and one of numbers; empty without."""
    rows = [line.split()[1:] for line in (read(path) or "").splitlines() if line.startswith(head)]
    return {name: int(number) for name, number in zip(*rows)} if len(rows) == 2 else {}


def carrier_changes(interface: str) -> int | None:
    """How often the link of an interface went up or down since boot; None if the kernel does not tell."""
    return digits_as_integer(read("/sys/class/net/%s/carrier_changes" % interface))


def signal_processes(processes: Iterable[int], number: int) -> None:
    """Sends a signal to these processes; those that are gone are skipped."""
    for pid in processes:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def boot_id() -> str | None:
    """An id that changes with each start of this machine; None if the kernel does not tell."""
    return (read("/proc/sys/kernel/random/boot_id") or "").strip() or None


def boot_time() -> float | None:
    """When this machine was started, by its clock; None if the kernel does not tell."""
    found = re.search(r"^btime (\d+)$", read("/proc/stat") or "", re.MULTILINE)
    return float(found.group(1)) if found else None


def control_group_folders(process: int | str, controller: str) -> Iterator[str]:
    """The folders of the control groups of a process (a pid, or `self`) for `controller`, the innermost first, in
    cgroup v1 or v2."""
    for line in (read("/proc/%s/cgroup" % process) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # The kernel may list controllers in another order than in the folder's name; one alone is a link to it.
        for base in dict.fromkeys((controller, controllers)) if controllers else [""]:
            group = path
            while True:  # in a container our own group may be the root of the mounted hierarchy
                yield os.path.join("/sys/fs/cgroup", base, group.strip("/"))
                if not group.strip("/"):
                    break
                group = os.path.dirname(group.rstrip("/"))


def group_kills() -> int | None:
    """How many processes of our memory control group the kernel has killed for lack of memory, whoever had used it;
    None if it does not say."""
    for folder in control_group_folders("self", "memory"):
        for name in ("memory.oom_control", "memory.events"):
            found = re.search(r"^oom_kill (\d+)$", read(os.path.join(folder, name)) or "", re.MULTILINE)
            if found:
                return int(found.group(1))
    return None


def kernel_kills() -> int | None:
    """How many processes the kernel has killed for lack of memory since boot; None if it does not say."""
    found = re.search(r"^oom_kill (\d+)$", read("/proc/vmstat") or "", re.MULTILINE)
    return int(found.group(1)) if found else None
