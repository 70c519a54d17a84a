"""Reads the rules that `runbook/node/firewall_rules.py` collected on one node: base chains, front ends, routes, and
IPsec policies (`ip xfrm policy`), which drop packets although every packet filter lets them through.

The one subtle part is iptables-nft. Its rules live in nf_tables and show up in `nft -j` too, but there with matches
that JSON cannot describe (`xt`). So each table that `iptables-save` of that flavour lists is taken from there, and left
out of nft's listing; a table of the same name that iptables cannot read (it says "incompatible") stays nft's.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from runbook.files.address import is_in_network
from runbook.firewall import iptables, nft
from runbook.firewall.evaluate import DEFAULT_EPHEMERAL_PORTS, Base, Engine, Truth, Walk
from runbook.firewall.front_ends import (
    UFW_CHAINS,
    FirewalldStatus,
    UfwStatus,
    firewalld_owns,
    is_firewalld_running,
    parse_firewalld_zones,
    parse_ufw_status,
)
from runbook.model.command_quoting import shell_word
from runbook.model.grouping import values_by_key

_SELECTOR = re.compile(r"^src (\S+) dst (\S+) ?(.*)$")
_XFRM_DIRECTION = re.compile(r"\bdir (in|out)\b(?: action (\w+))?")
_PRIORITY = re.compile(r"\bpriority (\d+)")


@dataclass(frozen=True, slots=True)
class IpsecPolicy:
    """An IPsec policy. `narrow`: its selectors besides addresses, such as `proto tcp dport 29500`. `way`: `in` or
    `out`. `blocks`: it lets no packet pass. `passes`: it lets all pass as they are. Otherwise it demands that they are
    protected."""

    source: str
    destination: str
    narrow: str
    way: str
    priority: int
    blocks: bool
    passes: bool = False

    @property
    def selector(self) -> str:
        """The packets that it selects, in the words of `ip xfrm policy`."""
        return f"src {self.source} dst {self.destination} {f'{self.narrow} ' if self.narrow else ''}dir {self.way}"

    @property
    def typed(self) -> str:
        """The selector, quoted for a shell command."""
        return " ".join(map(shell_word, self.selector.split()))

    def __str__(self) -> str:
        return f"`{self.selector} {'action block' if self.blocks else 'tmpl …'}`"


def parse_ipsec_policies(text: str) -> list[IpsecPolicy]:
    """The policies in the text of `ip xfrm policy`, in the order in which the kernel asks them; policies of single
    sockets are left out."""
    found: list[IpsecPolicy] = []
    for block in re.split(r"\n(?=src )", text.strip()):
        head, _, rest = block.partition("\n")
        selector, way, priority = _SELECTOR.match(head.strip()), _XFRM_DIRECTION.search(rest), _PRIORITY.search(rest)
        if selector is None or way is None:
            continue
        blocks = way[2] == "block"
        optional = rest.count("level use") == rest.count("\ttmpl ")  # or none at all
        first = int(priority[1]) if priority else 0
        passes = optional and not blocks
        found.append(IpsecPolicy(selector[1], selector[2], selector[3].strip(), way[1], first, blocks, passes))
    return sorted(found, key=lambda policy: policy.priority)


def ipsec_policy_for(
    policies: Collection[IpsecPolicy], near: Collection[str], far: str, *, arriving: bool
) -> IpsecPolicy | None:
    """The first policy that applies to packets arriving from `far` at one of the addresses `near` (`arriving`), or
    leaving them for `far`; None if none does. One that lets only some packets pass does not decide about the others."""
    for policy in policies:
        mine, its = (policy.destination, policy.source) if arriving else (policy.source, policy.destination)
        if (
            policy.way == ("in" if arriving else "out")
            and not (policy.passes and policy.narrow)
            and is_in_network(far, its)
            and any(is_in_network(a, mine) for a in near)
        ):
            return policy
    return None


IpVersion = Literal[4, 6]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of one command on the node. `status`: `ok` | `missing` | `denied` | `timeout` | `failed`; `flavour`:
    for an iptables command, `nft` or `legacy`."""

    status: str
    rc: int | None = None
    stdout: str = ""
    stderr: str = ""
    flavour: str = ""

    @property
    def read(self) -> bool:
        return self.status == "ok" and self.rc == 0

    @property
    def why_not(self) -> str:
        """Why the command's output could not be read, in words."""
        first = next((line.strip() for line in self.stderr.splitlines() if line.strip()), "")
        if self.status == "missing":
            return "it is not installed"
        if self.status == "denied":
            broken = "sudoers" in self.stderr  # a mistake in that file: sudo names it, and then asks for a password
            return (
                "sudo asks for a password" if "password" in self.stderr and not broken else f"it needs root ({first})"
            )
        if self.status == "timeout":
            return "it did not answer in 3 s"
        return first or f"it ended with exit code {self.rc}"


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface as `ip` shows it: `state` is UP, DOWN or UNKNOWN; `flags` has UP if it is switched on; `link`
    is the interface below a VLAN; `master` is the bond or bridge that it is a part of."""

    state: str
    flags: tuple[str, ...]
    prefixes: tuple[str, ...]  # addresses with their lengths
    mtu: int | None
    xdp: bool = False  # an XDP program is attached, which may drop arriving packets
    link: str | None = None
    master: str | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(prefix.partition("/")[0] for prefix in self.prefixes)


SETS_MARK = re.compile(r"(?:meta mark set|--(?:set-x?|restore-|save-|and-|or-|xor-|tproxy-)mark) ?(\S*)")
RULE_LIST_COMMANDS = {"nft": "nft -a list ruleset"}
"""By a tool's name, the command that lists its rules, if it is not NAME-save."""
INBOUND_XFRM_DROPS = {"XfrmInTmplMismatch", "XfrmInNoPols"}
"""The kernel's counters of packets that IPsec dropped because they came unencrypted."""
OUTBOUND_XFRM_DROPS = {"XfrmOutNoStates", "XfrmAcquireError"}
"""The kernel's counters of packets that IPsec dropped because it had no key to send them."""
NOT_RUN = CommandResult("missing")


