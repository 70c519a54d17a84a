"""How does this node see its peers: to which addresses do names resolve, which route leads to a peer, does it answer
pings, and do full-size packets get through? Python 3.8, standard library.

Argument, JSON: {"names": [...], "hostname": bool: whether to look up this node's own, "reverse": an address whose name
is asked for, as torch does when it connects, "targets": [{"peer": str, "address": str,
"spare": another address of the peer, or null}]}. Says one message: {"names": {name: {"addresses": [...] or null,
"seconds": float, "in_hosts": [[line, text]]}}, "hostname": str, "own": the same as for a name, or null, "nameservers":
[...], "name_sources": str or null, "hosts_unreadable": str or null, "reverse_late": bool, "interfaces": {name: {"mac",
"mtu", "rp_filter", "carrier_changes", "prefixes"}}, "rp_filtered": packets that the reverse-path filter dropped
meanwhile, or null,
"neighbours_refused": how often the kernel had no room for another neighbour meanwhile, or null, "awake": how late this
process ran meanwhile, "targets": [{peer, address, resolved, route, small, full, again, spare, neighbour, gateway: if a
gateway leads to a peer that does not answer, {"neighbour", "routes"}}]}.

Peers that return every echo to a socket of this program cost next to nothing; the others are looked at one by one, with
`ping` and `ip`, whose output says why.
"""

from __future__ import annotations

import concurrent.futures
import json
import re
import socket
import threading
import time

from runbook.node.event_loop import EventLoop, wait_in_loop
from runbook.node.icmp_echo import send_echoes
from runbook.node.proc import carrier_changes, kernel_counters, read
from runbook.node.tools import find_tool, printed_json, run, run_if_installed

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

SUMMARY_LINE = re.compile(r"(?<!\d)(\d+) packets transmitted, (\d+) (?:packets )?received")
ROUND_TRIP = re.compile(r"= [\d.]+/([\d.]+)/")
MIN_PEER_ECHOES, MAX_PEER_ECHOES, ECHOES_IN_ALL = 20, 100, 400
"""How many echoes each peer gets: at least, at most, and all peers together. 20 echoes miss a loss of 5 % every third
time, so few peers get more."""
OBVIOUS_LOSS_SHARE = 0.2
"""A loss of more than this share of the echoes shows in few echoes as well."""
SECOND_ROUND_PATIENCE_S = 2.0  # seconds for which the last replies of a second round are waited for
FIRST_PING_OPTIONS = ["-w", "2"]
"""Options of the first few pings: without an answer to ARP, a hundred packets would each take long. The kernel repeats
a lost ARP request after a second."""
LOOKUP_TIMEOUT_S = 6.5
"""Seconds for a lookup: glibc asks the second name server after 5 s, if the first one is dead."""
REVERSE_LOOKUP_DEADLINE_S = 1.5  # seconds after which the name of an address is late
MIN_WORKERS, MAX_WORKERS = 32, 128
"""How many peers are looked at at a time: the threads mostly wait."""
LAST_START_DEADLINE_S = 20.0
"""Seconds after which no further peer is begun with: the rest is untried, before the caller gives up this program."""
MAX_BATCH_LINES = 500  # lines that surely fit into one pipe


class Lookup:
    """Resolves a name in a thread: getaddrinfo has no deadline, so `wait` gives it up after LOOKUP_TIMEOUT_S."""

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
                return  # the name is not a numeric address
        self.took = time.monotonic() - self.begun

    def wait(self) -> list[str] | None:
        if self.took is None:
            self._thread.join(max(0.0, self.begun + LOOKUP_TIMEOUT_S - time.monotonic()))
        with self._settling:  # a lookup that was too late for one caller is too late for all
            self._too_late = self._too_late or self.took is None
            return None if self._too_late else self.addresses

    def result(self) -> Looked:
        addresses = self.wait()
        seconds = LOOKUP_TIMEOUT_S if self.took is None or self._too_late else self.took
        return {"addresses": addresses, "seconds": round(seconds, 2), "in_hosts": hosts_lines(self.name)}


