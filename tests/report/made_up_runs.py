"""Whole runs as the engine would tell them; the golden pages and the other reports are made from these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from runbook.model.events import (
    Event,
    NodesDropped,
    OutcomeReached,
    Progress,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
)
from runbook.model.remedy import Remedy
from runbook.model.verdict import Finding, Outcome, Verdict, overall_verdict

PAIR = ("node-a", "node-b")
RUN_DIR = ".runbook/runs/20261121-023000"
T0 = 1_795_228_200.0


class Story:
    """Events in the order of a run; every step moves the clock."""

    def __init__(self, nodes: Sequence[str], *stages: str, name: str = "two-node AllReduce") -> None:
        self.now = T0
        self.nodes = tuple(nodes)
        inventory = "inventories/two_node.yml"
        self.events: list[Event] = [
            RunStarted(T0, "20261121-023000", "0.1.0", name, inventory, self.nodes, stages, RUN_DIR)
        ]

    def begin(self, stage: str, check: str | None = None) -> Story:
        self.stage = stage
        self.events.append(StageStarted(self.now, stage, check or stage, self.nodes))
        return self

    def progress(self, after: float, text: str, node: str | None = None, rank: int | None = None) -> Story:
        self.now += after
        self.events.append(Progress(self.now, self.stage, text, node, rank))
        return self

    def row(self, after: float, size: int, time_us: float, busbw: float, wrong: int = 0) -> Story:
        self.now += after
        row = {
            "size": size,
            "count": size // 4,
            "type": "float",
            "redop": "sum",
            "time_us": time_us,
            "algbw": busbw,
            "busbw": busbw,
            "wrong": wrong,
            "iterations": 20,
            "p50_us": time_us * 0.99,
            "p99_us": time_us * 1.4,
        }
        self.events.append(Progress(self.now, self.stage, f"{size} bytes", data={"row": row}))
        return self

    def reach(self, after: float, *outcomes: Outcome) -> Story:
        self.now += after
        self.events += [OutcomeReached(self.now, self.stage, outcome) for outcome in outcomes]
        return self

    def finish(self, seconds: float) -> Story:
        begun = max(number for number, event in enumerate(self.events) if isinstance(event, StageStarted))
        verdict = overall_verdict(
            event.outcome.verdict for event in self.events[begun:] if isinstance(event, OutcomeReached)
        )
        self.events.append(StageFinished(self.now, self.stage, verdict, seconds))
        return self

    def step(self, stage: str, seconds: float, *outcomes: Outcome) -> Story:
        return self.begin(stage).reach(seconds, *outcomes).finish(seconds)

    def drop(self, reasons: Mapping[str, str], unknown: tuple[str, ...] = ()) -> Story:
        self.nodes = tuple(node for node in self.nodes if node not in reasons)
        self.events.append(NodesDropped(self.now, self.stage, reasons, unknown, self.nodes))
        return self

    def end(
        self,
        verdict: Verdict = Verdict.PASS,
        exit_code: int = 0,
        stopped_at: str | None = None,
        causes: tuple[str, ...] = (),
        cleaned: str | None = None,
        **nodes: Any,
    ) -> list[Event]:
        seconds = self.now - T0
        self.events.append(
            RunFinished(self.now, verdict, exit_code, stopped_at, seconds, causes, RUN_DIR, cleaned=cleaned, **nodes)
        )
        return self.events


def passed(nodes: Iterable[str], proof: str) -> list[Outcome]:
    return [Outcome.passed(node, proof) for node in nodes]


def healthy() -> list[Event]:
    story = Story(PAIR, "reach", "ping", "ibstat", "small AllReduce")
    story.step("reach", 0.9, *passed(PAIR, "Python 3.11.2, torch 2.13.0, gloo; clock within 3 ms"))
    story.step(
        "ping",
        1.21,
        Outcome.passed("node-a", "node-b answers in 0.04 ms", warnings=["node-b blocks ICMP, its TCP answers"]),
        Outcome.passed("node-b", "node-a answers in 0.05 ms"),
    )
    story.step("ibstat", 0.0, *(Outcome.skipped(node, "the inventory has no infiniband: block") for node in PAIR))
    story.begin("small AllReduce", "allreduce")
    story.progress(0.5, "joined the process group", "node-b", 1)
    story.row(0.1, 1024, 123.4, 0.0083).row(0.2, 32768, 1401.0, 0.0235).row(0.8, 1 << 20, 44_612.5, 0.0235)
    story.progress(2.5, "verifying every element", "node-a", 0).progress(0.1, "verifying every element", "node-b", 1)
    story.reach(0.2, *passed(PAIR, "busbw 23.5 MB/s at 1 MiB; 3 sizes verified on every rank"))
    return story.finish(4.4).end()


def firewall() -> list[Event]:
    story = Story(PAIR, "reach", "ping", "firewall", "ibstat", "connection", "small AllReduce")
    story.step("reach", 0.9, *passed(PAIR, "Python 3.11.2, torch 2.13.0, gloo; clock within 3 ms"))
    story.step("ping", 0.4, *passed(PAIR, "1 peer answers, 1500-byte packets pass"))
    drop = Finding(
        "firewall-drop",
        "node-a drops TCP 29500 from node-b (10.0.0.2): nft rule inet filter input handle 7",
        Remedy.run("sudo nft insert rule inet filter input position 7 ip saddr 10.0.0.2 tcp dport 29500 accept"),
        ("node-b → 10.0.0.1:29500: no answer in 2.0 s (3 SYN)", "tcp dport 29500 drop"),
        ("node-b",),
    )
    story.step("firewall", 2.2, Outcome.failed("node-a", drop), *passed(["node-b"], "4 ports open from 1 peer"))
    return story.end(Verdict.FAIL, 1, "firewall", ("firewall-drop",))


def many_nodes() -> list[Event]:
    nodes = [f"gn{number:02d}" for number in range(1, 17)]
    story = Story(nodes, "reach", "ping", "ibstat", "connection", name="sixteen nodes")
    story.step("reach", 3.1, *passed(nodes, "Python 3.11.2, torch 2.13.0, nccl 2.27.3"))
    story.step("ping", 12.25, *(Outcome.passed(node, f"15 peers answer in {node[2:]} us") for node in nodes))
    outcomes = passed([*nodes[:2], *nodes[8:14]], "8 ports Active at 400 Gb/s")
    outcomes += [
        Outcome.failed(
            node,
            Finding(
                "ib-port-down",
                f"{node}: mlx5_{node[3]} port 1 is Down",
                Remedy.run(f"ssh {node} sudo ibportstate -D 0 1 enable", node=""),
                (f"mlx5_{node[3]}: State: Down, Physical state: Polling",),
            ),
        )
        for node in nodes[2:8]
    ]
    outcomes += [
        Outcome.unknown(
            node,
            Finding(
                "tool-missing",
                "ibstat is not installed",
                Remedy.run("sudo apt-get install -y \\\n    infiniband-diags\nsudo modprobe ib_umad"),
                (f"sh: 1: ibstat: not found ({node})",),
            ),
        )
        for node in nodes[14:]
    ]
    story.step("ibstat", 64.0, *outcomes)
    return story.end(Verdict.FAIL, 1, "ibstat", ("tool-missing", "ib-port-down"))


def unreachable() -> list[Event]:
    story = Story(PAIR, "reach", "ping", "connection")
    refused = Finding(
        "ssh-refused",
        "10.0.0.2 answers, but nothing listens on port 22",
        Remedy.run("sudo systemctl start ssh   # on node-b"),
        ("connect to 10.0.0.2:22: Connection refused",),
    )
    story.step("reach", 0.09, *passed(["node-a"], "Python 3.11.2"), Outcome.unknown("node-b", refused))
    return story.end(Verdict.UNKNOWN, 3, "reach", ("ssh-refused",))


def interrupted() -> list[Event]:
    story = Story(PAIR, "reach", "connection", "small AllReduce")
    story.step("reach", 0.9, *passed(PAIR, "Python 3.11.2"))
    story.begin("connection").progress(3.0, "listening on 10.0.0.1:29500", "node-a", 0)
    story.reach(1.0, *passed(["node-a"], "joined"))
    story.now += 130
    return story.end(Verdict.UNKNOWN, 130, "connection", (), "4 processes on node-[a-b] stopped, folders removed")


def broken_off() -> list[Event]:
    """What a killed controller leaves: no StageFinished, no RunFinished."""
    events = firewall()
    return events[: next(n for n, event in enumerate(events) if isinstance(event, StageFinished) and n > 9)]


def hostile() -> list[Event]:
    """A node that writes whatever harms a terminal or a log."""
    story = Story(["node-a", "\x1b[2Jevil"], "reach", "ping\x07", name="hostile \x1b]0;title\x07run")
    finding = Finding(
        "program-error",
        "it said: \x1b[31mred\x1b[0m\r\rok\u202egnihton\x00 and 漢字",
        "first line\r\nsecond line with a \x1b[1mbold\x1b[0m word\tand a tab\n\n",
        ("Traceback (most recent call last):\n  File \x9b31mx.py\n\x1bPq#0;2\x1b\\done", "lone \ud800 surrogate"),
        ("\x1b[2Jevil",),
    )
    story.begin("reach").progress(3.0, "50%\r60%\x1b[K", "\x1b[2Jevil")
    story.reach(
        1.0, Outcome.failed("\x1b[2Jevil", finding), Outcome.passed("node-a", "fine\nreally", warnings=["a\x08b"])
    )
    return story.finish(1.0).end(Verdict.FAIL, 1, "reach", ("program-error",))


def continued() -> list[Event]:
    """A stage with `on_failure: continue`: the run goes on, and the root cause is named first at the end."""
    story = Story(PAIR, "reach", "ping", "connection")
    story.step("reach", 0.9, *passed(PAIR, "Python 3.11.2"))
    small = Finding("mtu-blackhole", "packets above 1400 bytes vanish", Remedy.run("sudo ip link set eth0 mtu 1400"))
    story.step("ping", 1.0, *(Outcome.failed(node, small) for node in PAIR))
    late = Finding("ranks-missing", "rank 1 never came", "look at node-b's log", ("waited 30 s",), ("node-b",))
    also = Finding(
        "mtu-blackhole", "packets above 1400 bytes vanish", Remedy.run("sudo ip link set eth0 mtu 1400"), ("1401 lost",)
    )
    unsaid = passed(["node-b"], "joined")
    story.step("connection", 30.0, Outcome.failed("node-a", late, also), *unsaid)
    return story.end(Verdict.FAIL, 1, "connection", ("mtu-blackhole", "ranks-missing"))


def dropped() -> list[Event]:
    """`when_bad: drop`: the master is bad, one node is out of reach, one end of a bad link goes; the rest pass."""
    nodes = tuple(f"gn{number}" for number in range(1, 9))
    story = Story(nodes, "reach", "firewall", "links", name="eight nodes")
    away = Finding("ssh-unreachable", "nothing answers at 10.0.0.5 port 22", "see whether gn5 is up")
    others = [node for node in nodes if node != "gn5"]
    story.step("reach", 5.0, *passed(others, "Python 3.11.2"), Outcome.unknown("gn5", away))
    story.drop({"gn5": "ssh-unreachable"}, ("gn5",)).step("reach", 0.5, *passed(others, "Python 3.11.2"))
    rule = Finding(
        "firewall-drop", "gn1 drops TCP 29500 from gn2", Remedy.run("sudo nft delete rule inet odd c handle 2")
    )
    story.step("firewall", 2.0, Outcome.failed("gn1", rule), *passed(others[1:], "13 ports open from 7 peers"))
    story.drop({"gn1": "firewall-drop"}).step("firewall", 1.0, *passed(others[1:], "13 ports open from 5 peers"))
    slow = "gn3 → gn6 carries 2 Gbit/s (40%), only on the way between these two"
    ends = [
        Outcome.failed(one, Finding("link-slow", slow, "change the cable", (), (other,)))
        for one, other in (("gn3", "gn6"), ("gn6", "gn3"))
    ]
    sound = [node for node in story.nodes if node not in ("gn3", "gn6")]
    story.step("links", 9.0, *passed(sound, "each way as fast as others"), *ends)
    story.drop({"gn6": "link-slow with gn3"}).step("links", 8.0, *passed(story.nodes, "each way as fast as others"))
    gone = ("gn1", "gn5", "gn6")
    told = ("firewall-drop", "link-slow", "ssh-unreachable")
    return story.end(Verdict.FAIL, 1, None, told, bad=("gn1",), dropped=gone, unknown=("gn5",))


def not_dropped() -> list[Event]:
    """Fewer nodes than `min_nodes` would be left."""
    story = Story(PAIR, "reach", "ping")
    loss = Finding("packet-loss", "node-b loses 31 % of what peers send", Remedy.run("sudo tc qdisc del dev eth0 root"))
    story.step("reach", 1.0, Outcome.failed("node-b", loss), *passed(["node-a"], "Python 3.11.2"))
    why = "without node-b only 1 of 2 nodes would be left, and `min_nodes` is 2"
    return story.end(Verdict.FAIL, 1, "reach", ("packet-loss",), bad=("node-b",), not_dropped=why)


def one_root() -> list[Event]:
    """Two symptoms of one fault on a node, and a survivor elsewhere: one block, and what follows from it under it."""
    story = Story(PAIR, "reach", "ping")
    root = Finding(
        "driver-library-mismatch", "node-b: module and library differ", Remedy.run("sudo reboot"), ("NVML: mismatch",)
    )
    symptom = Finding("no-gpu-visible", "rank 1 on node-b: torch sees no GPU", "nvidia-smi", ("0 devices",))
    survivor = Finding("peer-died", "not judged: waited for node-b", "mend node-b first", (), ("node-b",))
    story.step("reach", 1.0, Outcome.failed("node-b", symptom, root), Outcome.unknown("node-a", survivor))
    return story.end(Verdict.FAIL, 1, "reach", ("driver-library-mismatch", "no-gpu-visible"))


FLEET = tuple(f"node-{number:03}" for number in range(1, 65))


def fleet(broken: int, verdict: Verdict, finding: Callable[[str], Finding], exit_code: int) -> list[Event]:
    """64 nodes, of which the last `broken` have this."""
    story = Story(FLEET, "reach", "ping", "port", "firewall", name="cluster")
    story.step("reach", 3.1, *passed(FLEET, "Python 3.11.2, workdir writable, interface eth0, clock in step"))
    bad = FLEET[len(FLEET) - broken :]
    well = [Outcome.passed(n, f"63 peers answer, slowest in 0.{int(n[-2:])} ms") for n in FLEET if n not in bad]
    story.step("ping", 4.0, *well, *(Outcome(node, verdict, None, (finding(node),)) for node in bad))
    return story.end(verdict, exit_code, "ping", (finding(FLEET[-1]).cause,))


def one_broken() -> list[Event]:
    loss = ("13 of 40 packets from node-001 lost", "12 of 40 packets from node-002 lost", "and from 61 more peers")
    remedy = Remedy.run("sudo tc qdisc del dev eth0 root")
    return fleet(
        1, Verdict.FAIL, lambda n: Finding("packet-loss", f"{n} loses 31 % of what peers send", remedy, loss), 1
    )


def ten_alike() -> list[Event]:
    def finding(node: str) -> Finding:
        number = int(node[-3:])
        return Finding(
            "firewall-drop",
            f"{node} drops TCP 29500 from 63 peers: nft rule inet filter input handle {number}",
            Remedy.run(f"sudo nft delete rule inet filter input handle {number}"),
            (f"node-001 → 10.0.0.{number}:29500: no answer in 2.{number} s (3 SYN)", "tcp dport 29500 drop"),
            FLEET[:3],
        )

    return fleet(10, Verdict.FAIL, finding, 1)


def all_unknown() -> list[Event]:
    def finding(node: str) -> Finding:
        address = f"10.0.0.{int(node[-3:])}"
        return Finding(
            "ssh-unreachable",
            f"{node}: nothing answers at {address} port 22 within 10 s",
            f"check that {node} is up, that its address is right, and that no firewall drops TCP 22 from here: "
            f"`ping -c 3 {address}`, and `sudo nft list ruleset` on its console",
            (f"connect({address} port 22): no answer within 10 s",),
        )

    return fleet(64, Verdict.UNKNOWN, finding, 3)


STORIES = {
    story.__name__: story
    for story in (
        healthy,
        firewall,
        many_nodes,
        unreachable,
        interrupted,
        broken_off,
        hostile,
        continued,
        dropped,
        not_dropped,
        one_root,
        one_broken,
        ten_alike,
        all_unknown,
    )
}
