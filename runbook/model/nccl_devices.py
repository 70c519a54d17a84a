"""Which devices NCCL takes: the only place that reads NCCL_SOCKET_IFNAME and NCCL_IB_HCA. It also tells by its name
whether an interface leads to no other machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_GUEST_INTERFACE = re.compile(
    r"docker|podman|cni|virbr|lxcbr|lxdbr|veth|vmnet|vboxnet|dummy|kube-|nodelocaldns|br-(?=[0-9a-f]{12}$)"
)
_LOOPBACK_OR_OVERLAY = re.compile(r"lo$|cali|flannel|lxc|tailscale|tun\d*$")


def is_guest_interface(name: str) -> bool:
    """Whether an interface of this name is made by Docker, Podman, libvirt, LXC, VMware, VirtualBox or Kubernetes for
    guests of one machine: its addresses are the same on every machine and cannot be reached from outside."""
    return _GUEST_INTERFACE.match(name) is not None


def is_local_only_interface(name: str) -> bool:
    """Whether an interface of this name connects a job with no other machine: loopback, guests' interfaces, and
    overlays."""
    return is_guest_interface(name) or _LOOPBACK_OR_OVERLAY.match(name) is not None


@dataclass(frozen=True, slots=True)
class Selection:
    """An expression, read: at most one `^` (all but these), then at most one `=` (exact names; without it, beginnings
    of names), then names with commas between.

    Source: the NCCL user guide, and `parseStringList` of its sources.
    """

    excludes: bool
    exact: bool
    names: tuple[str, ...]

    @property
    def prefix(self) -> str:
        return "^" * self.excludes + "=" * self.exact

    def fits(self, name: str, device: str) -> bool:
        """Whether one of the listed names (without its port) means this device."""
        return device == name if self.exact else device.startswith(name)

    def takes(self, device: str) -> bool:
        """Whether the device of this name is selected; ports are not looked at."""
        bare = [one.partition(":")[0] for one in self.names]
        return any(self.fits(name, device) for name in bare if name) != self.excludes


def parse_device_selection(text: str) -> Selection:
    """The value of NCCL_SOCKET_IFNAME or NCCL_IB_HCA, read; empty names are dropped."""
    excludes = text.startswith("^")
    rest = text[1:] if excludes else text
    exact = rest.startswith("=")
    names = rest[1:] if exact else rest
    return Selection(excludes, exact, tuple(name.strip() for name in names.split(",") if name.strip()))


def select_interfaces(expression: str, names: Iterable[str]) -> list[str]:
    """The interfaces among `names` that a `*_SOCKET_IFNAME` value selects: prefixes, `=` for exact names, `^` for all
    but these.

    NCCL reads prefixes, `=` and `^` (NCCL user guide, NCCL_SOCKET_IFNAME); gloo reads exact names, which are also
    prefixes of themselves.
    """
    listed = list(names)
    chosen = parse_device_selection(expression)
    if not chosen.prefix:
        # A name that exists as written is meant as written, though NCCL would also take longer names that begin so.
        whole = [name for word in chosen.names for name in listed if name == word]
        if whole:
            return whole
    return [name for name in listed if chosen.takes(name)]