class Reverse:
    """Asks for the name of an address, as torch does and waits for it; only the time counts."""

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
        self._thread.join(max(0.0, self.begun + REVERSE_LOOKUP_DEADLINE_S - time.monotonic()))
        return self._thread.is_alive()


def hosts_lines(name: str) -> list[tuple[int, str]]:
    """The lines of /etc/hosts that contain the name, in upper or lower case, with their numbers."""
    lines = enumerate((read("/etc/hosts") or "").splitlines(), 1)
    return [(n, line.strip()) for n, line in lines if name.lower() in line.partition("#")[0].lower().split()[1:]]


def host_name_sources() -> str | None:
    """The `hosts:` line of nsswitch.conf, which orders where names are looked up; None if there is none."""
    lines = [line.partition("#")[0].strip() for line in (read("/etc/nsswitch.conf") or "").splitlines()]
    return next((line for line in lines if line.startswith("hosts:")), None)


def hosts_unreadable() -> str | None:
    """Why this user cannot read /etc/hosts; None if it can be read, or does not exist."""
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


def ping_result(result: Ran) -> Pinged:
    """The output of a ping as numbers; `raw` is its text, for the controller if the numbers cannot be found."""
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
    match = SUMMARY_LINE.search(text)
    said: Pinged = {"code": result["code"], "raw": shortened_output(text)}
    if match:
        said["sent"], said["received"] = int(match.group(1)), int(match.group(2))
    trip = ROUND_TRIP.search(text)
    if trip:
        said["ms"] = float(trip.group(1))
    return said


def shortened_output(text: str) -> str:
    """The beginning of a tool's output, which says why it does nothing, and the end, which has its results."""
    return text if len(text) <= 600 else text[:200] + "\n...\n" + text[-400:]


def ping(address: str, extra: list[str], count: int) -> Pinged:
    """Pings quickly. Older programs let only root go below 0.2 s between packets, and send a few slow ones then. Others
    (busybox, inetutils) know fewer options, say so with any words and code, and are started with the plainest."""
    base = ["-n", "-W", "1"]
    result = run_if_installed("ping", base + ["-c", str(count), "-i", "0.005"] + extra + [address], 8)
    text = result.get("err", "") + result.get("out", "")
    if "minimal interval" in text or "super-user" in text:
        result = run_if_installed("ping", base + ["-c", str(min(count, 8)), "-i", "0.2"] + extra + [address], 8)
    said = ping_result(result)
    if "raw" not in said or "sent" in said:
        return said
    plain = [] if extra == FIRST_PING_OPTIONS else extra
    return ping_result(run_if_installed("ping", ["-c", "3", "-W", "1"] + plain + [address], 8))


def kernel_route(address: str) -> Route:
    """The route that the kernel would take, or its refusal, with the rules and routes behind that."""
    found = ask_route(["to", address])
    if "error" not in found and found["src"]:
        # A policy rule may look at the source address, which a connection has only after a first lookup has chosen it.
        bound = ask_route([address, "from", found["src"]])
        if bound.get("error"):
            found["error"] = bound["error"]
        elif "error" not in bound:
            found = {**bound, "src": found["src"]}
    if found.get("error"):
        found["rules"] = (
            printed_json(run_if_installed("ip", ["-6" if ":" in address else "-4", "-j", "rule", "show"], 3)) or []
        )
        found["routes"] = matching_routes(address)
    return found


def ask_route(words: list[str]) -> Route:
    result = run_if_installed("ip", ["-j", "route", "get"] + words, 3)
    listed = printed_json(result)
    if not listed:
        return {"error": (result.get("err") or "").strip() or None}
    return route_facts(listed[0])


def route_facts(entry: dict[str, Any]) -> Route:
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


def matching_routes(address: str) -> list[Any]:
    """The routes of all tables that match an address."""
    return (
        printed_json(run_if_installed("ip", ["-j", "-details", "route", "show", "table", "all", "match", address], 3))
        or []
    )


def untried_target(target: dict[str, Any], resolved: list[str] | None) -> PingTarget:
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


