"""README.txt: what somebody who has never seen such an archive must know, on one page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import runbook
from runbook.collect.entries import UNFIT
from runbook.collect.gather import Gathered
from runbook.collect.nodes import NodeAnswer

LAYOUT = """\
What is in here
  manifest.json    every file with size, SHA-256, node, command, exit code and seconds; and what is missing, with why
  controller/      the machine that runs were started from: versions of runbook, Python, the system, packages
  inventory.yml    the nodes as the user described them
  playbook.yml     the stages that were run
  run/             the run: result.json (the verdict), events.jsonl (what happened when), logs/ (one a rank)
  scripts/NODE/    the scripts that start the ranks, as `runbook render` writes them
  nodes/NODE/      what the node's own tools print: system/, network/, firewall/, gpu/, infiniband/, nccl/, pci/,
                   python.txt, processes.txt. Each begins with the command that was run.
"""
TAKEN_OUT = """\
What was taken out
  REDACTED         secrets: values that the inventory takes from the environment, tokens, passwords, private keys, cookies
  user1, user2 …   user names, in home folders too; one person has one number everywhere. One that is also a word (gpu, data)
                   is taken out where a login stands: paths, owners, user=, name@host
  mail1@…          e-mail addresses
  Accounts that come with a system (root, ubuntu, nobody …) are left as they are.
"""
HIDDEN = """\
  host1, host2 …   names of hosts; a node's number is its place in the inventory. One that is also a word (node, gpu0) stays
  10.0.0.1 …       addresses: equal ones stay equal, and two share as long a prefix as they shared before. The last number
                   of an IPv4 address is its own. MAC addresses, GUIDs and IPv6 addresses are numbered.
"""
NOT_HIDDEN = """\
  Names of hosts and addresses are real: `runbook collect --hide-addresses` replaces them as well.
"""


def readme(gathered: Gathered, name: str) -> str:
    hidden = gathered.scrubber.machines is not None
    parts = [
        f"{gathered.scrubber.text(name)}\nmade by `runbook collect`, runbook {runbook.__version__}\n",
        LAYOUT,
        TAKEN_OUT + (HIDDEN if hidden else NOT_HIDDEN) + f"  Here: {counts(gathered)}.\n",
        "How to read it\n  runbook diagnose ARCHIVE.tar.gz    names the root cause in the logs, without unpacking\n",
        "\n".join(["Nodes", *_nodes(gathered)]) + "\n",
    ]
    return "\n".join(parts)


def counts(gathered: Gathered) -> str:
    """`3 secrets, 1 user name, no e-mail address`."""

    def count(number: int, word: str, many: str) -> str:
        return f"{number or 'no'} {word if number in (0, 1) else many}"

    return ", ".join(
        (
            count(gathered.secrets, "secret", "places with a secret"),
            count(gathered.people, "user name", "user names"),
            count(gathered.mails, "e-mail address", "e-mail addresses"),
        )
    )


def _nodes(gathered: Gathered) -> Iterator[str]:
    if not gathered.nodes:
        yield "  none was asked: there was no inventory"
    kinds = Counter((one.node, one.kind) for one in gathered.absent)
    for node in gathered.nodes:
        shown = gathered.scrubber.text(node.node)
        if node.asked:
            yield f"  {shown}: {told(node, *(kinds[shown, kind] for kind in ('missing', 'denied', UNFIT)))}"
        else:
            yield f"  {shown}: not asked: {node.cause}: {gathered.scrubber.text(node.says)}"


def told(node: NodeAnswer, missing: int, denied: int, unfit: int) -> str:
    """`71 answers, 14 tools or files are not there, 6 would need root`."""
    parts = [f"{len(node.entries)} answers"]
    parts += [f"{missing} tools or files are not there"] * bool(missing)
    parts += [f"{denied} need rights that this login does not have"] * bool(denied)
    parts += [f"{unfit} were not what is sent for them, and are left out"] * bool(unfit)
    return ", ".join(parts)
