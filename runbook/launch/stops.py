"""Why a launch script stops before it starts anything: exit code, event and sentence, one table for the three shells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runbook.launch.activation import Activation
from runbook.launch.quote import printable
from runbook.launch.recipe import Guards, Recipe
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


def stops(recipe: Recipe, shell: str, activation: Activation) -> dict[str, ScriptStop]:
    """The stops that this script can come to, with its own names in their sentences."""
    node = recipe.node
    sentences = {
        "program-missing": f"{node} has no program {recipe.command[0]}: "
        "install it, or name another one in `command:`, `python:` or `activate:`"
        if recipe.command
        else f"{node} has no such program: install it, or name another one",  # the script puts its name in front
    }
    if recipe.workdir is not None:
        sentences["workdir-missing"] = f"{node} has no folder {recipe.workdir}: make it, or correct `workdir:`"
    if recipe.activate:
        sentences["activation-failed"] = (
            f"{node} could not run the activate line `{recipe.activate}`: "
            "run it there by hand, and mend what it names or `activate:` itself"
        )
    if recipe.guards and activation.needs:
        sentences["environment-missing"] = (
            f"{node} has no {activation.needs}, which `activate:` asks for: "
            f"{'install' if activation.conda else 'make'} it, or correct the line"
        )
    if any(isinstance(value, Secret) for value in recipe.environment.values()):
        sentences["secrets-missing"] = (
            f"{node} has no readable {secrets_file(recipe, shell)} beside this script: copy both"
        )
    if recipe.guards:
        sentences |= _rendezvous(node, recipe.guards, shell)
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


def secrets_file(recipe: Recipe, shell: str) -> str:
    """The file beside the script that holds the secrets."""
    return f"{recipe.name}.env" if shell == "sh" else f"{recipe.name}.env.{shell}"
