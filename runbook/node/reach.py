"""What a node is made of: interfaces, GPUs, limits. Says one message and ends. Python 3.8, standard library.

Argument, JSON: {"gpus": bool: whether to ask nvidia-smi}.
"""

import json
import os
import sys

from tool import json_of, read, say, tool

GPU_TIMEOUT_S = 10


def interfaces():
    """Name -> {mtu, state, addresses}. `ip -j` tells all; without it sysfs has no addresses, and says so."""
    found = {}
    listed = json_of(tool("ip", ["-j", "address"], 5))
    if listed is not None:
        for entry in listed:
            if not entry.get("ifname"):
                continue
            found[entry["ifname"]] = {
                "mtu": entry.get("mtu"),
                "state": entry.get("operstate"),
                "flags": entry.get("flags", []),
                "addresses": [a["local"] for a in entry.get("addr_info", []) if a.get("local")],
            }
        return found
    try:
        names = sorted(os.listdir("/sys/class/net"))
    except OSError:
        names = []
    for name in names:
        base = "/sys/class/net/" + name + "/"
        mtu = read(base + "mtu")
        found[name] = {
            "mtu": int(mtu) if mtu else None,
            "state": (read(base + "operstate") or "").upper(),
            "flags": [],
            "addresses": ipv4_of(name),
        }
    return found


def ipv4_of(name):
    """The interface's first IPv4 address by ioctl SIOCGIFADDR, for nodes without iproute2."""
    try:
        import fcntl
        import socket
        import struct

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            packed = fcntl.ioctl(sock.fileno(), 0x8915, struct.pack("256s", name[:15].encode()))
        return [socket.inet_ntoa(packed[20:24])]
    except (ImportError, OSError):
        return []


def limits():
    try:
        import resource

        soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        memlock = None if soft == resource.RLIM_INFINITY else soft
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (ImportError, OSError, ValueError):
        return {}
    return {"memlock_bytes": memlock, "open_files": files}


def shared_memory():
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return None
    return {"bytes": room.f_blocks * room.f_frsize, "free_bytes": room.f_bavail * room.f_frsize}


def look(arguments):
    facts = {
        "hostname": os.uname().nodename,
        "interfaces": interfaces(),
        "limits": limits(),
        "shm": shared_memory(),
        "port_range": read("/proc/sys/net/ipv4/ip_local_port_range"),
    }
    if arguments.get("gpus"):
        facts["nvidia_smi"] = tool(
            "nvidia-smi",
            ["--query-gpu=index,uuid,name,memory.total,memory.used", "--format=csv,noheader,nounits"],
            GPU_TIMEOUT_S,
        )
    return facts


if __name__ == "__main__":
    say(look(json.loads(sys.argv[1])))
