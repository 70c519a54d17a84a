"""IPsec policies (`ip xfrm policy`), which drop packets before or after every packet filter has let them through."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from runbook.files.address import in_network
from runbook.model.command_quoting import word

_SELECTOR = re.compile(r"^src (\S+) dst (\S+) ?(.*)$")
_WAY = re.compile(r"\bdir (in|out)\b(?: action (\w+))?")
_PRIORITY = re.compile(r"\bpriority (\d+)")


@dataclass(frozen=True, slots=True)
class IpsecPolicy:
    """`narrow`: what it selects by beside addresses, such as `proto tcp dport 29500`. `blocks`: it lets nothing pass;
    otherwise it demands that packets are protected."""

    source: str
    destination: str
    narrow: str
    way: str
    priority: int
    blocks: bool

    @property
    def selector(self) -> str:
        """In the words of `ip xfrm policy`."""
        return f"src {self.source} dst {self.destination} {f'{self.narrow} ' if self.narrow else ''}dir {self.way}"

    @property
    def typed(self) -> str:
        """The selector, each of its words as one of a command."""
        return " ".join(map(word, self.selector.split()))

    def __str__(self) -> str:
        return f"`{self.selector} {'action block' if self.blocks else 'tmpl …'}`"


def parse_policies(text: str) -> list[IpsecPolicy]:
    """Those that stand in the way of a packet in the clear, the first to be asked first; what sockets have of their own
    is left out."""
    found: list[IpsecPolicy] = []
    for block in re.split(r"\n(?=src )", text.strip()):
        head, _, rest = block.partition("\n")
        selector, way, priority = _SELECTOR.match(head.strip()), _WAY.search(rest), _PRIORITY.search(rest)
        if selector is None or way is None:
            continue
        blocks = way[2] == "block"
        optional = "\ttmpl " in rest and rest.count("level use") == rest.count("\ttmpl ")
        if blocks or ("\ttmpl " in rest and not optional):
            first = int(priority[1]) if priority else 0
            found.append(IpsecPolicy(selector[1], selector[2], selector[3].strip(), way[1], first, blocks))
    return sorted(found, key=lambda policy: policy.priority)


def policy_for(
    policies: Collection[IpsecPolicy], near: Collection[str], far: str, *, arriving: bool
) -> IpsecPolicy | None:
    """The first that takes what comes from `far` to one of the addresses `near`, or leaves for there."""
    for policy in policies:
        mine, its = (policy.destination, policy.source) if arriving else (policy.source, policy.destination)
        if (
            policy.way == ("in" if arriving else "out")
            and in_network(far, its)
            and any(in_network(a, mine) for a in near)
        ):
            return policy
    return None
