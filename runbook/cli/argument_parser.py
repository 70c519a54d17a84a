"""The arguments of every command, in the words that people of Ansible and torchrun use; a command itself is
`cli/COMMAND.py`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeAlias

import runbook
from runbook.model.escaped_text import visible

EXITS = """\
exit codes:
  0    every stage passed
  1    a check failed: node, cause and remedy are printed (also where the run went on --without-bad nodes)
  2    your files or arguments are wrong; nothing was run
  3    could not tell: a node could not be reached, or a check could not look
  70   a bug of runbook
  130  interrupted, and cleaned up
"""

RUN = """\
examples:
  runbook run two_node_allreduce -i mine.yml             # checks, in order, until one fails
  runbook run train.yml -i mine.yml --only-rank 0        # checks, then a launch; of its output only rank 0's
  runbook run train.yml -i mine.yml --start-at train     # the launch at once; reach runs first all the same
  runbook run train.yml -i mine.yml -l 'gn[01-04]' -C    # the ranks, and nothing is touched

"""

REPORT = """\
examples:
  runbook report                                        # the latest run
  runbook report .runbook/runs/20261121-174159-976c38 --out failed.html
  runbook report 20261121-174159-976c38 20261121-174203-3bb94a

exit codes:
  0    the file was written
  2    there is no such run, or the file cannot be written
"""

JOB_EXITS = """\
exit codes:
  0    done; logs -f, attach: the job ended well
  1    the job failed, or something still lives
  2    there is no such job, or the arguments are wrong
  3    a node could not be asked, or could not tell
  130  interrupted; the job goes on
"""

PS = """\
  runbook ps -i mine.yml -v
"""
LOGS = """\
  runbook logs -i mine.yml -f --only-rank 0
  runbook logs 20261121-0330 > out.log 2> err.log    # of the job whose id begins so
"""
ATTACH = """\
  runbook attach 20261121-0330 -i mine.yml
"""
STOP = """\
  runbook stop 20261121-0330 -i mine.yml
"""
CLEAN = """\
  runbook logs 20261121-0330 -i mine.yml > kept.log 2>&1 && runbook clean 20261121-0330 -i mine.yml
