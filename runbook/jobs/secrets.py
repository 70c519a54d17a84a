"""What has to be starred in a job's output, wherever one looks at it from.

Two places know: the environment of this shell, where the inventory says `{env: NAME}`, and on each node the file with the
job's secrets, 0600, which the launch script reads. What a node says of its own is used for that node's output alone: it
must not be able to star what others write.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from runbook.jobs.known import Cluster, KnownJob
from runbook.launch.naming import LAUNCH
from runbook.model.inventory import Inventory, Node
from runbook.model.redact import Redactor, long_enough, secrets_of
from runbook.model.secret import Secret

READ_S = 5.0
MOST_SECRETS = 1000


@dataclass(frozen=True)
class JobSecrets:
    """`everywhere` is for what is of no node alone. `unknown`: sentences on secrets whose values nobody told."""

    everywhere: Redactor
    of_nodes: Mapping[str, Redactor]
    unknown: tuple[str, ...]


def job_secrets(cluster: Cluster, job: KnownJob) -> JobSecrets:
    """Asks every node that is reached. A node that does not answer costs nothing but what it knows."""
    inventory = cluster.inventory
    here = secrets_of(inventory)
    nodes = [inventory.node(name) for name in job.folders if name in cluster.site.sessions]

    def ask(node: Node) -> bytes:
        path = f"{job.folders[node.name]}/{job.attempt}/{LAUNCH}.env"
        return cluster.site.sessions[node.name].read_file(path, timeout_s=READ_S)

    told = {
        name: read(answer) if isinstance(answer, bytes) else {}
        for name, answer in cluster.site.each(nodes, ask, timeout_s=READ_S + 1.0).items()
    }
    of_nodes = {
        name: Redactor([*here, *(Secret(text, name) for text in found.values())]) for name, found in told.items()
    }
    return JobSecrets(Redactor(here), of_nodes, tuple(dict.fromkeys(_unknown(inventory, told))))


def read(data: bytes) -> dict[str, str]:
    """The variables of such a file, `export NAME='value'` a line; lines that are none are nothing."""
    found: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").splitlines()[:MOST_SECRETS]:
        try:
            words = shlex.split(line)
        except ValueError:
            continue
        if len(words) == 2 and words[0] == "export":
            name, _, text = words[1].partition("=")
            found[name] = text
    return found


def _unknown(inventory: Inventory, told: Mapping[str, Mapping[str, str]]) -> list[str]:
    sentences = []
    for node in inventory.nodes:
        for name, value in {**inventory.env, **node.env}.items():
            if not isinstance(value, Secret):
                continue
            text = value.reveal() or told.get(node.name, {}).get(name)
            if text is None:
                sentences.append(
                    f"{value.source} is not set here, and {node.name} does not tell it: it cannot be starred"
                )
            elif not long_enough(text):
                sentences.append(f"{value.source} is too short to be told from other words: it is not starred")
    return sentences