@dataclass(frozen=True)
class Evidence:
    """The rules and other facts collected on one node. Build it with `Evidence.of(...)`; the rest is worked out on
    demand."""

    tools: Mapping[str, CommandResult]
    facts: Mapping[str, Any]

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Evidence:
        """The evidence in the answer of the node program (`FirewallRules`)."""
        readings = {
            name: CommandResult(
                record["status"],
                record.get("rc"),
                record.get("stdout", ""),
                record.get("stderr", ""),
                record.get("flavour", ""),
            )
            for name, record in answer["tools"].items()
        }
        return cls(readings, answer.get("facts", {}))

    def tool(self, name: str) -> CommandResult:
        return self.tools.get(name, NOT_RUN)

    # --- what filters packets -------------------------------------------------------------------------------------

    def bases(self, version: IpVersion) -> list[Base]:
        """Every base chain that packets of this IP version meet, sorted as they meet them at one hook."""
        if version not in self._bases:
            kept = self._kept_by_iptables(version)
            found = [base for base in self._nft_bases if base.family in (*_nft_families(version), "bridge")]
            found = [base for base in found if (base.family, base.table) not in kept]
            found += self._iptables_bases(version)
            self._bases[version] = sorted(found, key=lambda base: (base.priority, base.order))
        return self._bases[version]

    @cached_property
    def _bases(self) -> dict[IpVersion, list[Base]]:
        """The results of `bases` so far, by IP version."""
        return {}

    @property
    def draws_lots(self) -> bool:
        """Whether any rule on this node matches packets by count or by chance."""
        bases = [*self.bases(4), *self.bases(6)]
        return any(rule.by_chance for base in bases for rules in base.chains.values() for rule in rules)

    @property
    def arp_bases(self) -> list[Base]:
        """The base chains of nft's `arp` family."""
        return [base for base in self._nft_bases if base.family == "arp"]

    def blind(self, version: IpVersion) -> tuple[str, ...]:
        """Sentences about rules that could not be read, and how to read them. Empty: all rules were read."""
        unread: dict[str, list[str]] = {}  # why -> the tools whose rules they are
        if (reason := self._nft_blind()) is not None:
            unread.setdefault(reason, []).append("nft")
        prefix = _iptables_command(version)
        legacy = (self.facts.get("legacy_tables") or {}).get(_nft_families(version)[0])
        for name, reading in self._saves(version):
            covered = self._nft_blind() is None and not self._has_xt(version)
            nothing_there = legacy == [] and reading.flavour == "legacy"
            needed = not nothing_there if reading.flavour == "legacy" else not covered
            if not reading.read and reading.status != "missing" and needed:
                unread.setdefault(reading.why_not, []).append(name.removesuffix("-save"))
        reasons = [
            f"{' and '.join(whose)} rules: {why}; "
            f"look with `sudo {RULE_LIST_COMMANDS.get(whose[0], whose[0] + '-save')}`"
            for why, whose in unread.items()
        ]
        if not any(reading.read and reading.flavour == "legacy" for _, reading in self._saves(version)) and legacy:
            reasons.append(f"iptables-legacy tables are in use ({', '.join(legacy)}) and no tool here lists them")
        if self._has_xt(version) and not any(r.read and r.flavour == "nft" for _, r in self._saves(version)):
            reasons.append(f"{prefix}-nft rules are in use and {prefix}-save could not list them")
        return tuple(dict.fromkeys(reasons))

    def _nft_blind(self) -> str | None:
        """Why nft's rules could not be read, in words; None if they were, or if the kernel has no nf_tables."""
        reading = self.tool("nft-json")
        if reading.status == "missing" and self.facts.get("nf_tables") is False:
            return None
        if not reading.read:
            return "nft is not installed here" if reading.status == "missing" else reading.why_not
        return self._nft[1]

    @cached_property
    def tangled(self) -> dict[int, Walk]:
        """By the `id()` of a base chain whose walk took more than MAX_COMPARISONS: that walk, for every packet."""
        return {}

    @property
    def _nft_bases(self) -> list[Base]:
        return self._nft[0]

    @cached_property
    def _nft(self) -> tuple[list[Base], str | None]:
        """nft's base chains, and why its JSON could not be read (None if it could)."""
        reading = self.tool("nft-json")
        if not reading.read or not reading.stdout.strip():
            return [], None  # nft < 0.9.1 prints nothing for no rules
        try:
            return nft.parse(reading.stdout, self.tool("nft-text").stdout), None
        except nft.UnreadableRulesetError as error:
            return [], f"its JSON could not be read ({error})"

    def _saves(self, version: IpVersion) -> list[tuple[str, CommandResult]]:
        """(command, result) for each collected `iptables-save`, of either flavour."""
        prefix = _iptables_command(version)
        names = (f"{prefix}-save", f"{prefix}-nft-save", f"{prefix}-legacy-save")
        return [(name, self.tools[name]) for name in names if name in self.tools]

    def _iptables_bases(self, version: IpVersion) -> list[Base]:
        found: list[Base] = []
        for name, reading in self._saves(version):
            if reading.read:
                found += iptables.parse(reading.stdout, self._engine(name, reading, version), self._ip_sets)
        return found

    @cached_property
    def _ip_sets(self) -> Mapping[str, iptables.IpSet]:
        return iptables.parse_ipset_save(self.tool("ipset").stdout)

    def _engine(self, name: str, reading: CommandResult, version: IpVersion) -> Engine:
        """The command that changes the rules which the save command `name` printed: plain `iptables` if it is of the
        same flavour."""
        plain = name.count("-") == 1
        legacy = reading.flavour == "legacy" and not plain
        if version == 4:
            return "iptables-legacy" if legacy else "iptables"
        return "ip6tables-legacy" if legacy else "ip6tables"

    def _kept_by_iptables(self, version: IpVersion) -> set[tuple[str, str]]:
        """(family, table) of nft's tables that are read from `iptables-nft-save` instead."""
        family = _nft_families(version)[0]
        native = values_by_key((base.table, base.chain) for base in self._nft_bases if base.family == family)
        kept = set()
        for _, reading in self._saves(version):
            if reading.read and reading.flavour == "nft":
                for table, policies in iptables.table_policies(reading.stdout).items():
                    if all(policies.get(chain, "-") != "-" for chain in native.get(table, ())):
                        kept.add((family, table))
        return kept

    def _has_xt(self, version: IpVersion) -> bool:
        """Whether nft's listing has rules of iptables-nft with matches that its JSON cannot describe."""
        return '"xt"' in self.tool("nft-json").stdout and any(
            base.family in _nft_families(version) and base.chain in iptables.HOOK_BY_CHAIN for base in self._nft_bases
        )

    # --- front ends -----------------------------------------------------------------------------------------------

    @cached_property
    def ufw(self) -> UfwStatus | None:
        """ufw's status if it is active, else None; without its rules if only its chains show that it is active."""
        reading = self.tool("ufw")
        status = parse_ufw_status(reading.stdout) if reading.read else None
        if status is not None:
            return status if status.active else None
        chains = any(name in base.chains for base in self.bases(4) for name in UFW_CHAINS)
        return UfwStatus(active=True) if chains and reading.status != "missing" else None

    @cached_property
    def firewalld(self) -> FirewalldStatus | None:
        """firewalld's zones if it runs, else None; without zones if only its chains show that it runs."""
        state = self.tool("firewalld-state")
        unread = state.status not in ("ok", "missing")
        chains = unread and any(map(firewalld_owns, (*self.bases(4), *self.bases(6))))
        if not chains and not is_firewalld_running(state.stdout):
            return None
        zones = self.tool("firewalld-zones")
        default = self.tool("firewalld-default")
        return parse_firewalld_zones(zones.stdout if zones.read else "", default=default.stdout if default.read else "")

    # --- the network around ---------------------------------------------------------------------------------------

    def interface_to(self, peer: str) -> str | None:
        """The interface through which this node sends to `peer`, and receives from it unless routes are asymmetric;
        None if unknown."""
        if peer in self.addresses:
            return "lo"
        device = next((route.get("dev") for route in _json_objects(self.tool(f"route {peer}"))), None)
        return device if isinstance(device, str) else None

    def no_route_to(self, peer: str) -> Mapping[str, Any] | None:
        """The kernel's refusal to send anything to `peer`: its words under `error`, with the `routes` and `rules` that
        lead to it. None if the kernel has a route, or was not asked."""
        asked = self.tool(f"route {peer}")
        if asked.status != "ok" or not asked.rc or "RTNETLINK" not in asked.stderr:
            return None
        return {"error": asked.why_not, **self.ways_to(peer)}

    def ways_to(self, peer: str) -> Mapping[str, Any]:
        """The `routes` that match a peer and the policy `rules` that choose among them; both empty if there are
        none."""
        return {
            "routes": _json_objects(self.tool(f"routes {peer}")),
            "rules": _json_objects(self.tool(f"policy {peer}")),
        }

    @cached_property
    def marks(self) -> frozenset[int] | None:
        """The values to which any rule on this node sets a packet's mark; None if they cannot be told."""
        if self.blind(4) or self.blind(6):
            return None
        texts = [
            self.tool("nft-text").stdout,
            *(reading.stdout for name, reading in self.tools.items() if "-save" in name),
        ]
        found = [word for text in texts for word in SETS_MARK.findall(text)]
        known = [int(mark[1], 16) for word in found if (mark := re.match(r"(0x[0-9a-fA-F]{1,8})(?:/|\Z)", word))]
        return frozenset(known) if len(known) == len(found) else None

    def has_route_to(self, peer: str, interface: str | None) -> Truth:
        """Whether this node sends to a peer through this interface; None if unknown."""
        found = self.interface_to(peer)
        return None if found is None else found == interface

    @property
    def addresses(self) -> frozenset[str]:
        return frozenset(address for one in self.interfaces.values() for address in one.addresses)

    @cached_property
    def interfaces(self) -> Mapping[str, Interface]:
        """The node's interfaces by name; empty if they could not be read."""
        try:
            return {
                str(one["ifname"]): Interface(
                    str(one.get("operstate", "UNKNOWN")),
                    tuple(map(str, one.get("flags") or ())),
                    tuple(
                        str(ipaddress.ip_interface(f"{a['local']}/{a['prefixlen']}"))
                        for a in one.get("addr_info", [])
                        if "local" in a
                    ),
                    mtu if isinstance(mtu := one.get("mtu"), int) else None,
                    "xdp" in one,
                    one.get("link"),
                    one.get("master"),
                )
                for one in _json_objects(self.tool("addresses"))
                if "ifname" in one
            }
        except (ValueError, AttributeError, KeyError, TypeError):
            return {}

    @cached_property
    def client_ports(self) -> tuple[int, int]:
        """The range of ports that this node uses for outgoing connections, both ends included."""
        found = re.fullmatch(r"\s*(\d{1,5})\s+(\d{1,5})\s*", str(self.facts.get("local_ports")))
        return (int(found[1]), int(found[2])) if found else DEFAULT_EPHEMERAL_PORTS

    def ipsec(self, peer: str, *, arriving: bool) -> IpsecPolicy | None:
        """The IPsec policy that stops packets from (`arriving`) or to a peer: it blocks them; or it demands protection,
        and the kernel has counted packets dropped for lack of it."""
        dropped = (self.facts.get("ipsec_drops") or {}).keys() & (
            INBOUND_XFRM_DROPS if arriving else OUTBOUND_XFRM_DROPS
        )
        # Packets to and from a peer carry the address that the route to it gives.
        own = [str(route["prefsrc"]) for route in _json_objects(self.tool(f"route {peer}")) if route.get("prefsrc")]
        policies = parse_ipsec_policies(self.tool("ipsec").stdout)
        policy = ipsec_policy_for(policies, own or self.addresses, peer, arriving=arriving)
        return policy if policy and (policy.blocks or (dropped and not policy.passes)) else None

    @property
    def ttl(self) -> int | None:
        """The time to live, in hops, of IPv4 packets that this node sends; None if unknown."""
        text = str(self.facts.get("ttl"))
        return int(text) if text.isdecimal() and len(text) < 4 else None

    def beside(self, peer: str, *, arriving: bool) -> tuple[str, str] | None:
        """(what, how) for something besides packet filters that may drop packets from (`arriving`) or to a peer: what
        it is, and how to look at it and remove it. None if there is nothing."""
        if policy := self.ipsec(peer, arriving=arriving):
            return (
                f"an IPsec policy for it: {policy}",
                f"`sudo ip xfrm policy`; if it is that one: `sudo ip xfrm policy delete {policy.typed}`",
            )
        found = (self._beside(device, arriving=arriving) for device in self.devices(self.interface_to(peer)))
        return next((rule for rule in found if rule), None)

    def devices(self, interface: str | None) -> list[str]:
        """An interface, followed by the interfaces that carry its packets: below a VLAN, in a bond or a bridge."""
        found = [] if interface is None else [interface]
        for upper in found:
            link = self.interfaces[upper].link if upper in self.interfaces else None
            below = (name for name, one in self.interfaces.items() if name == link or one.master == upper)
            found += [name for name in below if name not in found]
        return found

    def is_bridge(self, interface: str | None) -> bool:
        """Whether an interface is a bridge (or a bond): other interfaces are its ports, through which its packets come
        and leave."""
        return interface is not None and any(one.master == interface for one in self.interfaces.values())

    def _beside(self, device: str, *, arriving: bool) -> tuple[str, str] | None:
        """The same as in `beside` for a tc filter or an XDP program on one device."""
        way = "ingress" if arriving else "egress"
        text = (self.facts.get("traffic_filters") or {}).get(f"{device} {way}", "")
        if PACKET_TAKING_FILTER.search(text):
            where = f"dev {shell_word(device)} {way}"
            how = f"`sudo tc -s filter show {where}`"
            if number := re.search(r"pref (\d+)", text):
                how += f"; if it is that one: `sudo tc filter del {where} pref {number[1]}`"
            return f"a tc filter on {device} ({way}): {_tc_filter_line(text)}", how
        if arriving and device in self.interfaces and self.interfaces[device].xdp:
            return f"an XDP program on {device}", f"`ip -d link show dev {shell_word(device)}`, `sudo bpftool net show`"
        return None

    @property
    def owner(self) -> tuple[int | None, int | None]:
        """User and group (numbers) of the login, which are the job's as well; None: unknown."""
        return self.facts.get("uid"), self.facts.get("gid")

    @property
    def full_tracking_table(self) -> tuple[int, int] | None:
        """How many connections the kernel tracks and how many it may, if there is hardly room for another: it drops the
        packets of those that do not fit. None if there is room, or that is not known."""
        count, limit = int(self.facts.get("conntrack_count") or 0), int(self.facts.get("conntrack_max") or 0)
        return (count, limit) if limit and count >= limit * 0.95 else None

    @cached_property
    def asides(self) -> tuple[str, ...]:
        """Sentences about other reasons for packets to vanish: a full connection table, an XDP program."""
        found = []
        if full := self.full_tracking_table:
            found.append(f"the connection tracking table is full ({full[0]} of {full[1]}): new connections are dropped")
        if any(one.xdp for one in self.interfaces.values()):
            found.append("an XDP program is attached to an interface; what it drops is not seen here")
        return tuple(found)


PACKET_TAKING_FILTER = re.compile(
    r"action drop|(?:police |action ).{0,300}\bdrop\b|bpf|action.{0,300} (?:steal|stolen)\b", re.DOTALL
)
"""Words of a tc filter that may drop packets or lead them elsewhere, as `mirred (Egress Redirect to device lo) stolen`
does."""


def _json_objects(reading: CommandResult) -> list[Mapping[str, Any]]:
    """The JSON objects in the list that a command such as `ip -j` printed; empty if it printed anything else."""
    try:
        found = json.loads(reading.stdout or "[]")
    except (ValueError, RecursionError):
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _tc_filter_line(text: str) -> str:
    """tc's text on one line, without heading lines: the next line of the filter repeats them."""
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line, following in zip(lines, [*lines[1:], ""], strict=True) if not following.startswith(line)]
    return " ".join(kept)


def _nft_families(version: IpVersion) -> tuple[str, ...]:
    return ("ip", "inet", "netdev") if version == 4 else ("ip6", "inet", "netdev")


def _iptables_command(version: IpVersion) -> str:
    return "iptables" if version == 4 else "ip6tables"
