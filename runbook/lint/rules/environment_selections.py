"""Selections of network interfaces and adapters: NCCL's `^`, `=` and prefixes, and gloo's plain names."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from runbook.lint.rules.environment_fault import VariableFault
from runbook.lint.rules.environment_numbers import shown
from runbook.model.selection import Selection, selection

_INTERFACE = re.compile(r"(ib|eth|bond|docker|veth|virbr)[0-9]+|lo|en[opsx][0-9]\w*", re.ASCII)
_ADAPTER = re.compile(r"mlx[45]_\d+|(bnxt_re|irdma|efa|hns|qedr|erdma)_?\d+|rdmap\d\w*|rocep\d\w*", re.ASCII)
_ADAPTER_PORT = re.compile(r"[^:]+(:[0-9]{1,4}){1,3}", re.ASCII)
_COUNTED_ADAPTER = re.compile(
    r"\A(?:\w*_[1-9]|(bnxt_re|irdma|qedr|rxe|siw)[1-9])", re.ASCII
)  # from 0, so 10 may be there
_COUNTED_INTERFACE = re.compile(r"(eth|ib)[1-9]", re.ASCII)  # not ens5, enp3s0: their numbers are slots
_VIRTUAL = re.compile(
    r"lo|(docker|veth|virbr|cali)\w*|(cni|lxcbr|lxdbr|podman|kube-ipvs|dummy|vmnet|vboxnet)\d+|flannel\.\d+|br-[0-9a-f]{12}",
    re.ASCII,
)


def interface_faults(name: str, text: str) -> Iterator[VariableFault]:
    chosen = selection(text.strip())
    fault = _syntax_fault(name, text, chosen, "eth0,eth1") or _address_fault(name, chosen)
    adapter = next((one for one in chosen.names if _ADAPTER.fullmatch(one)), None)
    if fault is not None:
        yield fault
    elif adapter is not None:
        message = f"{shown(adapter)} is an RDMA adapter, and `{name}` takes network interfaces"
        yield VariableFault("bad-selection", message, "`ip -br link` lists them; adapters stand in NCCL_IB_HCA")
    elif not chosen.exact:
        yield from _trap(chosen, _COUNTED_INTERFACE)


def adapter_faults(name: str, text: str) -> Iterator[VariableFault]:
    chosen = selection(text.strip())
    fault = _syntax_fault(name, text, chosen, "mlx5_0,mlx5_1")
    bad_port = next((one for one in chosen.names if ":" in one and not _port_is_sound(one)), None)
    interface = next((one for one in chosen.names if _INTERFACE.fullmatch(one)), None)
    if fault is not None:
        yield fault
    elif bad_port is not None:
        message = f"{shown(bad_port)} is no adapter with its port"
        yield VariableFault(
            "bad-selection", message, "write mlx5_0:1; ports count from 1, and without one all are taken"
        )
    elif interface is not None:
        message = f"{shown(interface)} is a network interface, and `{name}` takes RDMA adapters"
        help = "`ibstat -l` or /sys/class/infiniband list them; interfaces stand in NCCL_SOCKET_IFNAME"
        yield VariableFault("bad-selection", message, help)
    elif not chosen.exact:
        yield from _trap(chosen, _COUNTED_ADAPTER)


def gloo_faults(name: str, text: str) -> Iterator[VariableFault]:
    """gloo takes names, letter by letter, with commas between them."""
    bare = text.strip()
    if bare.startswith(("^", "=")):
        message = f"gloo looks for an interface whose name is {shown(bare)}: `^` and `=` are NCCL's alone"
        if name == "network.interface":
            help = f"write a plain name here, and `env: {{NCCL_SOCKET_IFNAME: '{bare[:60]}'}}` for NCCL"
        else:
            help = "write the name of the interface, such as eth0"
        yield VariableFault("gloo-selector", message, help)
        return
    names = tuple(one.strip() for one in bare.split(",") if one.strip())
    chosen = Selection(False, True, names)
    fault = _syntax_fault(name, text, chosen, "eth0,eth1") or _address_fault(name, chosen)
    if fault is not None:
        yield fault


def virtual(text: str) -> str | None:
    """A selected interface that no other machine can be reached through: lo, Docker's, libvirt's."""
    chosen = selection(text.strip())
    return None if chosen.excludes else next((one for one in chosen.names if _VIRTUAL.fullmatch(one)), None)


def _syntax_fault(name: str, text: str, chosen: Selection, example: str) -> VariableFault | None:
    signs = next((one for one in chosen.names if one.startswith(("^", "="))), None)
    if text.strip().startswith("=^"):
        return VariableFault(
            "bad-selection", f"`{name}` has `^` behind `=`", "write `^=` in front: all but exactly these"
        )
    if signs is not None:
        message = f"NCCL looks for a name that begins with `{signs[0]}`: `^` and `=` stand once, before the whole list"
        names = ",".join(one.lstrip("^=") for one in chosen.names)
        return VariableFault("bad-selection", message, f"write {shown((chosen.prefix or signs[0]) + names)}")
    if not chosen.names:
        return VariableFault("bad-selection", f"`{name}` names nothing", f"write names, such as {example}")
    glob = next((one for one in chosen.names if re.search(r"[*?\[\]{}]", one)), None)
    if glob is not None:
        if name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "network.interface"):
            return VariableFault("bad-selection", f"{shown(glob)}: there are no wildcards here", "write the whole name")
        message = f"{shown(glob)}: NCCL has no wildcards"
        return VariableFault(
            "bad-selection", message, f"every name is the beginning of one: write `{re.split(r'[*?{[]', glob)[0]}`"
        )
    joined = next((one for one in chosen.names if ";" in one), None)
    if joined is not None:
        return VariableFault("bad-selection", f"{shown(joined)} is read as one name", f"put commas between: {example}")
    return None


def _address_fault(name: str, chosen: Selection) -> VariableFault | None:
    for one in chosen.names:
        try:
            ipaddress.ip_interface(one)
        except ValueError:
            continue
        message = f"{shown(one)} is an address, and `{name}` takes names of interfaces"
        return VariableFault("bad-selection", message, "`ip -br addr` shows which interface has it")
    return None


def _port_is_sound(one: str) -> bool:
    return _ADAPTER_PORT.fullmatch(one) is not None and int(one.split(":")[1]) > 0


def _trap(chosen: Selection, counted: re.Pattern[str]) -> Iterator[VariableFault]:
    bare = next((one for name in chosen.names if counted.fullmatch(one := name.partition(":")[0])), None)
    if bare is not None:
        verb = "leaves out" if chosen.excludes else "takes"
        message = f"{shown(bare)} is the beginning of a name: it {verb} `{bare}0` to `{bare}9` as well"
        exact = "^" * chosen.excludes + "=" + ",".join(chosen.names)
        yield VariableFault("prefix-trap", message, f"`=` makes it exact: write {shown(exact)}")
