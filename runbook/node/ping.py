"""Names, routes and ICMP, as this node sees them: who resolves to what, which way leads there, who answers, and do
full-size packets get through. Python 3.8, standard library.

Argument, JSON: {"names": [...], "hostname": bool: whether to look up our own, "reverse": an address whose name is asked
for, as torch does when it connects, "targets": [{"peer": str, "address": str,
"spare": another address of the peer, or null}]}. Says one message: {"names": {name: {"addresses": [...] or null,
"seconds": float, "in_hosts": [[line, text]]}}, "hostname": str, "own": the same as for a name, or null, "nameservers":
[...], "name_sources": str or null, "hosts_unreadable": str or null, "reverse_late": bool, "interfaces": {name: {"mac",
"mtu", "rp_filter", "carrier_changes", "prefixes"}}, "rp_filtered": packets that the reverse-path filter dropped
meanwhile or null,
"neighbours_refused": how often meanwhile the kernel had no room for one more neighbour, or null, "awake": how late we
ran meanwhile, "targets": [{peer, address, resolved, route, small, full, again, spare, neighbour, gateway: where one
leads there and nobody answers, {"neighbour", "routes"}}]}.

Peers of which every echo comes back to a socket of our own cost next to nothing; the others are looked at one by one,
with `ping` and `ip`, whose words tell why.
"""

from __future__ import annotations

import concurrent.futures
import json
import re
import socket
import threading
import time

from runbook.node.event_loop import EventLoop, pause
from runbook.node.icmp_echo import echoes
from runbook.node.proc import carrier_changes, counted, read
from runbook.node.tools import find, json_of, run, tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concurrent.futures import Future
    from typing import Any

    from runbook.node.event_loop import Conversation
    from runbook.transport.node_answers import (
        Looked,
        Neighbour,
        NetworkInterface,
        PingAnswer,
        Pinged,
        PingTarget,
        Ran,
        Route,
    )

SUMMARY = re.compile(r"(?<!\d)(\d+) packets transmitted, (\d+) (?:packets )?received")
ROUND_TRIP = re.compile(r"= [\d.]+/([\d.]+)/")
FEWEST, MOST, ALL_PEERS = 20, 100, 400
"""Echoes for each peer: many with few peers, since 20 of them miss a loss of 5 % every third time."""
PLAIN = 0.2
"""A loss of more than this share of the echoes shows in few as well."""
SIGN_OF_LIFE = ["-w", "2"]
"""First ones, before the many: without an answer to ARP, each packet of a hundred would cost its time. After a lost ARP
request the kernel repeats it in a second."""
LOOKUP_S = 6.5
"""glibc turns to the second name server after 5 s: by then a node whose first one is dead has its answer."""
REVERSE_S = 1.5
WORKERS, MOST_WORKERS = 32, 128
"""How many peers are looked at at a time: they mostly wait."""
LOOKING_S = 20.0
"""How long peers are begun with: what is left by then is told as untried, before our caller gives all of us up."""
A_PIPE = 500  # lines that surely fit into one


