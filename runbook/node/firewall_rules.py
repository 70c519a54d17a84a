"""Prints the rules of this node's packet filters, as each tool lists them, as one JSON line.

Contract: `python3 firewall_rules.py '{"peers": ["10.0.0.2"], "seconds": 6}'` prints `\\x1erunbook ` and one JSON
object, after `seconds` at the latest: a command that has not ended by then is a timeout. With `"routes": true` the
object has the routes to the peers in any case. Python >= 3.8, standard
library only. Nothing is judged and nothing is changed here: every command only lists. An ordinary user's commands go
through `sudo -n`, which never asks. Each command has 3 s, and they run side by side.

A command's record says what happened: `ok` (rc, stdout, stderr), `missing` (no such tool), `denied` (needs root, and
sudo would ask or refuses), `timeout`, `failed` (it could not be started). "Could not look" is never an empty list.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time

from runbook.node.message import write_message
from runbook.node.proc import read
from runbook.node.tools import Beginning, find_tool, run_status
from runbook.node.tools import run as run_tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Record = dict[str, Any]
    """The result of one command."""

COMMAND_TIMEOUT_S = 3.0  # that each command may take
MAX_RULES_BYTES = 16 * 1024 * 1024
"""The most bytes of one command's output, and of the whole answer: a message may be half as large again."""
MAX_WORKERS = 32
"""How many commands run at a time: there may be a thousand peers."""

ROOT_COMMANDS = {
    "nft-json": ["nft", "-j", "-a", "list", "ruleset"],
    "nft-text": ["nft", "-a", "list", "ruleset"],
    "iptables-save": ["iptables-save"],
    "ip6tables-save": ["ip6tables-save"],
    "iptables-legacy-save": ["iptables-legacy-save"],
    "ip6tables-legacy-save": ["ip6tables-legacy-save"],
    "iptables-nft-save": ["iptables-nft-save"],
    "ip6tables-nft-save": ["ip6tables-nft-save"],
    "ipset": ["ipset", "save"],
    "ufw": ["ufw", "status", "verbose"],
    "ipsec": ["ip", "xfrm", "policy"],
    "firewalld-state": ["firewall-cmd", "--state"],
}
"""Commands that need root's rights."""
FIREWALLD_COMMANDS = {
    "firewalld-zones": ["firewall-cmd", "--list-all-zones"],
    "firewalld-default": ["firewall-cmd", "--get-default-zone"],
}
"""Commands that run only if firewalld does: each of them starts a Python of its own."""
USER_COMMANDS = {"addresses": ["ip", "-j", "addr", "show"]}
KERNEL_FACT_FILES = {
    "conntrack_count": "/proc/sys/net/netfilter/nf_conntrack_count",
    "conntrack_max": "/proc/sys/net/netfilter/nf_conntrack_max",
    "local_ports": "/proc/sys/net/ipv4/ip_local_port_range",
    "ttl": "/proc/sys/net/ipv4/ip_default_ttl",
}
"""Files whose contents the answer holds, by their names there."""
MAX_TC_DEVICES = 16  # the most interfaces whose `tc` filters are read
TOO_MANY_RULES = "%d bytes of rules: more than this program carries"
DEFAULT_RULE_PRIORITIES = (
    0,
    32766,
    32767,
)  # priorities of the kernel's policy rules, for the tables local, main and default
LEGACY_TABLES = {"ip": "/proc/net/ip_tables_names", "ip6": "/proc/net/ip6_tables_names"}


def iptables_flavour(path: str) -> str:
    """`nft` or `legacy`: which of the kernel's packet filters an iptables binary uses."""
    name = os.path.basename(os.path.realpath(path))
    if "nft" in name or "compat" in name:
        return "nft"
    return "legacy"


def run(argv: list[str], sudo: str | None = None) -> Record:
    """Runs one command; its record. `sudo`: its path; empty if root is needed and there is no sudo; None without."""
    path = find_tool(argv[0])
    if path is None:
        return {"status": "missing"}
    record: Record = {"flavour": iptables_flavour(path)} if argv[0].endswith("-save") else {}
    if sudo == "":
        record.update(status="denied", stderr="not root, and there is no sudo here")
        return record
    out = Beginning(MAX_RULES_BYTES)
    said = run_tool([path, *argv[1:]], COMMAND_TIMEOUT_S, sudo=sudo, out=out)
    record.update(status=run_status(said), stderr=said["err"][:4000])
    if said["code"] is None:
        return record
    record["rc"] = said["code"]
    if out.size > MAX_RULES_BYTES:
        record.update(status="failed", stderr=TOO_MANY_RULES % out.size)
    else:
        record["stdout"] = said["out"]
    return record


def drop_oversized_outputs(records: dict[str, Record]) -> None:
    """Removes outputs until the rest fits into one answer: nft's text first, which its JSON repeats, then the
    longest."""
    sizes = {name: len(json.dumps(record["stdout"])) for name, record in records.items() if "stdout" in record}
    order = sorted(sizes, key=lambda name: (name == "nft-text", sizes[name]))
    while sum(sizes.values()) > MAX_RULES_BYTES:
        name = order.pop()
        del records[name]["stdout"]
        records[name].update(status="failed", stderr=TOO_MANY_RULES % sizes.pop(name))


