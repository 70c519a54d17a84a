"""ibstat: every InfiniBand port that NCCL would use is Active, LinkUp and as fast as the inventory promises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from runbook.checks.base import Check
from runbook.checks.context import Context
from runbook.launch.environment import hca_expression
from runbook.model.inventory import Node
from runbook.model.selection import Selection, selection
from runbook.model.verdict import Finding, Outcome

PACKAGES = "install infiniband-diags (Debian, Ubuntu, Fedora, RHEL: the package has that name)"


@dataclass(frozen=True)
class Port:
    """One port of one HCA. `rate_gbps` is the link rate in Gbit/s; states are lower case, as ibstat prints them."""

    hca: str
    number: int
    state: str
    physical: str
    rate_gbps: float | None
    link_layer: str

    @property
    def name(self) -> str:
        return f"{self.hca}:{self.number}"


@dataclass(frozen=True)
class Ibstat(Check):
    id: ClassVar[str] = "ibstat"
    timeout_s: ClassVar[float] = 30.0

    def run(self, at: Context) -> list[Outcome]:
        if at.inventory.infiniband is None:
            return [Outcome.skipped(node.name, "the inventory has no infiniband: block") for node in at.nodes]
        said = at.ask("ibstat", lambda node: {}, timeout_s=15.0)
        outcomes = []
        for node in at.nodes:
            answer = said[node.name]
            if isinstance(answer, Outcome):
                outcomes.append(answer)
                continue
            expression = hca_expression(at.inventory, node)
            outcomes.append(judge(node, answer, expression, at.inventory.infiniband.min_rate_gbps))
        return outcomes


def judge(node: Node, answer: Mapping[str, Any], expression: str | None, min_rate: float | None) -> Outcome:
    """From what the node's ibstat (or sysfs) printed to an outcome. Pure."""
    tool, sysfs = answer["ibstat"], answer["sysfs"]
    text = str(tool.get("out") or "")
    source = "ibstat"
    ports = parse(text)
    if not ports and sysfs:
        ports, source = from_sysfs(sysfs), "/sys/class/infiniband"
    said = tuple((text + str(tool.get("err") or "")).strip().splitlines()[:8])
    if not ports:
        return nothing_to_see(node, tool, sysfs, said)
    chosen = select(expression, ports)
    listed = tuple(f"{p.name}: {p.state}, {p.physical}, {rate(p)}, {p.link_layer}" for p in ports)
    if not chosen:
        return Outcome.failed(
            node.name,
            Finding(
                "ib-hca-missing",
                f"{node.name} has no HCA that `{expression}` selects; it has {', '.join(sorted({p.hca for p in ports}))}",
                f"correct `infiniband: {{hca: …}}` in the inventory (or NCCL_IB_HCA in the env of {node.name})",
                listed,
            ),
        )
    wanted = selection(expression or "")
    named = () if wanted.excludes else wanted.names
    missing = [word for word in named if not any(matches(word, port, wanted) for port in ports)]
    findings = [
        Finding(
            "ib-hca-missing",
            f"{node.name} has no HCA {word}",
            "`lspci | grep -i mellanox` and `dmesg | grep -i mlx5` on that node, or correct the inventory",
            listed,
        )
        for word in missing
    ]
    findings += [finding for port in chosen if (finding := fault(node, port, min_rate))]
    if findings:
        return Outcome.failed(node.name, *findings, metrics={"ports": listed})
    slowest = min((p.rate_gbps for p in chosen if p.rate_gbps is not None), default=0.0)
    promised = f" (promised {min_rate:g})" if min_rate else ""
    return Outcome.passed(
        node.name,
        f"{', '.join(p.name for p in chosen)} Active, LinkUp at {slowest:g} Gbit/s{promised}, by {source}",
        metrics={"ports": listed},
    )


def nothing_to_see(node: Node, tool: Mapping[str, Any], sysfs: object, said: tuple[str, ...]) -> Outcome:
    """No port was read: no device (a failure), or nobody could look (unknown)."""
    if tool.get("missing") and sysfs is None:
        return Outcome.unknown(
            node.name,
            Finding(
                "tool-missing",
                f"{node.name} has no ibstat, and its kernel shows no /sys/class/infiniband to read instead",
                f"{PACKAGES}; if this node has no InfiniBand, take the `infiniband:` block out of the inventory",
                ("ibstat is neither on PATH nor in /usr/sbin",),
            ),
        )
    if tool.get("timed_out"):
        return Outcome.unknown(
            node.name,
            Finding(
                "tool-output-unknown",
                f"ibstat does not return on {node.name}",
                "look at `dmesg | grep -i mlx5`: the driver or the adapter hangs",
                ("no answer within 8 s",),
            ),
        )
    none = any(
        "no such" in line.lower() or "can't open" in line.lower() or "not found" in line.lower() for line in said
    )
    if none or not said or sysfs == {}:
        return Outcome.failed(
            node.name,
            Finding(
                "ib-no-device",
                f"{node.name} has no InfiniBand device",
                "`lspci | grep -i mellanox`; load the driver (`sudo modprobe mlx5_ib`), or take the `infiniband:` block "
                "out of the inventory",
                said or ("ibstat lists no adapter",),
            ),
        )
    return Outcome.unknown(
        node.name,
        Finding(
            "tool-output-unknown",
            f"ibstat on {node.name} printed what nobody here knows (exit {tool.get('code')})",
            f"run `ibstat` on {node.name} by hand",
            said,
        ),
    )


