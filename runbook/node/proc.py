"""Reads /proc: processes, their environment, files and sockets, TCP's tables, counters; and waits. On other systems
than Linux, and for what this user may not see, the result is empty."""

from __future__ import annotations

import os
import re
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RUN_ID_VARIABLE = "RUNBOOK_RUN_ID"
JOB_VARIABLE = "RUNBOOK_JOB"
ESTABLISHED, DIALLING, TIME_WAIT, LISTEN = "01", "02", "06", "0A"
RETRANSMITTING = "01:"  # of a socket's timer that runs
LONGEST_COMMAND = 200
SHELLS = ("sh", "bash", "dash")
"""Names of processes that only lead to what a script starts."""

SETTING = re.compile(r"(?:TORCH|NCCL|GLOO)_[A-Z0-9_]{1,80}\Z")
MOST_SETTINGS = 100
LONGEST_SETTING = 200
MOST = 1 << 62


def read(path: str) -> str | None:
    """A small text file without the white space around it, or None."""
    try:
        with open(path, errors="replace") as file:  # a comment in a file of /etc may have any bytes
            return file.read().strip()
    except (OSError, ValueError):
        return None


def amount(number: int) -> int:
    """Bytes or files as an answer carries them. The kernel's own numbers are up to 2^64 - 1, and some file systems say
    that they have as many (EFS: 2^63 - 2^20 bytes free); Python shows a limit from 2^63 on as a negative number."""
    return MOST if number < 0 else min(number, MOST)


def pause(seconds: float) -> None:
    """A sleep without time.sleep(), which raises under a shifted clock (libfaketime)."""
    threading.Event().wait(seconds)


def this_machine() -> str:
    """An id of this machine and network namespace, so that a job of one host cannot pass as two; empty if there is
    none. `rank.py`, which is sent alone, has the same words."""
    found = [read(path) for path in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id")]
    words = [word for word in found if word][:1]
    try:
        words.append(os.readlink("/proc/self/ns/net"))
    except OSError:
        pass
    return " ".join(words)


class Stat:
    """/proc/PID/stat, as proc(5) numbers its fields; times are ticks."""

    __slots__ = ("born", "comm", "pages", "parent", "reaped", "session", "state", "ticks")

    def __init__(self, text: str) -> None:
        rest = text.rpartition(")")[2].split()
        self.comm = text[text.index("(") + 1 : text.rindex(")")]
        self.state = rest[0]
        self.parent = int(rest[1])
        self.session = int(rest[3])
        self.ticks = int(rest[11]) + int(rest[12])
        self.reaped = int(rest[13]) + int(rest[14])  # of children that have ended
        self.born = int(rest[19])  # since boot
        self.pages = int(rest[21])  # resident

    @property
    def lives(self) -> bool:
        return self.state not in ("Z", "X")


def stat(pid: int) -> Stat | None:
    try:
        with open("/proc/%d/stat" % pid, errors="replace") as file:
            return Stat(file.read())
    except (OSError, ValueError, IndexError):
        return None


def born(pid: int) -> int | None:
    """When a living process started: a number that is used again has another start."""
    found = stat(pid)
    return found.born if found and found.lives else None


def pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def environ(pid: int) -> list[bytes]:
    """`NAME=value` of what a process was started with. Raises OSError."""
    with open("/proc/%d/environ" % pid, "rb") as file:
        return file.read().split(b"\0")


def variable(pid: int, name: str) -> str | None:
    try:
        values = [one for one in environ(pid) if one.startswith(name.encode() + b"=")]
    except OSError:
        return None
    return values[0].decode("utf-8", "replace").partition("=")[2] if values else None


def own_rank(pid: int) -> int | None:
    """The rank that a process was started as."""
    rank = variable(pid, "RANK") or ""
    return int(rank) if rank.isdigit() and len(rank) < 8 else None


def settings_of_ranks(those: Iterable[int]) -> dict[str, dict[str, str]]:
    """By rank, the variables of torch, NCCL and gloo that the first of its processes which is no shell was started
    with; those that cannot be seen are left out."""
    found: dict[str, dict[str, str]] = {}
    for pid in those:
        rank, its = own_rank(pid), stat(pid)
        if rank is None or its is None or its.comm in SHELLS or str(rank) in found:
            continue
        try:
            told = [one.decode("utf-8", "replace").partition("=") for one in environ(pid)]
        except OSError:
            continue
        set_ = [(name, value[:LONGEST_SETTING]) for name, _, value in told if SETTING.match(name)]
        found[str(rank)] = dict(set_[:MOST_SETTINGS])
    return found


def run_of(pid: int) -> str | None:
    """The run that a process belongs to."""
    return variable(pid, RUN_ID_VARIABLE)


def tagged(tags: Mapping[str, str], session: int = 0) -> list[int]:
    """Living processes besides our own whose environment has all of these, or that are of this session."""
    needles = {(name + "=" + value).encode() for name, value in tags.items()}
    found = []
    for pid in pids():
        if pid == os.getpid():
            continue
        its = stat(pid) if session else None
        try:
            if (its and its.session == session) or needles <= set(environ(pid)):
                its = its or stat(pid)
                if its and its.lives:
                    found.append(pid)
        except OSError:
            continue
    return found


def descendants(pid: int) -> set[int]:
    """Living processes that a process has started, those that they have started, and so on."""
    parents = {one: its.parent for one in pids() if (its := stat(one)) and its.lives}
    found: set[int] = set()
    more = {pid}
    while more:
        more = {one for one, parent in parents.items() if parent in more and one not in found}
        found |= more
    return found


def descriptors(pid: int) -> list[str]:
    """What the open files of a process are. Raises OSError where this user may not see them."""
    folder, found = "/proc/%d/fd/" % pid, []
    for name in os.listdir(folder):
        try:
            found.append(os.readlink(folder + name))
        except OSError:
            continue  # closed meanwhile
    return found


def sockets(pid: int) -> set[str]:
    """The inodes of its open sockets."""
    try:
        return {target[8:-1] for target in descriptors(pid) if target.startswith("socket:[")}
    except OSError:
        return set()


def status_field(pid: int, field: str) -> str:
    """The first word of a field of /proc/PID/status, "" where there is none."""
    for line in (read("/proc/%d/status" % pid) or "").splitlines():
        if line.startswith(field + ":"):
            return line.split()[1]
    return ""


def owner(pid: int) -> int | None:
    """The user who started a process, None where there is none. (The folder of one that may not be dumped is
    root's.)"""
    uid = status_field(pid, "Uid")
    return int(uid) if uid else None


def account(uid: int | None) -> str | None:
    """The name of a user, None where there is none."""
    try:
        import pwd

        return None if uid is None else pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return None


def arguments(pid: int) -> list[str]:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return [word.decode("utf-8", "replace") for word in file.read().split(b"\0") if word]
    except OSError:
        return []


def command(pid: int, longest: int = LONGEST_COMMAND) -> str | None:
    """The command line of a process, None where there is none to see."""
    return " ".join(" ".join(arguments(pid)).split())[:longest] or None


class TcpSocket:
    """A row of the kernel's tables. `port` is its own; `inode` is "0" where no process holds it any more."""

    __slots__ = ("_words", "inode", "port", "state", "uid")

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self.port = int(words[1].partition(":")[2], 16)
        self.state, self.uid, self.inode = words[3], int(words[7]), words[9]

    @property
    def local(self) -> tuple[str, int]:
        return endpoint(self._words[1])

    @property
    def remote(self) -> tuple[str, int]:
        return endpoint(self._words[2])

    @property
    def queued(self) -> tuple[int, int]:
        """Bytes that were sent and not acknowledged, and bytes that arrived and were not read."""
        unacked, _, unread = self._words[4].partition(":")
        return int(unacked, 16), int(unread, 16)

    @property
    def resent(self) -> int:
        """How often in a row the oldest of what is not acknowledged was sent again."""
        return int(self._words[6], 16) if self._words[5].startswith(RETRANSMITTING) else 0


def tcp_sockets() -> list[TcpSocket]:
    """Of both versions of IP, each once: the kernel gives its table a page at a time and lists a socket twice where
    another one was opened between two pages."""
    tables = [read("/proc/net/" + name) or "" for name in ("tcp", "tcp6")]
    rows = (line.split() for table in tables for line in table.splitlines()[1:])
    # The sockets of ended connections share inode 0, so both ends belong to what tells one socket from another.
    return list({(words[1], words[2], words[9]): TcpSocket(words) for words in rows}.values())


def endpoint(text: str) -> tuple[str, int]:
    """`0100007F:1F90` of these tables as address and port: words in the machine's own byte order."""
    import socket  # few programs need them, and every node pays for them
    import struct

    words, _, port = text.partition(":")
    packed = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    if packed[:12] == b"\0" * 10 + b"\xff\xff":
        packed = packed[12:]  # IPv4 through a socket for both
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed), int(port, 16)