def legacy_tables(sudo: str | None) -> dict[str, list[str] | None]:
    """By family, the tables that iptables-legacy has filled; None if they may not be read. Without the file, none."""
    found: dict[str, list[str] | None] = {}
    for family, path in LEGACY_TABLES.items():
        if not os.path.exists(path):
            found[family] = []
            continue
        text = read(path)
        if text is None:
            record = run(["cat", path], sudo)
            text = record.get("stdout") if record.get("rc") == 0 else None
        found[family] = text.split() if text is not None else None
    return found


def traffic_filters() -> dict[str, str]:
    """The `tc` filters by `INTERFACE DIRECTION`, for interfaces that have any: they drop packets that no packet filter
    ever sees."""
    try:
        listed = json.loads(run(["tc", "-j", "qdisc", "show"]).get("stdout") or "[]")
    except ValueError:
        return {}
    devices = sorted({one.get("dev", "") for one in listed if one.get("kind") in ("ingress", "clsact")})
    found = {}
    for device in devices[:MAX_TC_DEVICES]:
        for way in ("ingress", "egress"):
            text = run(["tc", "filter", "show", "dev", device, way]).get("stdout", "").strip()
            if text:
                found["%s %s" % (device, way)] = text[:4000]
    return found


def policy_rules(family: str) -> tuple[Record, bool]:
    """The policy rules of an IP version (`-4`, `-6`), and whether there are rules beyond the kernel's own."""
    record = run(["ip", family, "-j", "rule", "show"])
    try:
        priorities = {rule.get("priority") for rule in json.loads(record.get("stdout") or "[]")}
    except (ValueError, AttributeError):
        priorities = set()
    return record, not priorities <= set(DEFAULT_RULE_PRIORITIES)


def ipsec_drops() -> dict[str, int]:
    """How many packets IPsec has dropped, by the kernel's names for the reasons; counts of 0 are left out."""
    lines = [line.split() for line in (read("/proc/net/xfrm_stat") or "").splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].strip("0").isdecimal()}


def has_nf_tables() -> bool | None:
    """Whether this kernel has nf_tables; None if that is not certain."""
    if os.path.exists("/sys/module/nf_tables"):
        return True
    builtin = read("/lib/modules/%s/modules.builtin" % os.uname().release)
    if builtin is None or read("/proc/modules") is None:
        return None
    return "nf_tables.ko" in builtin


def commands_to_run(root: bool, sudo: str | None) -> dict[str, tuple[list[str], str | None]]:
    """By name, the commands to run here, each with sudo or None. One save command for each flavour of iptables is
    enough."""
    jobs: dict[str, tuple[list[str], str | None]] = {
        name: (argv, None if root else sudo) for name, argv in ROOT_COMMANDS.items()
    }
    jobs.update({name: (argv, None) for name, argv in USER_COMMANDS.items()})
    for prefix in ("iptables", "ip6tables"):
        path = find_tool(prefix + "-save")
        if path is not None:
            jobs.pop("%s-%s-save" % (prefix, iptables_flavour(path)))
    if find_tool("firewall-cmd") is None:
        jobs.pop("firewalld-state")
    return jobs


def main() -> None:
    started = time.monotonic()
    arguments = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    root = os.geteuid() == 0
    sudo = None if root else (find_tool("sudo") or "")
    jobs = commands_to_run(root, sudo)
    peers = arguments.get("peers", [])
    policies = {family: policy_rules(family) for family in sorted({"-6" if ":" in peer else "-4" for peer in peers})}
    for peer in peers:
        jobs["route " + peer] = (["ip", "-j", "route", "get", peer], None)
    records: dict[str, Record] = {}
    facts: dict[str, Any] = {name: read(path) for name, path in KERNEL_FACT_FILES.items()}
    facts.update(uid=os.getuid(), gid=os.getgid())

    def work(name: str, argv: list[str], how: str | None) -> None:
        try:
            records[name] = run(argv, how)
            if name.startswith("route "):
                peer = argv[-1]
                ruled, more = policies["-6" if ":" in peer else "-4"]
                if more or arguments.get("routes") or records[name].get("rc"):
                    # The routes and policy rules that may refuse packets, be it only those of some ports or users.
                    shown = run(["ip", "-j", "-details", "route", "show", "table", "all", "match", peer])
                    records.update({"routes " + peer: shown, "policy " + peer: ruled})
            if name == "firewalld-state" and records[name].get("rc") == 0:
                for following, listing in FIREWALLD_COMMANDS.items():
                    records[following] = {"status": "timeout"}
                    records[following] = run(listing, how)
        except Exception as error:
            records[name] = {"status": "failed", "stderr": repr(error)}

    def look() -> None:
        facts["legacy_tables"] = legacy_tables(sudo)
        facts["nf_tables"] = has_nf_tables()
        facts["traffic_filters"] = traffic_filters()
        facts["ipsec_drops"] = ipsec_drops()

    tasks = [look] + [functools.partial(work, name, *job) for name, job in jobs.items()]
    at_once(tasks, started + arguments.get("seconds", COMMAND_TIMEOUT_S + 3))
    for name in jobs:
        records.setdefault(name, {"status": "timeout"})
    told = dict(records)
    drop_oversized_outputs(told)
    write_message({"tools": told, "facts": facts})


def at_once(tasks: list[Callable[[], None]], deadline: float) -> None:
    """Does these tasks in parallel, in as many threads as this login may have, until `deadline` (monotonic clock)."""
    left = tasks[::-1]

    def work() -> None:
        while True:
            try:
                task = left.pop()
            except IndexError:
                return
            task()

    threads = []
    try:
        for _ in range(min(MAX_WORKERS, len(tasks))):
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        if not threads:
            work()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    left.clear()


if __name__ == "__main__":
    main()