"""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(visible(message))  # an argument cannot add lines


Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _calls(file: str, function: str = "") -> Callable[[argparse.Namespace], int]:
    """The function of `runbook/cli/FILE.py`, imported when it is called: `--version` and `lint` must not pay for
    SSH."""

    def call(arguments: argparse.Namespace) -> int:
        code: int = getattr(importlib.import_module(f"runbook.cli.{file}"), function or file)(arguments)
        return code

    return call


# Options that several commands have.


def _inventory_option(to: argparse.ArgumentParser, default: str) -> None:
    kinds = "inventory file, slurm[:JOBID] or kubernetes:[NAMESPACE:]LABELS"
    to.add_argument("-i", "--inventory", metavar="INV", help=f"{kinds} (default: {default})")


def _limit_option(to: argparse.ArgumentParser) -> None:
    help = "only these nodes: names, groups, ranges, a:b, !c, &d"
    to.add_argument("-l", "--limit", metavar="PATTERN", help=help)


def _variables_option(to: argparse.ArgumentParser) -> None:
    help = "set a variable; @file.yml reads many"
    to.add_argument("-e", "--extra-vars", metavar="K=V", action="append", default=[], help=help)


def _forks_option(to: argparse.ArgumentParser, done: str, *short: str) -> None:
    help = f"nodes {done} at once (default: 64)"
    to.add_argument(*short, "--forks", type=_from_one, default=64, metavar="N", help=help)


def _output_option(to: argparse.ArgumentParser, *more: str) -> None:
    to.add_argument("-o", "--output", choices=["text", *more], default="text", help="what goes to stdout")


# The commands.


def parser() -> argparse.ArgumentParser:
    top: argparse.ArgumentParser = Parser(
        prog="runbook",
        description="Bring up a multi-node GPU job: ordered checks over SSH that stop at the first failure and name "
        "the node, the cause and the command that fixes it.",
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"runbook {runbook.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _run(commands)
    _render(commands)
    _lint(commands)
    _inventory(commands)
    diagnose = commands.add_parser(
        "diagnose",
        help="find in logs what failed: the root cause, the lines that prove it, the remedy",
        description="Read logs (files, folders such as torchrun's --log-dir, .gz, - for stdin) and name the root "
        "cause.",
        epilog="exit codes: 0 a cause was found, or the logs are healthy; 1 the logs do not tell; 2 no such file",
    )
    diagnose.add_argument("logs", metavar="LOG", nargs="+", help="a file, a folder, or - for standard input")
    diagnose.set_defaults(func=_calls("diagnose"))
    _output_option(diagnose, "json")
    _report(commands)
    _collect(commands)
    _jobs(commands)
    _agent(commands)
    _serve(commands)
    explain = commands.add_parser("explain", help="what a cause, a check, a lint rule or a variable is about")
    explain.add_argument(
        "id",
        nargs="?",
        metavar="ID",
        help="a cause (firewall-drop), a check (ping), a lint rule (env.prefix-trap) or a variable (NCCL_IB_HCA); "
        "none lists all",
    )
    explain.set_defaults(func=_calls("explain", "explain_id"))
    completion = commands.add_parser("completion", help="print a completion script for your shell")
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
    completion.set_defaults(func=_calls("completion", "print_completion"))
    return top


def _run(commands: Commands) -> None:
    run = commands.add_parser(
        "run",
        help="run a playbook's stages on an inventory's nodes and stop at the first that fails",
        description="Run a playbook: its stages in order, after `reach`, on the nodes of an inventory.",
        epilog=RUN + EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.set_defaults(func=_calls("run"))
    run.add_argument(
        "playbook",
        metavar="PLAYBOOK",
        nargs="?",
        help="a file, or the name of a shipped one: two_node_allreduce (default: the inventory's own `launch:`, "
        "after the checks)",
    )
    _inventory_option(run, "the one the playbook names")
    _limit_option(run)
    run.add_argument(
        "-t", "--tags", metavar="TAGS", action="append", default=[], help="only stages with one of these tags"
    )
    run.add_argument(
        "--skip-tags", metavar="TAGS", action="append", default=[], help="leave out stages with these tags"
    )
    run.add_argument("--start-at", metavar="STAGE", help="begin with this stage (reach always runs)")
    _variables_option(run)
    _forks_option(run, "worked on", "-f")
    run.add_argument("-C", "--check", action="store_true", help="print the plan and touch nothing")
    _output_option(run, "json", "jsonl", "junit")
    run.add_argument(
        "--run-dir",
        metavar="DIR",
        help="where this run's files go (default: .runbook/runs/RUN_ID); those of an earlier run there go to DIR.1, "
        "DIR.2, …",
    )
    run.add_argument(
        "--keep", action="store_true", help="leave scripts, and logs of a launch, on the nodes (workdir/RUN_ID)"
    )
    run.add_argument(
        "--only-rank",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="of a launch: show only what this rank writes",
    )
    run.add_argument("-v", "--verbose", action="count", default=0, help="more detail; twice for everything")
    run.add_argument("--report", action="store_true", help="leave a page of it all in the run's folder: report.html")
    _bad_nodes(run)


def _bad_nodes(run: argparse.ArgumentParser) -> None:
    """Of `run`: what goes on without this command, and without nodes that are proven bad."""
    run.add_argument(
        "--detach", action="store_true", help="launches go on without this command, as with `detach: true` in the file"
    )
    run.add_argument(
        "--without-bad",
        action="store_true",
        help="go on without nodes that a check proved bad, or could not judge (`when_bad: drop` for every check)",
    )
    run.add_argument(
        "--min-nodes",
        type=_from_one,
        metavar="N",
        help="with fewer nodes than that the run does not go on (default: what the playbook says, or 2)",
    )
    run.add_argument(
        "--drain",
        action="store_true",
        help="nodes of a Slurm cluster that were proven bad: scontrol update … state=drain",
    )
    run.add_argument(
        "--drain-at-most",
        type=_percent,
        default=10.0,
        metavar="P",
        help="never drain more than this percentage of the cluster's nodes (default: 10)",
    )


def _render(commands: Commands) -> None:
    render = commands.add_parser(
        "render",
        help="write the launch scripts of every node, .sh, .bat or .ps1, without reaching any",
        description="Write every node's launch scripts: the very files that `run` pushes.",
    )
    render.set_defaults(func=_calls("render"))
    render.add_argument(
        "playbook",
        metavar="PLAYBOOK",
        nargs="?",
        help="a file, or the name of a shipped one: train_single_gpu (default: the inventory's own `launch:`)",
    )
    _inventory_option(render, "the one the playbook names")
    _limit_option(render)
    _variables_option(render)
    render.add_argument(
        "--shell", choices=["sh", "bat", "ps1"], help="for this shell on every node (default: what the inventory says)"
    )
    render.add_argument(
        "--out", metavar="DIR", default="rendered", help="where DIR/NODE/launch.EXT go (default: rendered)"
    )
    render.add_argument("-D", "--diff", action="store_true", help="show what would change under DIR, and write nothing")


def _lint(commands: Commands) -> None:
    lint = commands.add_parser(
        "lint",
        help="find every mistake in inventories and playbooks, with its place, without reaching any node",
        description="Check inventories and playbooks: YAML, schema, sense, environment variables. 0 clean, 1 findings, "
        "2 nothing to lint.",
        epilog="`# noqa: RULE` at the end of a line silences a rule there; `ignore`, `exclude` and `per_file` in "
        ".runbook-lint.yml or [tool.runbook.lint] of pyproject.toml do so for files. `runbook explain` lists the "
        "rules.",
    )
    lint.set_defaults(func=_calls("lint"))
    lint.add_argument("paths", metavar="PATH", nargs="+", help="a file, or a folder to look for .yml and .yaml in")
    _output_option(lint, "json", "sarif", "github")


def _inventory(commands: Commands) -> None:
    about = "list, draw, explain, import or make an inventory"
    inventory = commands.add_parser("inventory", help=about, description="Look at an inventory, or get one.")
    below = inventory.add_subparsers(dest="action", metavar="ACTION", required=True)
    which = argparse.ArgumentParser(add_help=False)
    _inventory_option(which, "the only one here or in inventories/")
    _variables_option(which)
    new = argparse.ArgumentParser(add_help=False)
    new.add_argument("--out", metavar="FILE", help="write the inventory there (default: print it)")
    new.add_argument("--force", action="store_true", help="let --out replace a file")
    new.add_argument("--name", metavar="NAME", help="the inventory's name")

    listed = below.add_parser("list", parents=[which], help="the nodes, with ranks, addresses, GPUs, groups and logins")
    _limit_option(listed)
    _output_option(listed, "json")
    below.add_parser("graph", parents=[which], help="groups and their nodes as a tree")
    explain = below.add_parser(
        "explain",
        parents=[which],
        help="where a node's values come from: every candidate with its place, and the one that wins",
    )
    inventory.set_defaults(func=_calls("inventory"))
    explain.add_argument("node", metavar="NODE", help="a node, or several: a group, a range, a pattern")
    explain.add_argument(
        "key",
        metavar="KEY",
        nargs="?",
        help="gpus, address, ssh.user, env.NCCL_DEBUG, vars.x, MASTER_ADDR …; none: all",
    )
    _inventory_import(below, new)
    _inventory_init(below, new)


def _inventory_import(below: Commands, new: argparse.ArgumentParser) -> None:
    imported = below.add_parser(
        "import",
        parents=[new],
        help="make an inventory from a hostfile, an Ansible inventory or a Slurm host list",
        description="Make an inventory from a hostfile (DeepSpeed, MPI), an Ansible inventory (INI, YAML, JSON) or a "
        "Slurm host list. Nothing is run; what has no place in ours is left as a comment, and secrets are not copied.",
    )
    imported.set_defaults(func=_calls("inventory", "import_inventory"))
    imported.add_argument("file", metavar="FILE", help="a file, `-` for stdin, or a host list itself: 'gn[01-04,07]'")
    imported.add_argument(
        "--from",
        dest="kind",
        choices=["hostfile", "ansible", "slurm"],
        help="what FILE is (default: what it looks like)",
    )


def _inventory_init(below: Commands, new: argparse.ArgumentParser) -> None:
    made = below.add_parser(
        "init",
        parents=[new],
        help="make an inventory by asking the hosts themselves over SSH, Slurm about a job, or a Kubernetes cluster "
        "about pods",
        description="Log in to the hosts, look at GPUs, network, InfiniBand and Python, and write an inventory. What "
        "could not be found out is left as a comment. Nothing is left on the hosts. 0 written, 3 a host not reached. "
        "`slurm[:JOBID]` instead of hosts: the nodes of that job; `kubernetes:[NAMESPACE:]LABELS`: the pods with "
        "these labels.",
    )
    made.set_defaults(func=_calls("inventory", "init_inventory"))
    made.add_argument(
        "hosts",
        metavar="HOST",
        nargs="+",
        help="host, user@host, host:port, a Host of ~/.ssh/config, gn[01-04], or slurm[:JOBID] or kubernetes:LABELS "
        "alone",
    )
    made.add_argument("--user", metavar="NAME", help="login name (default: as ssh would)")
    made.add_argument("--key", metavar="FILE", help="private key (default: as ssh would)")
    made.add_argument("--port", type=_port, metavar="N", help="port of sshd (default: as ssh would)")
    made.add_argument("--jump", metavar="NODE", help="jump host, as ssh -J takes it")
    made.add_argument("--accept-new", action="store_true", help="trust a host's key the first time")


def _report(commands: Commands) -> None:
    report = commands.add_parser(
        "report",
        help="a run as one HTML file, or two side by side: verdict, fix, timeline, charts, links, ranks",
        description="Write a run as one HTML file that needs nothing else, from its folder alone; of two runs, what "
        "differs. "
        "Its path goes to stdout.",
        epilog=REPORT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.set_defaults(func=_calls("report"))
    report.add_argument(
        "run_dir", nargs="?", metavar="RUN_DIR", help="a run's folder, or its id (default: the latest run)"
    )
    report.add_argument("other", nargs="?", metavar="OTHER_RUN_DIR", help="a run to compare it with")
    report.add_argument("--out", metavar="FILE.html", help="where it goes (default: report.html in the run's folder)")


def _collect(commands: Commands) -> None:
    collect = commands.add_parser(
        "collect",
        help="one archive for a colleague or a forum: the run, the scripts, every node's tools; no secrets, no user "
        "names",
        description="Gather versions, inventory, scripts, the run's events and logs, and what every node's tools say, "
        "into one archive, with secrets and user names taken out. Nothing is changed and nothing is left on the nodes.",
        epilog="exit codes: 0 everything gathered; 2 wrong files or arguments; 3 a node could not be asked: the "
        "archive "
        "is written all the same",
    )
    collect.set_defaults(func=_calls("collect"))
    _inventory_option(collect, "the run's, else the only one here")
    _limit_option(collect)
    collect.add_argument("--run-dir", metavar="DIR", help="the run's folder (default: the latest of .runbook/runs)")
    collect.add_argument("--out", metavar="FILE", help="default: runbook-collect-NAME-TIME.tar.gz here")
    _forks_option(collect, "asked", "-f")
    collect.add_argument(
        "--hide-addresses",
        action="store_true",
        help="replace names and addresses by host1, 10.0.0.1, …, the same ones throughout",
    )
    _output_option(collect, "json")


def _jobs(commands: Commands) -> None:
    which = argparse.ArgumentParser(add_help=False)
    _inventory_option(which, "the only one here or in inventories/")
    _variables_option(which)
    _limit_option(which)
    _forks_option(which, "asked")
    one = argparse.ArgumentParser(add_help=False)
    one.add_argument("job", metavar="JOB", nargs="?", help="its id or how that begins (default: the only one there is)")
    read = argparse.ArgumentParser(add_help=False)
    read.add_argument(
        "--only-rank", type=int, action="append", default=[], metavar="N", help="show only what this rank writes"
    )

    def command(name: str, parents: list[argparse.ArgumentParser], about: str, example: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name,
            parents=parents,
            help=about,
            description=f"{about[0].upper()}{about[1:]}.",
            epilog=f"example:\n{example}\n{JOB_EXITS}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(func=_calls("jobs"))
        return made

    ps = command("ps", [which], "list the jobs on the nodes: what lives, since when, with how much CPU and memory", PS)
    ps.add_argument("-v", "--verbose", action="count", default=0, help="a line for every rank")
    _output_option(ps, "json")
    logs = command("logs", [which, one, read], "print what a job's ranks wrote", LOGS)
    logs.add_argument(
        "-f", "--follow", action="store_true", help="go on until the job has ended; Ctrl-C leaves it alone"
    )
    about = "follow a job, and end all of it at the first rank that fails, with the cause; Ctrl-C leaves it alone"
    attach = command("attach", [which, one, read], about, ATTACH)
    attach.add_argument(
        "--run-dir",
        metavar="DIR",
        help="the folder of the run that launched it: its logs, events and result go on there, and nodes that are "
        "not reached "
        "are waited for",
    )
    stop = command("stop", [which, one], "end a job on every node: TERM, then its grace, then KILL", STOP)
    stop.add_argument("--now", action="store_true", help="KILL at once, without grace: no checkpoint is written")
    about = "remove a job's files from the nodes, its logs too, once no rank of it lives"
    clean = command("clean", [which, one], about, CLEAN)
    clean.add_argument("--all", action="store_true", help="every job of which no rank lives")


def _agent(commands: Commands) -> None:
    agent = commands.add_parser(
        "agent",
        help="on a node that SSH does not reach: dial a runbook server, and be one of its nodes",
        description="Dial a runbook server, so that this host can be a node with `connection: agent`.",
    )
    agent.set_defaults(func=_calls("agent"))
    which = argparse.ArgumentParser(add_help=False)
    which.add_argument(
        "--dir", type=Path, metavar="DIR", help="the agent's folder (default: ~/.runbook-agent/HOSTNAME)"
    )
    own = agent.add_subparsers(dest="agent_command", metavar="COMMAND", required=True)

    def command(name: str, about: str) -> argparse.ArgumentParser:
        return own.add_parser(name, parents=[which], help=about, description=f"{about[0].upper()}{about[1:]}.")

    enrol = command("enrol", "make this host known to a server, with a string that `runbook serve enrol` prints there")
    enrol.add_argument("string", metavar="STRING", help="it is for one use, within the hour")
    enrol.add_argument("--name", metavar="NAME", help="the node's name in inventories (default: this host's)")
    enrol.add_argument("--again", action="store_true", help="forget the enrolment that this host has")
    run = command("run", "dial the server and stay; it ends on request, or when the server refuses it for good")
    run.add_argument("--as-root", action="store_true", help="as root, who may do everything here: for trying it out")
    command("status", "show who this host is, and whether its agent is connected")
    drain = command("drain", "take no new runs; what runs goes on")
    drain.add_argument("--undo", action="store_true", help="take new runs again")
    install = command("install", "print a unit for systemd")
    install.add_argument("--systemd", action="store_true", help="write it, and start it now and at boot")
    uninstall = command("uninstall", "stop the unit, remove it, and forget the enrolment; jobs go on")
    for one in (install, uninstall):
        one.add_argument("--user", metavar="NAME", help="as root: whom the agent runs as (default: who called sudo)")


def _serve(commands: Commands) -> None:
    about = "a page and a JSON API for the cluster: nodes, groups, runs (pip install 'runbook[serve]')"
    serve = commands.add_parser("serve", help=about, description=f"{about[0].upper()}{about[1:]}.")
    serve.add_argument("--listen", metavar="ADDR:PORT", help="default: 127.0.0.1:8400; any other needs people and TLS")
    serve.add_argument("--data", metavar="DIR", help="where it keeps everything (default: $RUNBOOK_DATA or .runbook)")
    serve.add_argument("--config", metavar="FILE", help="a serve.yml; what the command line says wins")
    serve.add_argument(
        "--insecure-http",
        action="store_true",
        help="no TLS on an address that others reach: who is on the network can read passwords",
    )
    serve.set_defaults(func=_calls("serve"))
    below = serve.add_subparsers(dest="action", metavar="ACTION")
    user = below.add_parser("user", help="the people who may log in")
    deeds = user.add_subparsers(dest="deed", metavar="DEED", required=True)
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--data", metavar="DIR", default=argparse.SUPPRESS, help="that of the server")
    add = deeds.add_parser("add", parents=[where], help="add a person; the password is asked for, or read from stdin")
    add.add_argument("name", metavar="NAME")
    add.add_argument("--role", choices=["viewer", "operator", "admin"], required=True)
    deeds.add_parser("list", parents=[where], help="everybody and their roles")
    remove = deeds.add_parser("remove", parents=[where], help="remove a person, with sessions and tokens")
    remove.add_argument("name", metavar="NAME")
    enrol = below.add_parser(
        "enrol", parents=[where], help="print a string that makes a host a node, once, within an hour"
    )
    enrol.add_argument(
        "--name", metavar="NODE", help="valid for this node only; it replaces the one enrolled under that name"
    )
    link = deeds.add_parser("link", parents=[where], help="print a link that logs a person in once, for five minutes")
    link.add_argument("name", metavar="NAME")
    link.add_argument("--url", default="http://127.0.0.1:8400", help="the server's address (default: %(default)s)")


def _port(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError("must be from 1 to 65535")
    return number


def _percent(text: str) -> float:
    number = float(text.removesuffix("%"))
    if not 0 <= number <= 100:
        raise argparse.ArgumentTypeError("must be from 0 to 100")
    return number


def _from_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number
