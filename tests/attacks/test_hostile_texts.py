"""Whatever a tool of a node prints: what reads it raises nothing, and costs as much as the text is long."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from profiles import one_in

from runbook.checks import ibstat
from runbook.checks.network.routing import Sent, refusing_policy_finding
from runbook.checks.reach.gpus import judge_gpus, old_driver_finding
from runbook.files.node_sets import folded_names
from runbook.firewall.collected_rules import Evidence
from runbook.firewall.evaluate import Flow, Leg
from runbook.firewall.explain_connection import Ends, Seen, explain_blocked
from runbook.firewall.explain_node import explain_leg, find_arp_stop
from runbook.jobs.counters import not_read, rising_counter_findings
from runbook.model.events import OutcomeReached, StageStarted
from runbook.model.inventory import Node
from runbook.model.node_ranges import fold
from runbook.model.verdict import Outcome
from runbook.parsers.nvidia_logs import xid_events
from runbook.parsers.nvidia_smi_facts import parse_apps, parse_details, parse_gpus
from runbook.report.run_record import Record

from .fitting import DIGITS, texts
from .recorded_node import Json, recording
from .test_hostile_node import MISSING, altered, places

NODE = Node("node-a", "10.77.0.1", gpus=(0, 1, 2, 3))
LEGS: tuple[Leg, ...] = ("request-out", "request-in", "reply-out", "reply-in")
FLOW = Flow("10.77.0.2", "10.77.0.1", 29500)


def said(name: str, program: str) -> dict[str, Any]:
    """What node-a answered there."""
    found: dict[str, Any] = recording(name).said["node-a"][program][0]
    return found


def spoilt(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The answer with every text that a tool printed replaced by others."""
    for tool, ran in answer.items():
        for text in texts(ran["out"]) if isinstance(ran, dict) and ran.get("out") else ():
            yield {**answer, tool: {**ran, "out": text, "err": text}}


XIDS = "[ 10.5] NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n[ 11.5] NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x1 to 0x0 (None)"
APPS = "4242, GPU-0000feed-0000-4000-8000-00000000beef, 1024, python, train.py\n"


def test_what_nvidia_smi_prints() -> None:
    sound = said("gpu_all_sound", "gpus")
    sound = {**sound, "apps": {**sound["apps"], "out": APPS}, "processes": {"4242": {}}}
    for answer in spoilt(sound):
        judged = judge_gpus(NODE, answer)
        old_driver_finding(NODE, judged, "12.4")
    for log in texts(XIDS):
        judge_gpus(NODE, {**sound, "dmesg": log.splitlines()})


def test_what_nvidia_smi_prints_during_a_launch() -> None:
    gpus = said("gpu_all_sound", "gpus")["gpu"]
    now = {**said("job_run", "counters"), "gpus": gpus, "xids": [XIDS]}
    for text in texts(gpus["out"]):
        later = {**now, "clock": now["clock"] + 60, "gpus": {**gpus, "out": text}}
        for pair in ((now, later), (later, later), (later, now)):
            list(rising_counter_findings("node-a", *pair))  # type: ignore[arg-type]  # as it was recorded
            not_read(pair[1], gpus=True)  # type: ignore[arg-type]


def test_what_ibstat_prints() -> None:
    for answer in spoilt(said("ib_no_subnet_manager", "ibstat")):
        for seen in (answer, {**answer, "sysfs": None}):
            ibstat.ibstat_outcome(NODE, seen, "=mlx5_0:1", 100.0, "3")


