"""Why a launch script stops before it starts anything: exit code, event and sentence, one table for the three shells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runbook.launch.activation import Activation
from runbook.launch.quote import printable
from runbook.launch.spec import Guards, ScriptSpec
from runbook.model.secret import Secret


@dataclass(frozen=True, slots=True)
class ScriptStop:
    """`event` is what runbook reads, `says` what a person reads. Exit codes are documented and do not change."""

    code: int
    event: str
    says: str


CODES: Mapping[str, int] = {
    "workdir-missing": 90,
    "activation-failed": 91,
    "program-missing": 92,
    "environment-missing": 93,
    "address-unresolved": 94,
    "address-loopback": 95,
    # 96 is what the controller's first word to a node ends with when it finds no Python there.
    "port-taken": 97,
    # 98 was a missing Python to look with: the script looks by other means now, or says that it could not.
    "secrets-missing": 99,
}


def stops(spec: ScriptSpec, shell: str, activation: Activation) -> dict[str, ScriptStop]:
    """The stops that this script can come to, with its own names in their sentences."""
    node = spec.node
    sentences = {
        "program-missing": f"{node} has no program {spec.command[0]}: "
        "install it, or name another one in `command:`, `python:` or `activate:`"
        if spec.command
        else f"{node} has no such program: install it, or name another one",  # the script puts its name in front
    }
    if spec.workdir is not None:
        sentences["workdir-missing"] = f"{node} has no folder {spec.workdir}: make it, or correct `workdir:`"
    if spec.activate:
        sentences["activation-failed"] = (
            f"{node} could not run the activate line `{spec.activate}`: "
            "run it there by hand, and mend what it names or `activate:` itself"
        )
    if spec.guards and activation.needs:
        sentences["environment-missing"] = (
            f"{node} has no {activation.needs}, which `activate:` asks for: "
            f"{'install' if activation.conda else 'make'} it, or correct the line"
        )
    if any(isinstance(value, Secret) for value in spec.environment.values()):
        sentences["secrets-missing"] = (
            f"{node} has no readable {secrets_file(spec, shell)} beside this script: copy both"
        )
    if spec.guards:
        sentences |= _rendezvous(node, spec.guards, shell)
    return {
        event: ScriptStop(code, event, printable(sentences[event]))
        for event, code in CODES.items()
        if event in sentences
    }


def _rendezvous(node: str, guards: Guards, shell: str) -> dict[str, str]:
    """What can be wrong with this address, which need not be a name, and with this port, which may be elsewhere."""
    sentences = {}
    if guards.by_name:
        sentences["address-unresolved"] = (
            f"{node} cannot resolve MASTER_ADDR {guards.address}: "
            "correct `rendezvous: {address: ...}`, or add the name to DNS or to the hosts file"
        )
    if guards.astray or (guards.by_name and guards.several_nodes):
        sentences["address-loopback"] = (
            f"MASTER_ADDR {guards.address} is {node} itself by its loopback address, where no other node can come: "
            "take it out of the hosts file, or put an IP address into `rendezvous: {address: ...}`"
        )
    if guards.port is not None:
        see = "sudo ss -ltnp" if shell == "sh" else "netstat -ano"
        sentences["port-taken"] = (
            f"port {guards.port} cannot be had on {node}: "
            f"end the program that holds it (see `{see}`), or choose another one in `rendezvous: {{port: ...}}`"
        )
    return sentences


def secrets_file(spec: ScriptSpec, shell: str) -> str:
    """The file beside the script that holds the secrets."""
    return f"{spec.name}.env" if shell == "sh" else f"{spec.name}.env.{shell}"
