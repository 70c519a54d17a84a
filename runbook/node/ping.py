"""Names and ICMP, as this node sees them: who resolves to what, who answers, and do full-size packets get through.

Argument, JSON: {"names": [...], "targets": [{"peer": str, "address": str}]}. Says one message:
{"names": {name: [addresses] or null}, "hostname": str, "own": [...], "targets": [{peer, address, route, small, full}]}.
"""

import concurrent.futures
import json
import re
import socket
import sys

from tool import json_of, read, say, tool

SUMMARY = re.compile(r"(\d+) packets transmitted, (\d+) (?:packets )?received")
ROUND_TRIP = re.compile(r"= [\d.]+/([\d.]+)/")
COUNT = 20


def resolve(name):
    try:
        return sorted({info[4][0] for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except (OSError, UnicodeError):
        return None


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


def ping(address, extra, count=COUNT, pause="0.01"):
    """Quick pings: older programs let only root go below 0.2 s between packets, then a few slow ones must do."""
    base = ["-n", "-W", "1"]
    result = tool("ping", base + ["-c", str(count), "-i", pause] + extra + [address], 8)
    text = result.get("err", "") + result.get("out", "")
    if "minimal interval" in text or "super-user" in text:
        result = tool("ping", base + ["-c", "4", "-i", "0.2"] + extra + [address], 8)
    elif result.get("code") not in (0, 1) and "nvalid" in text:
        result = tool("ping", ["-c", "3", "-W", "1"] + extra + [address], 8)  # busybox
    return summary(result)


def route(address):
    """The interface and MTU the kernel would use, or its refusal."""
    result = tool("ip", ["-j", "route", "get", address], 3)
    listed = json_of(result)
    if not listed:
        return {"error": (result.get("err") or "").strip() or None}
    way = listed[0]
    device = way.get("dev")
    mtu = read("/sys/class/net/%s/mtu" % device) if device else None
    return {"dev": device, "src": way.get("prefsrc"), "via": way.get("gateway"), "mtu": int(mtu) if mtu else None}


def look_at(target):
    resolved = resolve(target["address"])
    result = dict(target, resolved=resolved, route=None, small=None, full=None)
    if not resolved:
        return result
    address = next((a for a in resolved if ":" not in a), resolved[0])
    result["route"] = route(address)
    mtu = result["route"].get("mtu") or 1500
    payload = min(mtu, 65535) - (48 if ":" in address else 28)  # IP and ICMP headers
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        small = pool.submit(ping, address, [])
        full = pool.submit(ping, address, ["-M", "do", "-s", str(payload)], 5)
        result["small"], result["full"] = small.result(), full.result()
    if 0 < result["small"].get("received", 0) < result["small"].get("sent", 0):
        # One lost echo proves nothing: a busy host answers late. More of them, and slower, tell loss from haste.
        result["again"] = ping(address, [], 100, "0.02")
    return result


def look(arguments):
    hostname = socket.gethostname()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        targets = list(pool.map(look_at, arguments["targets"]))
        names = dict(zip(arguments["names"], pool.map(resolve, arguments["names"])))
    return {"names": names, "hostname": hostname, "own": resolve(hostname), "targets": targets}


if __name__ == "__main__":
    say(look(json.loads(sys.argv[1])))