def is_local(address: str) -> bool:
    """Whether packets for this address are for this machine, by the kernel's tables."""
    import ipaddress  # few programs need it, and every node pays for it

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
    """Whether this address could be bound without being this machine's: some are set up for virtual addresses."""
    anything = read("/proc/sys/net/%s/ip_nonlocal_bind" % ("ipv6" if ipv6 else "ipv4")) == "1"
    return anything and not is_local(address)


def counted(path: str, head: str) -> dict[str, int]:
    """The kernel's counters in the lines with this head, one of names and one of numbers; none where it has none."""
    rows = [line.split()[1:] for line in (read(path) or "").splitlines() if line.startswith(head)]
    return {name: int(number) for name, number in zip(*rows)} if len(rows) == 2 else {}


def carrier_changes(interface: str) -> int | None:
    """How often the link of an interface went up or down since boot; None where the kernel does not tell."""
    count = (read("/sys/class/net/%s/carrier_changes" % interface) or "").strip()
    return int(count) if count.isdigit() else None


def kill(processes: Iterable[int], number: int) -> None:
    """Send a signal to those of these that are still there."""
    for pid in processes:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def boot_id() -> str | None:
    """Another one after each start of this machine; None where the kernel does not tell."""
    return (read("/proc/sys/kernel/random/boot_id") or "").strip() or None


def booted() -> float | None:
    """When this machine was started, by its clock; None where the kernel does not tell."""
    found = re.search(r"^btime (\d+)$", read("/proc/stat") or "", re.MULTILINE)
    return float(found.group(1)) if found else None


def group_kills() -> int | None:
    """How many processes of our memory control group the kernel has killed for lack of memory, whoever had taken it;
    None where it does not say."""
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = "/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup"
        while True:  # in a container the group itself may be the root of what is mounted there
            for name in ("memory.oom_control", "memory.events"):
                said = read(os.path.join(base, group.strip("/"), name)) or ""
                found = re.search(r"^oom_kill (\d+)$", said, re.MULTILINE)
                if found:
                    return int(found.group(1))
            if not group.strip("/"):
                break
            group = os.path.dirname(group.rstrip("/"))
    return None


def kernel_kills() -> int | None:
    """How many processes this kernel has killed for lack of memory since boot; None where it does not say."""
    found = re.search(r"^oom_kill (\d+)$", read("/proc/vmstat") or "", re.MULTILINE)
    return int(found.group(1)) if found else None