SAVED = """\
*mangle
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
-A PREROUTING -m connmark --mark 0x1/0xff -j CONNMARK --restore-mark
-A INPUT -p tcp -m tcp --dport 29500 -j MARK --set-xmark 0x1/0xffffffff
COMMIT
*nat
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING -s 10.77.0.0/16 -o eth0 -j SNAT --to-source 10.77.0.9:1024-65535
COMMIT
*filter
:INPUT DROP [0:0]
:OUTPUT ACCEPT [0:0]
:ufw-user-input - [0:0]
[3:180] -A INPUT -i lo -j ACCEPT
-A INPUT -m iprange --src-range 10.77.0.5-10.77.0.9 -m mark --mark 0x1/0xff -j ACCEPT
-A INPUT -p tcp -m multiport --dports 22,80:90 -m comment --comment "a 'b'" -j ACCEPT
-A INPUT -p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -m length --length 40:60 -m owner ! --uid-owner 0-99 -j REJECT --reject-with tcp-reset
-A INPUT -m set --match-set peers src -m conntrack --ctstate RELATED,ESTABLISHED --ctdir ORIGINAL -g ufw-user-input
-A ufw-user-input -m statistic --mode random --probability 0.5 -j DROP
COMMIT
"""
LISTINGS = {
    "iptables-save": SAVED,
    "ipset": "create peers hash:net family inet\nadd peers 10.77.0.0/24\nadd peers 10.78.0.1 nomatch\n",
    "ufw": "Status: active\nDefault: deny (incoming), allow (outgoing), disabled (routed)\n\n[ 1] 29500:29510,80/tcp  DENY IN  10.77.0.2\n22 ALLOW Anywhere\n",
    "firewalld-state": "running\n",
    "firewalld-zones": "public (active)\n  target: default\n  interfaces: eth0\n  sources: 10.77.0.0/16\n  ports: 80/tcp\n  rich rules: \n",
    "firewalld-default": "public\n",
    "nft-text": "table inet f {\n\tchain in { # handle 1\n\t\ttype filter hook input priority 0; policy drop;\n\t\tmeta mark set 0x1 tcp dport 22 accept # handle 2\n\t}\n}\n",
    "addresses": '[{"ifname": "eth0", "flags": ["UP"], "mtu": 1500, "operstate": "UP", "addr_info": [{"local": "10.77.0.1", "prefixlen": 24}]}]',
    "route 10.77.0.2": '[{"dst": "10.77.0.2", "dev": "eth0", "flags": []}]',
    "routes 10.77.0.2": '[{"dst": "default", "gateway": "10.77.0.3", "dev": "eth0", "metric": 5}]',
    "policy 10.77.0.2": '[{"priority": 5, "src": "all", "fwmark": "0x1", "sport": 1, "uid_start": 0, "uid_end": 9, "action": "prohibit"}]',
}
FIELD = {"payload": {"protocol": "tcp", "field": "dport"}}
EXPRESSIONS: list[Json] = [
    {"match": {"op": "==", "left": FIELD, "right": {"set": [22, {"range": [80, 90]}, {"elem": {"val": 5, "counter": None}}]}}},
    {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}},
    {"match": {"op": "!=", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": {"prefix": {"addr": "10.0.0.0", "len": 8}}}},
    {"match": {"op": "==", "left": {"&": [{"payload": {"protocol": "tcp", "field": "flags"}}, ["fin", "syn"]]}, "right": "syn"}},
    {"match": {"op": "==", "left": {"concat": [{"meta": {"key": "iifname"}}, FIELD]}, "right": "@s"}},
    {"match": {"op": "<", "left": {"meta": {"key": "length"}}, "right": 1400}},
    {"mangle": {"key": {"meta": {"key": "mark"}}, "value": 1}},
    {"vmap": {"key": FIELD, "data": {"set": [[22, {"accept": None}], [{"range": [1, 9]}, {"jump": {"target": "c"}}], ["*", {"drop": None}]]}}},
    {"reject": {"type": "tcp reset"}},
    {"snat": {"addr": "10.77.0.9"}},
]  # fmt: skip
PLACE = {"family": "inet", "table": "f"}
RULESET: Json = {
    "nftables": [
        {"table": {"family": "inet", "name": "f", "handle": 1}},
        {"set": {**PLACE, "name": "s", "type": ["ifname", "inet_service"], "elem": [{"concat": ["eth*", 22]}]}},
        *({"chain": {**PLACE, "name": hook[0], "handle": 1, "type": "filter", "hook": hook, "prio": 0, "policy": "drop"}} for hook in ("input", "output")),
        {"chain": {**PLACE, "name": "c", "handle": 2}},
        *({"rule": {**PLACE, "chain": chain, "handle": 3, "expr": [one, {"drop": None}]}} for one in EXPRESSIONS for chain in "io"),
    ]
}  # fmt: skip
ODD_WORDS = ("'", "", ":", "-", "0x", DIGITS, "1.2.3.4.5", "²")
ODD: tuple[Json, ...] = (None, -1, 1.5, 10**400, True, "", "x", [], {}, [[]], [{}], {"elem": 5}, {"range": [5]}, "@s")


def judged(listings: dict[str, str]) -> None:
    """All that anybody asks of a node's rules."""
    tools = {name: {"status": "ok", "rc": 0, "stdout": text} for name, text in listings.items()}
    tools |= {f"{one} 10.77.0.2": {**tools.get(f"{one} 10.77.0.2", {"status": "ok"}), "rc": 2} for one in ("routes",)}
    evidence = Evidence.of({"tools": tools, "facts": {"uid": 5, "local_ports": listings.get("ufw", "")}})
    for leg in LEGS:
        explain_leg(evidence, FLOW, leg, ports=[(29500, 29510), (1024, 65535)], peers=["10.77.0.2"])
    both: tuple[Seen, ...] = ("dropped", "lost")
    for seen in both:
        explain_blocked(seen, FLOW, Ends(evidence, evidence, "node-b", "node-a"))
    find_arp_stop(evidence, "eth0", "10.77.0.1", "10.77.0.2")
    refusing_policy_finding("node-a", Sent("10.77.0.2", "10.77.0.1"), "TCP 29500", evidence)
    evidence.no_route_to("10.77.0.2")
    evidence.beside("10.77.0.2", arriving=True)


@pytest.mark.parametrize("tool", one_in(3, LISTINGS))
def test_what_tools_of_packet_filters_print(tool: str) -> None:
    text = LISTINGS[tool]
    alone = {name: one for name, one in LISTINGS.items() if name in (tool, "iptables-save", "addresses")}
    for number, spoiled in enumerate((*texts(text), *("7", "[7]", "null", "{}", "[" * 5000, "[{}]", '["x"]'))):
        judged({**(LISTINGS if number % 2 else alone), tool: spoiled})
    words = text.split(" ")
    for at in range(len(words)):
        odd = ODD_WORDS[at % len(ODD_WORDS)]
        judged({**alone, tool: " ".join([*words[:at], odd, *words[at + 1 :]])})


def test_rules_of_nft_in_which_anything_may_stand_anywhere() -> None:
    for number, at in enumerate(places(RULESET)):
        for kind in range(3):
            odd = (*ODD, MISSING)[(number + 5 * kind) % (len(ODD) + 1)]
            made = altered(RULESET, at, lambda _, odd=odd: odd)  # type: ignore[misc]
            judged({"nft-json": json.dumps("" if made is MISSING else made), "addresses": LISTINGS["addresses"]})


def test_the_rules_from_which_these_tests_start_are_read() -> None:
    evidence = Evidence.of({"tools": {"nft-json": {"status": "ok", "rc": 0, "stdout": json.dumps(RULESET)}}})
    assert len(evidence.bases(4)) == 2
    assert not evidence.blind(4)
    saved = Evidence.of({"tools": {"iptables-save": {"status": "ok", "rc": 0, "stdout": SAVED}}})
    assert len(saved.bases(4)) == 5


def test_chains_that_jump_to_each_other_come_to_an_end() -> None:
    """Of which each jumps to the next one twice, by a rule whose match nobody can tell: 2^60 ways."""
    chains = "".join(f":c{at} - [0:0]\n" for at in range(61))
    jumps = "".join(f"-A c{at} -m time -j c{at + 1}\n" * 2 for at in range(60))
    text = f"*filter\n:INPUT ACCEPT [0:0]\n{chains}-A INPUT -j c0\n{jumps}-A c60 -j DROP\nCOMMIT\n"
    evidence = Evidence.of({"tools": {"iptables-save": {"status": "ok", "rc": 0, "stdout": text}}})
    assert explain_leg(evidence, FLOW).blocks is None, "what lies behind so many ways nobody knows"
    assert len(evidence.tangled) == 1


def seconds(read: Callable[[str], object], text: str) -> float:
    """Of CPU, the less of two."""
    spent = []
    for _ in range(2):
        begun = time.thread_time()
        read(text)
        spent.append(time.thread_time() - begun)
    return min(spent)


def folded_twice(name: str) -> None:
    fold([f"{name}a", f"{name}b"])
    folded_names([f"{name}a", f"{name}b"])


def recorded(count: int) -> None:
    """Stages, and then what the first of them found, again and again."""
    record = Record()
    for at in range(count):
        record(StageStarted(0.0, f"s{at}", "ping", ("n",)))
    for _ in range(count):
        record(OutcomeReached(0.0, "s0", Outcome.passed("n", "it is so")))
    assert len(record.stages) == count


GPU = "GPU 00000000:1B:00.0\n"
LARGE: dict[str, tuple[Callable[[int], str], Callable[[str], object]]] = {
    "a rule of one long word": (lambda size: "*filter\n:INPUT DROP [0:0]\n-A INPUT -j " + "x" * size, lambda text: judged({"iptables-save": text})),
    "many tables": (lambda size: "".join(f"*t{at}\n" for at in range(size // 8)), lambda text: judged({"iptables-save": text, "nft-json": json.dumps(RULESET)})),
    "GPUs that are cut": (lambda size: "1, x\n" * (size // 5), lambda text: parse_gpus(text, ("index", "uuid", "name"))),
    "GPUs in one line": (lambda size: "1," + "x" * size, lambda text: parse_gpus(text, ("index", "uuid", "name"))),
    "sections in sections": (lambda size: GPU + "".join(" " * at + "x" * 50 + " : y\n" for at in range(size // 500)), parse_details),
    "resets": (lambda size: (XIDS + "\n") * (size // len(XIDS)), lambda text: xid_events([text.splitlines()], 60.0)),
    "names of many numbers": (lambda size: "1a" * (size // 20), folded_twice),
    "events of the first of many stages": (lambda size: "x" * (size // 40), lambda text: recorded(len(text))),
    "processes": (lambda size: APPS * (size // len(APPS)), lambda text: len(set(parse_apps(text)))),
}  # fmt: skip


@pytest.mark.cost
@pytest.mark.parametrize("kind", LARGE)
def test_what_is_large_costs_no_more_than_its_length(kind: str) -> None:
    made, read = LARGE[kind]
    small, large = (seconds(read, made(size)) for size in (40_000, 640_000))
    # Quadratic work would take 256 times as long; a machine that is busy with others makes large texts up to three times dearer.
    assert large < 96 * max(small, 0.005), f"{small:.3f} s of CPU, and {large:.3f} s for sixteen times as much"