def probe_ping_target(target: dict[str, Any], lookup: Lookup, count: int, until: float) -> PingTarget:
    """Looks at one peer with `ping` and `ip`. `until`: when it is too late to begin, on the monotonic clock."""
    resolved = lookup.wait()
    result = untried_target(target, resolved)
    if not resolved or time.monotonic() > until:
        return result
    address = next((a for a in resolved if ":" not in a), resolved[0])
    result["route"] = way = kernel_route(address)
    payload = full_echo_bytes(address, way.get("mtu"))
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        spare = pool.submit(ping, target["spare"], FIRST_PING_OPTIONS, 3) if target.get("spare") else None
        seen = ping(address, FIRST_PING_OPTIONS, 5)
        if seen.get("received"):
            small = pool.submit(ping, address, [], count)
            full = pool.submit(ping, address, ["-M", "do", "-s", str(payload)], 5)
            seen, result["full"] = small.result(), full.result()
        result["small"] = seen
        result["spare_answers"] = bool(spare and spare.result().get("received"))
    lost = seen.get("sent", 0) - seen.get("received", 0)
    if seen.get("received") and lost > 0:
        # Losses at one moment prove nothing, since a busy host answers late: a second round distinguishes both.
        result["again"] = second_round(address, 60 if lost > OBVIOUS_LOSS_SHARE * seen["sent"] else 200)
    result["neighbour"] = neighbour_entry(address)
    via = way.get("via")
    if via and not seen.get("received"):
        result["gateway"] = {"neighbour": neighbour_entry(via), "routes": matching_routes(address)}
    return result


def routes_in_batch(addresses: list[str]) -> dict[str, Route]:
    """The kernel's routes to all of these, by two calls of `ip`; empty if `ip` refuses any of them."""
    bare = run_ip_batch(["route get to " + address for address in addresses])
    sources = {address: way["prefsrc"] for address, way in zip(addresses, bare) if way.get("prefsrc")}
    bound = run_ip_batch(["route get %s from %s" % (address, source) for address, source in sources.items()])
    if len(bare) != len(addresses) or len(bound) != len(sources):
        return {}
    taken = {**dict(zip(addresses, bare)), **dict(zip(sources, bound))}
    return {address: {**route_facts(way), "src": sources.get(address)} for address, way in taken.items()}


def run_ip_batch(lines: list[str]) -> list[dict[str, Any]]:
    """The answer of `ip` to each of these lines; empty if it refuses one of them."""
    path = find_tool("ip")
    found: list[dict[str, Any]] = []
    for at in range(0, len(lines), MAX_BATCH_LINES) if path else ():
        result = run([str(path), "-j", "-batch", "-"], 5, "\n".join(lines[at : at + MAX_BATCH_LINES]) + "\n")
        try:
            found += [json.loads(line)[0] for line in result["out"].splitlines()] if result["code"] == 0 else []
        except (ValueError, IndexError):
            return []
    return found


def at_first_glance(
    loop: EventLoop, targets: list[dict[str, Any]], lookups: dict[str, Lookup], count: int
) -> dict[str, PingTarget]:
    """By peer, the results of the peers that return every echo at once."""
    number = {target["peer"]: resolved_address(lookups[target["address"]]) for target in targets}
    ways = routes_in_batch(sorted({address for address in number.values() if address}))
    sizes = {address: full_echo_bytes(address, way.get("mtu")) for address, way in ways.items()}
    echoed = send_echoes(loop, sizes, count) if sizes else {}
    whole = [address for address, found in echoed.items() if all(map(is_lossless, found.values()))]
    answered = {address: echoed[address] for address in whole}  # `ping` shows more of the others
    if not answered:
        return {}
    known = {
        entry.get("dst"): entry for entry in printed_json(run_if_installed("ip", ["-j", "neigh", "show"], 3)) or []
    }
    found: dict[str, PingTarget] = {}
    for target in targets:
        address = number[target["peer"]]
        if address is None or address not in answered:
            continue
        found[target["peer"]] = {
            **untried_target(target, lookups[target["address"]].addresses),
            "route": ways[address],
            "small": answered[address]["small"],
            "full": answered[address]["full"],
            "neighbour": known.get(address),
        }
    return found