def fault(node: Node, port: Port, min_rate: float | None) -> Finding | None:
    where = f"{port.name} of {node.name}"
    seen = (f"{port.name}: State {port.state}, Physical state {port.physical}, Rate {rate(port)}",)
    if port.state in ("initializing", "init", "armed"):
        return Finding(
            "ib-port-initializing",
            f"{where} is {port.state.capitalize()}: the link is up, but no subnet manager has set it up",
            "start a subnet manager: `sudo systemctl start opensm` on one node, or the one in the switch; "
            "`sudo sminfo` shows who it is",
            seen,
        )
    if port.state != "active" or port.physical != "linkup":
        return Finding(
            "ib-port-not-active",
            f"{where} is {port.state.capitalize()} (physical state {port.physical.capitalize()})",
            "check the cable and the switch port (`sudo iblinkinfo`); enable a disabled one with "
            "`sudo ibportstate -D 0 PORT enable`; reseat or replace the cable if it stays in Polling",
            seen,
        )
    if min_rate and port.rate_gbps is not None and port.rate_gbps < min_rate:
        return Finding(
            "ib-rate-low",
            f"{where} runs at {port.rate_gbps:g} Gbit/s, not at the promised {min_rate:g}",
            "a bad cable or transceiver makes a link train slower or narrower: `sudo iblinkinfo` shows both ends; "
            "reseat or replace it, or correct `min_rate_gbps`",
            seen,
        )
    if min_rate and port.rate_gbps is None:
        return Finding("ib-rate-low", f"{where} shows no rate", "run `ibstat` there by hand", seen)
    return None


def parse(text: str) -> list[Port]:
    """Ports from ibstat's text, in its own order. The format is that of infiniband-diags since OFED 1."""
    ports: list[Port] = []
    hca = ""
    number: int | None = None
    fields: dict[str, str] = {}

    def finish() -> None:
        if number is not None:
            ports.append(
                Port(
                    hca,
                    number,
                    fields.get("state", "").lower(),
                    fields.get("physical state", "").lower(),
                    as_rate(fields.get("rate")),
                    fields.get("link layer", "InfiniBand"),
                )
            )

    for line in text.splitlines():
        if match := re.match(r"\s*CA '(.+)'", line):
            finish()
            hca, number, fields = match[1], None, {}
        elif match := re.match(r"\s*Port (\d+):\s*$", line):
            finish()
            number, fields = int(match[1]), {}
        elif number is not None and ":" in line:
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
    finish()
    return ports


def from_sysfs(hcas: Mapping[str, Mapping[str, Mapping[str, str | None]]]) -> list[Port]:
    """Ports from /sys/class/infiniband: `4: ACTIVE`, `5: LinkUp`, `400 Gb/sec (4X NDR)`."""
    return [
        Port(
            hca,
            int(number),
            (port.get("state") or "").partition(": ")[2].lower(),
            (port.get("phys_state") or "").partition(": ")[2].lower(),
            as_rate(port.get("rate")),
            port.get("link_layer") or "InfiniBand",
        )
        for hca, ports in hcas.items()
        for number, port in ports.items()
        if number.isdigit()
    ]


def as_rate(text: str | None) -> float | None:
    match = re.match(r"[\d.]+", text or "")
    return float(match[0]) if match else None


def rate(port: Port) -> str:
    return "no rate" if port.rate_gbps is None else f"{port.rate_gbps:g} Gbit/s"


def select(expression: str | None, ports: list[Port]) -> list[Port]:
    """The ports NCCL_IB_HCA selects: a prefix list, `=` for exact names, `^` to exclude, `:port` for one port.

    Without an expression NCCL takes every active port and ignores the rest, so idle spare ports are not a fault then:
    the active ones are chosen, or all if none is.
    """
    if not expression:
        return [port for port in ports if port.state == "active"] or ports
    chosen = selection(expression)
    return [port for port in ports if any(matches(name, port, chosen) for name in chosen.names) != chosen.excludes]


def matches(word: str, port: Port, chosen: Selection) -> bool:
    name, _, number = word.partition(":")
    if number and number.isdigit() and int(number) != port.number:
        return False
    return chosen.fits(name, port.hca)
