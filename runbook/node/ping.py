"""Names, routes and ICMP, as this node sees them: who resolves to what, which way leads there, who answers, and do
full-size packets get through. Python 3.8, standard library.

Argument, JSON: {"names": [...], "hostname": bool: whether to look up our own, "reverse": an address whose name is asked
for, as torch does when it connects, "targets": [{"peer": str, "address": str,
"spare": another address of the peer, or null}]}. Says one message: {"names": {name: {"addresses": [...] or null,
"seconds": float, "in_hosts": [[line, text]]}}, "hostname": str, "own": the same as for a name, or null, "nameservers":
[...], "name_sources": str or null, "hosts_unreadable": str or null, "reverse_late": bool, "interfaces": {name: {"mac", "mtu", "rp_filter", "prefixes"}}, "rp_filtered": packets that the
reverse-path filter dropped meanwhile or null, "neighbours_refused": how often meanwhile the kernel had no room for one more
neighbour, or null, "awake": how late we
ran meanwhile, "targets": [{peer, address, resolved, route, small, full, again, spare, neighbour, gateway: where one leads there
and nobody answers, {"neighbour", "routes"}}]}.

Peers of which every echo comes back to a socket of our own cost next to nothing; the others are looked at one by one, with
`ping` and `ip`, whose words tell why.
"""

import concurrent.futures
import json
import os
import re
import socket
import sys
import threading
import time

from echo import echoes
from tool import find, json_of, read, run, say, tool
from turns import Turns, pause

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
A_PIPE = 500  # lines that surely fit into one


class Lookup:
    """A name that is being resolved. getaddrinfo cannot be told a deadline, so whoever asks waits only so long."""

    def __init__(self, name):
        self.name = name
        self.begun = time.monotonic()
        self.took = None
        self.addresses = None
        self._thread = threading.Thread(target=self._resolve, daemon=True)
        if is_number(name):
            self._resolve(socket.AI_NUMERICHOST)
        else:
            self._thread.start()

    def _resolve(self, flags=0):
        try:
            found = socket.getaddrinfo(self.name, None, type=socket.SOCK_STREAM, flags=flags)
            self.addresses = list(dict.fromkeys(info[4][0] for info in found))
        except (OSError, UnicodeError):
            pass
        self.took = time.monotonic() - self.begun

    def wait(self):
        if self.took is None:
            self._thread.join(max(0.0, self.begun + LOOKUP_S - time.monotonic()))
        return None if self.took is None else self.addresses

    def told(self):
        addresses = self.wait()
        seconds = LOOKUP_S if self.took is None else self.took
        return {"addresses": addresses, "seconds": round(seconds, 2), "in_hosts": hosts_lines(self.name)}


def is_number(name):
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, name)
            return True
        except (OSError, ValueError, UnicodeError):
            continue
    return False


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
    payload = full_data(address, result["route"].get("mtu"))
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


def routes_at_once(addresses):
    """The ways to these as the kernel would take them, by two calls of `ip` for all; of those with an error nothing."""
    bare = batch(["route get to " + address for address in addresses])
    sources = [way.get("prefsrc") for way in bare]
    bound = batch(["route get %s from %s" % (a, src) for a, src in zip(addresses, sources) if src])
    if len(bare) != len(addresses) or len(bound) != len([src for src in sources if src]):
        return {}
    found = {}
    for address, way in zip(addresses, bare):
        device = way.get("dev")
        mtu = read("/sys/class/net/%s/mtu" % device) if device else None
        found[address] = {
            "dev": device,
            "src": way.get("prefsrc"),
            "via": way.get("gateway"),
            "mtu": int(mtu) if mtu else None,
        }
    return found


def batch(lines):
    """What `ip` says to each of these, or nothing where it refuses one of them."""
    path, found = find("ip"), []
    for at in range(0, len(lines) if path else 0, A_PIPE):
        result = run([path, "-j", "-batch", "-"], 5, "\n".join(lines[at : at + A_PIPE]) + "\n")
        try:
            found += [json.loads(line)[0] for line in result["out"].splitlines()] if result["code"] == 0 else []
        except (ValueError, IndexError):
            return []
    return found


def at_first_glance(turns, targets, lookups, count):
    """By peer, those of which every echo comes back at once."""
    number = {target["peer"]: numeric(lookups[target["address"]]) for target in targets}
    ways = routes_at_once(sorted({address for address in number.values() if address}))
    sizes = {address: full_data(address, way.get("mtu")) for address, way in ways.items()}
    answered = echoes(turns, sizes, count) if sizes else {}
    if not answered:
        return {}
    known = {entry.get("dst"): entry for entry in json_of(tool("ip", ["-j", "neigh", "show"], 3)) or []}
    found = {}
    for target in targets:
        address = number[target["peer"]]
        if address in answered:
            resolved = lookups[target["address"]].addresses
            more = {"route": ways[address], "spare_answers": False, "neighbour": known.get(address)}
            found[target["peer"]] = dict(target, resolved=resolved, **dict(more, **answered[address]))
    return found


def numeric(lookup):
    """The address that a finished lookup has found, IPv4 before IPv6; None where it has not, or one with a zone."""
    found = lookup.addresses if lookup.took is not None else None
    address = next((a for a in found if ":" not in a), found[0]) if found else None
    return None if address is None or "%" in address else address


def full_data(address, mtu):
    """Bytes of data of an echo as large as the MTU allows, less IP and ICMP headers."""
    return min(mtu or 1500, 65535) - (48 if ":" in address else 28)


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


def neighbours_refused():
    """How often the kernel had no room for one more neighbour (ARP, neighbour discovery) since boot; None where it does not tell:
    it does so outside containers only."""
    total = None
    for name in ("arp_cache", "ndisc_cache"):
        lines = [line.split() for line in (read("/proc/net/stat/" + name) or "").splitlines()]
        if lines and "table_fulls" in lines[0]:
            at = lines[0].index("table_fulls")
            total = (total or 0) + sum(int(line[at], 16) for line in lines[1:] if len(line) > at)
    return total


def look(arguments):
    hostname = socket.gethostname()
    dropped, refused = rp_filtered(), neighbours_refused()
    targets = arguments["targets"]
    wanted = [target["address"] for target in targets] + arguments["names"]
    lookups = {name: Lookup(name) for name in wanted + ([hostname] if arguments["hostname"] else [])}
    reverse = Reverse(arguments["reverse"])
    count = max(FEWEST, min(MOST, ALL_PEERS // max(1, len(targets))))
    turns = Turns()
    at_once = at_first_glance(turns, targets, lookups, count)
    left = [target for target in targets if target["peer"] not in at_once]
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        looking = {t["peer"]: pool.submit(look_at, t, lookups[t["address"]], count) for t in left}
        turns.start(waiting(looking))
        while not all(one.done() for one in looking.values()):
            turns.turn()
    seen = [at_once.get(target["peer"]) or looking[target["peer"]].result() for target in targets]
    after, since = rp_filtered(), neighbours_refused()
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
        "neighbours_refused": None if refused is None or since is None else since - refused,
        "awake": turns.report(),
        "targets": seen,
    }


def waiting(looking):
    """Somebody who would notice that none of us runs."""
    while not all(one.done() for one in looking.values()):
        yield from pause(0.02)


if __name__ == "__main__":
    say(look(json.loads(sys.argv[1])))
    os._exit(0)  # a lookup may still hang, and concurrent.futures would wait for its own threads