class Lookup:
    """A name that is being resolved. getaddrinfo has no deadline, so its caller waits only so long."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.begun = time.monotonic()
        self.took: float | None = None
        self.addresses: list[str] | None = None
        self._too_late = False
        self._settling = threading.Lock()
        self._thread = threading.Thread(target=self._resolve, daemon=True)
        self._resolve(socket.AI_NUMERICHOST)
        if self.took is None:
            self._thread.start()

    def _resolve(self, flags: int = 0) -> None:
        try:
            found = socket.getaddrinfo(self.name, None, type=socket.SOCK_STREAM, flags=flags)
            self.addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        except (OSError, UnicodeError):
            if flags:
                return  # it is no number
        self.took = time.monotonic() - self.begun

    def wait(self) -> list[str] | None:
        if self.took is None:
            self._thread.join(max(0.0, self.begun + LOOKUP_S - time.monotonic()))
        with self._settling:  # what was too late for one of our questions is so for all
            self._too_late = self._too_late or self.took is None
            return None if self._too_late else self.addresses

    def result(self) -> Looked:
        addresses = self.wait()
        seconds = LOOKUP_S if self.took is None or self._too_late else self.took
        return {"addresses": addresses, "seconds": round(seconds, 2), "in_hosts": hosts_lines(self.name)}


class Reverse:
    """The name of an address: only torch asks for it, and waits."""

    def __init__(self, address: str) -> None:
        self.begun = time.monotonic()
        self._thread = threading.Thread(target=self._resolve, args=(address,), daemon=True)
        self._thread.start()

    @staticmethod
    def _resolve(address: str) -> None:
        try:
            socket.getnameinfo((address, 0), 0)
        except (OSError, UnicodeError):
            pass

    def late(self) -> bool:
        self._thread.join(max(0.0, self.begun + REVERSE_S - time.monotonic()))
        return self._thread.is_alive()


def hosts_lines(name: str) -> list[tuple[int, str]]:
    """Lines of /etc/hosts that speak of the name, in whatever case."""
    lines = enumerate((read("/etc/hosts") or "").splitlines(), 1)
    return [(n, line.strip()) for n, line in lines if name.lower() in line.partition("#")[0].lower().split()[1:]]


def sources() -> str | None:
    """Where names are looked up, as nsswitch.conf orders it; null where it says nothing."""
    lines = [line.partition("#")[0].strip() for line in (read("/etc/nsswitch.conf") or "").splitlines()]
    return next((line for line in lines if line.startswith("hosts:")), None)


def hosts_unreadable() -> str | None:
    """Why this user cannot read /etc/hosts; null if it can be read, or does not exist."""
    try:
        with open("/etc/hosts"):
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror


def nameservers() -> list[str]:
    words = [line.split() for line in (read("/etc/resolv.conf") or "").splitlines()]
    return [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"]


def summary(result: Ran) -> Pinged:
    """What a ping printed, as numbers; `raw` stays for the controller where the numbers cannot be found."""
    if result.get("missing"):
        return {"missing": True}
    if result.get("timed_out"):
        return {
            "timed_out": True,
            "state": result["state"],
            "code": result["code"],
            "out": result["out"],
            "err": result["err"],
        }
    text = result["out"] + result["err"]
    match = SUMMARY.search(text)
    said: Pinged = {"code": result["code"], "raw": ends_of(text)}
    if match:
        said["sent"], said["received"] = int(match.group(1)), int(match.group(2))
    trip = ROUND_TRIP.search(text)
    if trip:
        said["ms"] = float(trip.group(1))
    return said


def ends_of(text: str) -> str:
    """What a tool says first, which is why it does nothing, and last, which is what came of it."""
    return text if len(text) <= 600 else text[:200] + "\n...\n" + text[-400:]


def ping(address: str, extra: list[str], count: int) -> Pinged:
    """Quick pings: older programs let only root go below 0.2 s between packets, then a few slow ones must do; others
    (busybox, inetutils) know fewer options, and say so in many ways and with any code: they get the plainest."""
    base = ["-n", "-W", "1"]
    result = tool("ping", base + ["-c", str(count), "-i", "0.005"] + extra + [address], 8)
    text = result.get("err", "") + result.get("out", "")
    if "minimal interval" in text or "super-user" in text:
        result = tool("ping", base + ["-c", str(min(count, 8)), "-i", "0.2"] + extra + [address], 8)
    said = summary(result)
    if "raw" not in said or "sent" in said:
        return said
    plain = [] if extra == SIGN_OF_LIFE else extra
    return summary(tool("ping", ["-c", "3", "-W", "1"] + plain + [address], 8))


def route(address: str) -> Route:
    """The way that the kernel would take, or its refusal with the rules and routes that it comes from."""
    found = ask_route(["to", address])
    if "error" not in found and found["src"]:
        # A rule may look at the source, and a socket has one only once the first look has chosen it.
        bound = ask_route([address, "from", found["src"]])
        if bound.get("error"):
            found["error"] = bound["error"]
    if found.get("error"):
        found["rules"] = json_of(tool("ip", ["-6" if ":" in address else "-4", "-j", "rule", "show"], 3)) or []
        found["routes"] = routes_to(address)
    return found


def ask_route(words: list[str]) -> Route:
    result = tool("ip", ["-j", "route", "get"] + words, 3)
    listed = json_of(result)
    if not listed:
        return {"error": (result.get("err") or "").strip() or None}
    return way_of(listed[0])


def way_of(entry: dict[str, Any]) -> Route:
    device = entry.get("dev")
    mtu = read("/sys/class/net/%s/mtu" % device) if device else None
    way: Route = {
        "dev": device,
        "src": entry.get("prefsrc"),
        "via": entry.get("gateway"),
        "mtu": int(mtu) if mtu else None,
    }
    if entry.get("type") == "local":
        way["local"] = True
    return way


def routes_to(address: str) -> list[Any]:
    """The routes of all tables that an address is among."""
    return json_of(tool("ip", ["-j", "-details", "route", "show", "table", "all", "match", address], 3)) or []


def untried(target: dict[str, Any], resolved: list[str] | None) -> PingTarget:
    return {
        "peer": target["peer"],
        "address": target["address"],
        "spare": target.get("spare"),
        "resolved": resolved,
        "route": None,
        "small": None,
        "full": None,
        "spare_answers": False,
        "neighbour": None,
    }


def look_at(target: dict[str, Any], lookup: Lookup, count: int, until: float) -> PingTarget:
    """`until`: when it is too late to begin with one more peer, on the monotonic clock."""
    resolved = lookup.wait()
    result = untried(target, resolved)
    if not resolved or time.monotonic() > until:
        return result
    address = next((a for a in resolved if ":" not in a), resolved[0])
    result["route"] = way = route(address)
    payload = full_data(address, way.get("mtu"))
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        spare = pool.submit(ping, target["spare"], SIGN_OF_LIFE, 3) if target.get("spare") else None
        seen = ping(address, SIGN_OF_LIFE, 5)
        if seen.get("received"):
            small = pool.submit(ping, address, [], count)
            full = pool.submit(ping, address, ["-M", "do", "-s", str(payload)], 5)
            seen, result["full"] = small.result(), full.result()
        result["small"] = seen
        result["spare_answers"] = bool(spare and spare.result().get("received"))
    lost = seen.get("sent", 0) - seen.get("received", 0)
    if seen.get("received") and lost > 0:
        # What is lost in one moment proves nothing: a busy host answers late. A second round tells loss from haste.
        result["again"] = ping(address, [], 60 if lost > PLAIN * seen["sent"] else 200)
    result["neighbour"] = neighbour(address)
    via = way.get("via")
    if via and not seen.get("received"):
        result["gateway"] = {"neighbour": neighbour(via), "routes": routes_to(address)}
    return result


def routes_at_once(addresses: list[str]) -> dict[str, Route]:
    """The ways to these as the kernel would take them, by two calls of `ip` for all; of those with an error nothing."""
    bare = batch(["route get to " + address for address in addresses])
    sources = [way.get("prefsrc") for way in bare]
    bound = batch(["route get %s from %s" % (a, src) for a, src in zip(addresses, sources) if src])
    if len(bare) != len(addresses) or len(bound) != len([src for src in sources if src]):
        return {}
    return {address: way_of(way) for address, way in zip(addresses, bare)}


def batch(lines: list[str]) -> list[dict[str, Any]]:
    """What `ip` says to each of these, or nothing where it refuses one of them."""
    path = find("ip")
    found: list[dict[str, Any]] = []
    for at in range(0, len(lines), A_PIPE) if path else ():
        result = run([str(path), "-j", "-batch", "-"], 5, "\n".join(lines[at : at + A_PIPE]) + "\n")
        try:
            found += [json.loads(line)[0] for line in result["out"].splitlines()] if result["code"] == 0 else []
        except (ValueError, IndexError):
            return []
    return found


def at_first_glance(
    loop: EventLoop, targets: list[dict[str, Any]], lookups: dict[str, Lookup], count: int
) -> dict[str, PingTarget]:
    """By peer, those of which every echo comes back at once."""
    number = {target["peer"]: numeric(lookups[target["address"]]) for target in targets}
    ways = routes_at_once(sorted({address for address in number.values() if address}))
    sizes = {address: full_data(address, way.get("mtu")) for address, way in ways.items()}
    answered = echoes(loop, sizes, count) if sizes else {}
    if not answered:
        return {}
    known = {entry.get("dst"): entry for entry in json_of(tool("ip", ["-j", "neigh", "show"], 3)) or []}
    found: dict[str, PingTarget] = {}
    for target in targets:
        address = number[target["peer"]]
        if address is None or address not in answered:
            continue
        found[target["peer"]] = {
            **untried(target, lookups[target["address"]].addresses),
            "route": ways[address],
            "small": answered[address]["small"],
            "full": answered[address]["full"],
            "neighbour": known.get(address),
        }
    return found


def numeric(lookup: Lookup) -> str | None:
    """The address that a finished lookup has found, IPv4 before IPv6; None where it has not, or one with a zone."""
    found = lookup.addresses if lookup.took is not None else None
    address = next((a for a in found if ":" not in a), found[0]) if found else None
    return None if address is None or "%" in address else address


def full_data(address: str, mtu: int | None) -> int:
    """Bytes of data of an echo as large as the MTU allows, less IP and ICMP headers."""
    return min(mtu or 1500, 65535) - (48 if ":" in address else 28)


def neighbour(address: str) -> Neighbour | None:
    """What ARP or neighbour discovery made of an address on our own segment."""
    listed: list[Neighbour] = json_of(tool("ip", ["-j", "neigh", "show", "to", address], 3)) or []
    return listed[0] if listed else None


def interfaces() -> dict[str, NetworkInterface]:
    """Name -> hardware address, MTU, the rp_filter in force, and addresses with their prefix lengths."""
    found: dict[str, NetworkInterface] = {}
    everywhere = read("/proc/sys/net/ipv4/conf/all/rp_filter")
    for entry in json_of(tool("ip", ["-j", "address"], 5)) or []:
        name = entry.get("ifname")
        own = read("/proc/sys/net/ipv4/conf/%s/rp_filter" % name)
        found[name] = {
            "mac": entry.get("address"),
            "mtu": entry.get("mtu"),
            "rp_filter": max(int(own or 0), int(everywhere or 0)),
            "carrier_changes": carrier_changes(name),
            "prefixes": ["%s/%d" % (a["local"], a["prefixlen"]) for a in entry.get("addr_info", []) if a.get("local")],
        }
    return found


def rp_filtered() -> int | None:
    """How many packets the reverse-path filter has dropped since boot; None where the kernel does not tell."""
    return counted("/proc/net/netstat", "TcpExt:").get("IPReversePathFilter")


def neighbours_refused() -> int | None:
    """How often the kernel had no room for one more neighbour (ARP, neighbour discovery) since boot; None where it does
    not tell: it does so outside containers only."""
    total = None
    for name in ("arp_cache", "ndisc_cache"):
        lines = [line.split() for line in (read("/proc/net/stat/" + name) or "").splitlines()]
        if lines and "table_fulls" in lines[0]:
            at = lines[0].index("table_fulls")
            total = (total or 0) + sum(int(line[at], 16) for line in lines[1:] if len(line) > at)
    return total


def look(arguments: dict[str, Any]) -> PingAnswer:
    hostname = socket.gethostname()
    dropped, refused = rp_filtered(), neighbours_refused()
    targets = arguments["targets"]
    wanted = [target["address"] for target in targets] + arguments["names"]
    lookups = {name: Lookup(name) for name in wanted + ([hostname] if arguments["hostname"] else [])}
    reverse = Reverse(arguments["reverse"])
    count = max(FEWEST, min(MOST, ALL_PEERS // max(1, len(targets))))
    loop = EventLoop()
    at_once = at_first_glance(loop, targets, lookups, count)
    left = [target for target in targets if target["peer"] not in at_once]
    workers, until = max(WORKERS, min(MOST_WORKERS, len(left) // 4)), time.monotonic() + LOOKING_S
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        looking = {t["peer"]: pool.submit(look_at, t, lookups[t["address"]], count, until) for t in left}
        loop.start(waiting(looking))
        while not all(one.done() for one in looking.values()):
            loop.turn()
    seen = [at_once.get(target["peer"]) or looking[target["peer"]].result() for target in targets]
    after, since = rp_filtered(), neighbours_refused()
    return {
        "names": {name: lookups[name].result() for name in arguments["names"]},
        "hostname": hostname,
        "own": lookups[hostname].result() if arguments["hostname"] else None,
        "nameservers": nameservers(),
        "name_sources": sources(),
        "hosts_unreadable": hosts_unreadable(),
        "reverse_late": reverse.late(),
        "interfaces": interfaces(),
        "rp_filtered": None if dropped is None or after is None else after - dropped,
        "neighbours_refused": None if refused is None or since is None else since - refused,
        "awake": loop.report(),
        "targets": seen,
    }


def waiting(looking: dict[str, Future[PingTarget]]) -> Conversation:
    """A task that notices when the process does not run."""
    while not all(one.done() for one in looking.values()):
        yield from pause(0.02)
