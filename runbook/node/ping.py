"""Names, routes and ICMP, as this node sees them: who resolves to what, which way leads there, who answers, and do
full-size packets get through. Python 3.8, standard library.

Argument, JSON: {"names": [...], "hostname": bool: whether to look up our own, "reverse": an address whose name is asked
for, as torch does when it connects, "targets": [{"peer": str, "address": str,
"spare": another address of the peer, or null}]}. Says one message: {"names": {name: {"addresses": [...] or null,
"seconds": float, "in_hosts": [[line, text]]}}, "hostname": str, "own": the same as for a name, or null, "nameservers":
[...], "name_sources": str or null, "hosts_unreadable": str or null, "reverse_late": bool, "interfaces": {name: {"mac", "mtu", "rp_filter", "prefixes"}}, "rp_filtered": packets that the
reverse-path filter dropped meanwhile or null, "targets": [{peer,
address, resolved, route, small, full, again, spare, neighbour, gateway: where one leads there
and nobody answers, {"neighbour", "routes"}}]}.
"""

import concurrent.futures
import json
import os
import re
import socket
import sys
import threading
import time

from tool import json_of, read, say, tool

SUMMARY = re.compile(r"(?<!\d)(\d+) packets transmitted, (\d+) (?:packets )?received")
ROUND_TRIP = re.compile(r"= [\d.]+/([\d.]+)/")
FEWEST, MOST, ALL_PEERS = 20, 100, 400
"""Echoes a peer: with few peers many, since 20 of them miss a loss of 5 % every third time."""
DOUBTFUL = 0.2
"""So large a share of the echoes may be lost by haste or chance; of more nothing else is to be learned by sending others."""
SIGN_OF_LIFE = ["-w", "2"]
"""Before the many: where nobody answers ARP, each packet of a hundred would cost its time. After a lost ARP request the
kernel repeats it in a second."""
LOOKUP_S = 6.5
"""glibc turns to the second name server after 5 s: by then a node whose first one is dead has its answer."""
REVERSE_S = 1.5
WORKERS = 32


class Lookup:
    """A name that is being resolved. getaddrinfo cannot be told a deadline, so whoever asks waits only so long."""

    def __init__(self, name):
        self.name = name
        self.begun = time.monotonic()
        self.took = None
        self.addresses = None
        self._thread = threading.Thread(target=self._resolve, daemon=True)
        self._thread.start()

    def _resolve(self):
        try:
            found = socket.getaddrinfo(self.name, None, type=socket.SOCK_STREAM)
            self.addresses = list(dict.fromkeys(info[4][0] for info in found))
        except (OSError, UnicodeError):
            pass
        self.took = time.monotonic() - self.begun

    def wait(self):
        self._thread.join(max(0.0, self.begun + LOOKUP_S - time.monotonic()))
        return None if self.took is None else self.addresses

    def told(self):
        addresses = self.wait()
        seconds = LOOKUP_S if self.took is None else self.took
        return {"addresses": addresses, "seconds": round(seconds, 2), "in_hosts": hosts_lines(self.name)}


class Reverse:
    """The name of an address: wanted by nobody but torch, which waits for it."""

    def __init__(self, address):
        self.begun = time.monotonic()
        self._thread = threading.Thread(target=self._resolve, args=(address,), daemon=True)
        self._thread.start()

    @staticmethod
    def _resolve(address):
        try:
            socket.getnameinfo((address, 0), 0)
        except (OSError, UnicodeError):
            pass

    def late(self):
        self._thread.join(max(0.0, self.begun + REVERSE_S - time.monotonic()))
        return self._thread.is_alive()


def hosts_lines(name):
    """Lines of /etc/hosts that speak of the name, in whatever case."""
    lines = enumerate((read("/etc/hosts") or "").splitlines(), 1)
    return [[n, line.strip()] for n, line in lines if name.lower() in line.partition("#")[0].lower().split()[1:]]


def sources():
    """Where names are looked up, as nsswitch.conf orders it; null where it says nothing."""
    lines = [line.partition("#")[0].strip() for line in (read("/etc/nsswitch.conf") or "").splitlines()]
    return next((line for line in lines if line.startswith("hosts:")), None)


def hosts_unreadable():
    """Why this user cannot read /etc/hosts; null where he can, or where there is none."""
    try:
        with open("/etc/hosts"):
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror


def nameservers():
    words = [line.split() for line in (read("/etc/resolv.conf") or "").splitlines()]
    return [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"]


def summary(result):
    """What a ping printed, as numbers; `raw` stays for the controller where the numbers cannot be found."""
    if result.get("missing") or result.get("timed_out"):
        return result
    text = result["out"] + result["err"]
    match = SUMMARY.search(text)
    said = {"code": result["code"], "raw": text[-600:]}
    if match:
        said["sent"], said["received"] = int(match.group(1)), int(match.group(2))
    trip = ROUND_TRIP.search(text)
    if trip:
        said["ms"] = float(trip.group(1))
    return said


def ping(address, extra, count, pause="0.005"):
    """Quick pings: older programs let only root go below 0.2 s between packets, then a few slow ones must do."""
    base = ["-n", "-W", "1"]
    result = tool("ping", base + ["-c", str(count), "-i", pause] + extra + [address], 8)
    text = result.get("err", "") + result.get("out", "")
    if "minimal interval" in text or "super-user" in text:
        result = tool("ping", base + ["-c", str(min(count, 8)), "-i", "0.2"] + extra + [address], 8)
    elif result.get("code") not in (0, 1) and "nvalid" in text:
        result = tool("ping", ["-c", "3", "-W", "1"] + extra + [address], 8)  # busybox
    return summary(result)


def route(address):
    """The way that the kernel would take, or its refusal with the rules and routes that it comes from."""
    found = ask_route(["to", address])
    if "error" not in found and found["src"]:
        # A rule may look at the source, and a socket has one only once the first look has chosen it.
        bound = ask_route([address, "from", found["src"]])
        found = dict(found, error=bound["error"]) if bound.get("error") else found
    if found.get("error"):
        found["rules"] = json_of(tool("ip", ["-6" if ":" in address else "-4", "-j", "rule", "show"], 3)) or []
        shown = tool("ip", ["-j", "-details", "route", "show", "table", "all", "match", address], 3)
        found["routes"] = json_of(shown) or []
    return found


def ask_route(words):
    result = tool("ip", ["-j", "route", "get"] + words, 3)
    listed = json_of(result)
    if not listed:
        return {"error": (result.get("err") or "").strip() or None}
    way = listed[0]
    device = way.get("dev")
    mtu = read("/sys/class/net/%s/mtu" % device) if device else None
    return {"dev": device, "src": way.get("prefsrc"), "via": way.get("gateway"), "mtu": int(mtu) if mtu else None}


def look_at(target, lookup, count):
    resolved = lookup.wait()
    nothing = {"route": None, "small": None, "full": None, "spare_answers": False, "neighbour": None}
    result = dict(target, resolved=resolved, **nothing)
    if not resolved:
        return result
    address = next((a for a in resolved if ":" not in a), resolved[0])
    result["route"] = route(address)
    mtu = result["route"].get("mtu") or 1500
    payload = min(mtu, 65535) - (48 if ":" in address else 28)  # IP and ICMP headers
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        spare = pool.submit(ping, target["spare"], SIGN_OF_LIFE, 3) if target.get("spare") else None
        result["small"] = ping(address, SIGN_OF_LIFE, 5)
        if result["small"].get("received"):
            small = pool.submit(ping, address, [], count)
            full = pool.submit(ping, address, ["-M", "do", "-s", str(payload)], 5)
            result["small"], result["full"] = small.result(), full.result()
        result["spare_answers"] = bool(spare and spare.result().get("received"))
    lost = result["small"].get("sent", 0) - result["small"].get("received", 0)
    if result["small"].get("received") and 0 < lost <= DOUBTFUL * result["small"]["sent"]:
        # One lost echo proves nothing: a busy host answers late. More of them tell loss from haste.
        result["again"] = ping(address, [], 200)
    result["neighbour"] = neighbour(address)
    via = result["route"].get("via")
    if via and not result["small"].get("received"):
        shown = tool("ip", ["-j", "-details", "route", "show", "table", "all", "match", address], 3)
        result["gateway"] = {"neighbour": neighbour(via), "routes": json_of(shown) or []}
    return result


def neighbour(address):
    """What ARP or neighbour discovery made of an address on our own segment."""
    return (json_of(tool("ip", ["-j", "neigh", "show", "to", address], 3)) or [None])[0]


def interfaces():
    """Name -> hardware address, MTU, the rp_filter in force, and addresses with their prefix lengths."""
    found = {}
    everywhere = read("/proc/sys/net/ipv4/conf/all/rp_filter")
    for entry in json_of(tool("ip", ["-j", "address"], 5)) or []:
        name = entry.get("ifname")
        own = read("/proc/sys/net/ipv4/conf/%s/rp_filter" % name)
        found[name] = {
            "mac": entry.get("address"),
            "mtu": entry.get("mtu"),
            "rp_filter": max(int(own or 0), int(everywhere or 0)),
            "prefixes": ["%s/%d" % (a["local"], a["prefixlen"]) for a in entry.get("addr_info", []) if a.get("local")],
        }
    return found


def rp_filtered():
    """How many packets the reverse-path filter has dropped since boot; None where the kernel does not tell."""
    lines = [line.split() for line in (read("/proc/net/netstat") or "").splitlines() if line.startswith("TcpExt:")]
    if len(lines) != 2 or "IPReversePathFilter" not in lines[0]:
        return None
    return int(lines[1][lines[0].index("IPReversePathFilter")])


def look(arguments):
    hostname = socket.gethostname()
    dropped = rp_filtered()
    targets = arguments["targets"]
    wanted = [target["address"] for target in targets] + arguments["names"]
    lookups = {name: Lookup(name) for name in wanted + ([hostname] if arguments["hostname"] else [])}
    reverse = Reverse(arguments["reverse"])
    count = max(FEWEST, min(MOST, ALL_PEERS // max(1, len(targets))))
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        seen = list(pool.map(lambda target: look_at(target, lookups[target["address"]], count), targets))
    after = rp_filtered()
    return {
        "names": {name: lookups[name].told() for name in arguments["names"]},
        "hostname": hostname,
        "own": lookups[hostname].told() if arguments["hostname"] else None,
        "nameservers": nameservers(),
        "name_sources": sources(),
        "hosts_unreadable": hosts_unreadable(),
        "reverse_late": reverse.late(),
        "interfaces": interfaces(),
        "rp_filtered": None if dropped is None or after is None else after - dropped,
        "targets": seen,
    }


if __name__ == "__main__":
    say(look(json.loads(sys.argv[1])))
    os._exit(0)  # a lookup may still hang, and concurrent.futures would wait for its own threads
