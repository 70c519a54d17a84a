"""The ports that the kernel hands out to whoever dials or listens without naming one: how many there are, how many are
taken, and by whom. Asked for where none was left. Python 3.8, standard library.

Argument: {}. Gives {"low", "high": the range, or null where the kernel does not say; "reserved": how many of it nobody is
given, "taken": how many others cannot be bound now, "ours": how many of these by this run itself, "listening", "connected", "waiting": of how many sockets on them
the kernel's table tells (`waiting`: TIME_WAIT, which no process holds any more), "holders": [{"pid", "command" (both null
where only the user can be seen), "user", "sockets"}], most sockets first}.
"""

import os
import re
import socket

from tool import account, command, endpoint, find, read, run, run_of

LISTEN, TIME_WAIT = "0A", "06"
MOST_HOLDERS = 8
RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"
TABLES = (
    "tcp",
    "tcp6",
    "udp",
    "udp6",
    "udplite",
    "udplite6",
    "raw",
    "raw6",
    "icmp",
    "icmp6",
    "unix",
    "netlink",
    "packet",
)
OPEN_SOCKET = re.compile(r"/proc/(\d+)/fd/\d+ socket:\[(\d+)\]$", re.MULTILINE)
NETWORK = re.compile(r"/proc/(\d+)/ns/net (net:\[\d+\])$", re.MULTILINE)


def look(_arguments):
    words = (read(RANGE) or "").split()
    if len(words) != 2:
        return {"low": None, "high": None}
    low, high = int(words[0]), int(words[1])
    reserved = reserved_ports(read(RESERVED) or "") & set(range(low, high + 1))
    rows = [row for row in connections() if low <= row["port"] <= high]
    taken = {port for port in range(low, high + 1) if port not in reserved and not free(port)}
    told = {
        "low": low,
        "high": high,
        "reserved": len(reserved),
        "taken": len(taken),
        "listening": sum(row["state"] == LISTEN for row in rows),
        "waiting": sum(row["state"] == TIME_WAIT for row in rows),
    }
    told["connected"] = len(rows) - told["listening"] - told["waiting"]
    # A socket that is bound and neither listens nor is connected stands in no table.
    held = holders(rows, bare=len(taken) > len({row["port"] for row in rows}))
    # What we listen on ourselves at this moment is not what ate them.
    ours = {inode for pid, inodes in held.items() for inode in inodes if run_of(pid) == os.environ["RUNBOOK_RUN_ID"]}
    told["ours"] = len({row["port"] for row in rows if row["inode"] in ours} & taken)
    told["holders"] = named(held, {row["inode"]: row["uid"] for row in rows if row["inode"] != "0"}, ours)
    return told


def reserved_ports(text):
    """`8080,50000-50010` as a set."""
    found = set()
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        if low.isdigit():
            found.update(range(int(low), int(high or low) + 1))
    return found


def connections():
    rows = []
    for name in ("tcp", "tcp6"):
        for line in (read("/proc/net/" + name) or "").splitlines()[1:]:
            fields = line.split()
            port = endpoint(fields[1])[1]
            rows.append({"port": port, "state": fields[3], "uid": int(fields[7]), "inode": fields[9]})
    return rows


def free(port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
    return True


def holders(rows, bare):
    """pid -> inodes of these sockets that it holds. `bare`: and of those that stand in no table at all."""
    wanted = {row["inode"] for row in rows} - {"0"}
    listed = inodes_listed() if bare else set()
    owners, networks = own_view()
    if os.getuid() and (bare or not wanted <= {inode for _, inode in owners}):
        owners, networks = view_of_root() or (owners, networks)
    found = {}
    for pid, inode in owners:
        # What belongs to a container's network stands in that one's tables.
        if inode in wanted or (bare and inode not in listed and networks.get(pid) == networks.get(os.getpid())):
            found.setdefault(pid, set()).add(inode)
    return found


def named(held, owners, ours):
    """The processes that hold most, without us and without those that are gone again; and by user what nobody was seen to
    hold. `owners`: inode -> uid."""
    found = []
    for pid, inodes in held.items():
        line = command(pid)
        if line and inodes - ours:
            found.append({"pid": pid, "command": line, "user": account(owner_of(pid)), "sockets": len(inodes - ours)})
    unseen = set(owners) - set().union(*held.values())
    for uid in sorted({owners[inode] for inode in unseen}):
        number = sum(owners[inode] == uid for inode in unseen)
        found.append({"pid": None, "command": None, "user": account(uid) or str(uid), "sockets": number})
    found.sort(key=lambda one: -one["sockets"])
    return found[:MOST_HOLDERS]


def inodes_listed():
    found = set()
    for name in TABLES:
        for line in (read("/proc/net/" + name) or "").splitlines()[1:]:
            found.update(line.split())  # the inode's column differs by table, and none of the others is as long
    return found


def own_view():
    """[(pid, inode)] of the open sockets that this user may see, and the network of each process."""
    owners, networks = [], {}
    try:
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return owners, networks
    for pid in pids:
        base = "/proc/%s/" % pid
        try:
            networks[int(pid)] = os.readlink(base + "ns/net")
            targets = [os.readlink(base + "fd/" + descriptor) for descriptor in os.listdir(base + "fd")]
        except OSError:
            continue
        owners += [(int(pid), target[8:-1]) for target in targets if target.startswith("socket:[")]
    return owners, networks


def view_of_root():
    """The same of every process, where sudo does not ask; None where it does."""
    sudo, tool = find("sudo"), find("find")
    if not sudo or not tool:
        return None
    words = ["/proc", "-mindepth", "3", "-maxdepth", "3", "(", "-path", "/proc/[0-9]*/fd/*", "-lname", "socket:*"]
    words += ["-o", "-path", "/proc/[0-9]*/ns/net", ")", "-printf", "%p %l\\n"]
    said = run([sudo, "-n", tool] + words, 4).get("out", "")
    if not said:
        return None
    owners = [(int(pid), inode) for pid, inode in OPEN_SOCKET.findall(said)]
    return owners, {int(pid): network for pid, network in NETWORK.findall(said)}


def owner_of(pid):
    try:
        return os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return None
