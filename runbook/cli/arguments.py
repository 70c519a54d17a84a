"""The command line, in the words that people of Ansible and torchrun use."""

from __future__ import annotations

import argparse

import runbook

EXITS = """\
exit codes:
  0    every stage passed
  1    a check failed: node, cause and remedy are printed
  2    your files or arguments are wrong; nothing was run
  3    could not tell: a node could not be reached, or a check could not look
  70   a bug of runbook
  130  interrupted, and cleaned up
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="runbook",
        description="Bring up a multi-node GPU job: ordered checks over SSH that stop at the first failure and name "
        "the node, the cause and the command that fixes it.",
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"runbook {runbook.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _run(commands)
    explain = commands.add_parser("explain", help="what a cause or a check is about, and how to fix it")
    explain.add_argument(
        "id", nargs="?", metavar="ID", help="a cause (firewall-drop) or a check (ping); none lists all"
    )
    completion = commands.add_parser("completion", help="print a completion script for your shell")
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
    return top


def _run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser(
        "run",
        help="run a playbook's stages on an inventory's nodes and stop at the first that fails",
        description="Run a playbook: its stages in order, after `reach`, on the nodes of an inventory.",
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("playbook", metavar="PLAYBOOK", help="a file, or the name of a shipped one: two_node_allreduce")
    run.add_argument("-i", "--inventory", metavar="INV", help="inventory file (default: the one the playbook names)")
    run.add_argument("-l", "--limit", metavar="PATTERN", help="only these nodes: names, groups, ranges, a:b, !c, &d")
    run.add_argument(
        "-t", "--tags", metavar="TAGS", action="append", default=[], help="only stages with one of these tags"
    )
    run.add_argument(
        "--skip-tags", metavar="TAGS", action="append", default=[], help="leave out stages with these tags"
    )
    run.add_argument("--start-at", metavar="STAGE", help="begin with this stage (reach always runs)")
    run.add_argument(
        "-e", "--extra-vars", metavar="K=V", action="append", default=[], help="set a variable; @file.yml reads many"
    )
    run.add_argument(
        "-f", "--forks", type=_forks, default=64, metavar="N", help="nodes worked on at once (default: 64)"
    )
    run.add_argument("-C", "--check", action="store_true", help="print the plan and touch nothing")
    run.add_argument(
        "-o", "--output", choices=["text", "json", "jsonl", "junit"], default="text", help="what goes to stdout"
    )
    run.add_argument("--run-dir", metavar="DIR", help="where this run's files go (default: .runbook/runs/RUN_ID)")
    run.add_argument("--keep", action="store_true", help="leave the pushed scripts on the nodes (workdir/RUN_ID)")
    run.add_argument("-v", "--verbose", action="count", default=0, help="more detail; twice for everything")


def _forks(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number