def is_lossless(echoes: Pinged) -> bool:
    return 0 < echoes["sent"] == echoes["received"]


def second_round(address: str, count: int) -> Pinged:
    """Echoes in one process that waits longer for answers while it gets no CPU. `ping` reads the answers to all pings
    of this node from a small buffer, and loses some while it does not run."""
    found = send_echoes(EventLoop(), {address: 0}, count, SECOND_ROUND_PATIENCE_S)
    return found[address]["small"] if found else ping(address, [], count)


def resolved_address(lookup: Lookup) -> str | None:
    """The address that a finished lookup has found, IPv4 before IPv6; None without one, or if it has a zone."""
    found = lookup.addresses if lookup.took is not None else None
    address = next((a for a in found if ":" not in a), found[0]) if found else None
    return None if address is None or "%" in address else address


def full_echo_bytes(address: str, mtu: int | None) -> int:
    """The bytes of data in the largest echo that the MTU allows: the MTU less IP and ICMP headers."""
    return min(mtu or 1500, 65535) - (48 if ":" in address else 28)


def neighbour_entry(address: str) -> Neighbour | None:
    """The kernel's entry, by ARP or neighbour discovery, for an address on this node's own segment; None without
    one."""
    listed: list[Neighbour] = printed_json(run_if_installed("ip", ["-j", "neigh", "show", "to", address], 3)) or []
    return listed[0] if listed else None


def interfaces() -> dict[str, NetworkInterface]:
    """By name: hardware address, MTU, the rp_filter in force, and addresses with their prefix lengths."""
    found: dict[str, NetworkInterface] = {}
    everywhere = read("/proc/sys/net/ipv4/conf/all/rp_filter")
    for entry in printed_json(run_if_installed("ip", ["-j", "address"], 5)) or []:
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
    """How many packets the reverse-path filter has dropped since boot; None if the kernel does not tell."""
    return kernel_counters("/proc/net/netstat", "TcpExt:").get("IPReversePathFilter")


def neighbours_refused() -> int | None:
    """How often the kernel had no room for another neighbour (ARP, neighbour discovery) since boot; None if it does not
    tell: it tells only outside of containers."""
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
    count = max(MIN_PEER_ECHOES, min(MAX_PEER_ECHOES, ECHOES_IN_ALL // max(1, len(targets))))
    loop = EventLoop()
    at_once = at_first_glance(loop, targets, lookups, count)
    left = [target for target in targets if target["peer"] not in at_once]
    workers, until = max(MIN_WORKERS, min(MAX_WORKERS, len(left) // 4)), time.monotonic() + LAST_START_DEADLINE_S
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        looking = {t["peer"]: pool.submit(probe_ping_target, t, lookups[t["address"]], count, until) for t in left}
        loop.start(keep_loop_busy(looking))
        while not all(one.done() for one in looking.values()):
            loop.turn()
    seen = [at_once.get(target["peer"]) or looking[target["peer"]].result() for target in targets]
    after, since = rp_filtered(), neighbours_refused()
    return {
        "names": {name: lookups[name].result() for name in arguments["names"]},
        "hostname": hostname,
        "own": lookups[hostname].result() if arguments["hostname"] else None,
        "nameservers": nameservers(),
        "name_sources": host_name_sources(),
        "hosts_unreadable": hosts_unreadable(),
        "reverse_late": reverse.late(),
        "interfaces": interfaces(),
        "rp_filtered": None if dropped is None or after is None else after - dropped,
        "neighbours_refused": None if refused is None or since is None else since - refused,
        "awake": loop.report(),
        "targets": seen,
    }


def keep_loop_busy(looking: dict[str, Future[PingTarget]]) -> Conversation:
    """A task that keeps the event loop busy, so that the loop notices when the process does not run."""
    while not all(one.done() for one in looking.values()):
        yield from wait_in_loop(0.02)
