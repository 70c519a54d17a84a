"""Defines the arguments of every command, in words that users of Ansible and torchrun know; a command itself is in
`cli/COMMAND.py`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import runbook
from runbook.model.safe_text import visible_text

RUN_EXIT_CODES = """\
exit codes:
  0    every stage passed
  1    a check failed: node, cause and remedy are printed (also where the run went on --without-bad nodes)
  2    your files or arguments are wrong; nothing was run
  3    could not tell: a node could not be reached, or a check could not look
  70   a bug of runbook
  130  interrupted, and cleaned up
"""

RUN_EXAMPLES = """\
examples:
  runbook run two_node_allreduce -i mine.yml             # checks, in order, until one fails
  runbook run train.yml -i mine.yml --only-rank 0        # checks, then a launch; of its output only rank 0's
  runbook run train.yml -i mine.yml --start-at train     # the launch at once; reach runs first all the same
  runbook run train.yml -i mine.yml -l 'gn[01-04]' -C    # the ranks, and nothing is touched

"""

REPORT_EPILOG = """\
examples:
  runbook report                                        # the latest run
  runbook report .runbook/runs/20261121-174159-976c38 --out failed.html
  runbook report 20261121-174159-976c38 20261121-174203-3bb94a

exit codes:
  0    the file was written
  2    there is no such run, or the file cannot be written
"""

JOB_EXIT_CODES = """\
exit codes:
  0    done; logs -f, attach: the job ended well
  1    the job failed, or something still lives
  2    there is no such job, or the arguments are wrong
  3    a node could not be asked, or could not tell
  130  interrupted; the job goes on
"""

PS_EXAMPLE = """\
  runbook ps -i mine.yml -v
"""
LOGS_EXAMPLE = """\
  runbook logs -i mine.yml -f --only-rank 0
  runbook logs 20261121-0330 > out.log 2> err.log    # of the job whose id begins so
"""
ATTACH_EXAMPLE = """\
  runbook attach 20261121-0330 -i mine.yml
"""
STOP_EXAMPLE = """\
  runbook stop 20261121-0330 -i mine.yml
"""
CLEAN_EXAMPLE = """\
  runbook logs 20261121-0330 -i mine.yml > kept.log 2>&1 && runbook clean 20261121-0330 -i mine.yml
"""


class Parser(argparse.ArgumentParser):
    """Reports an unknown option with the usage of the command where it was typed, and says what to type instead."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Does as argparse's, but leaves no argument over: a command has no other arguments than its own."""
        self._given = list(sys.argv[1:] if args is None else args)
        known, left = super().parse_known_args(self._given, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return known, left

    def error(self, message: str) -> NoReturn:
        from runbook.cli.usage_hints import corrected_message, suggest_usage

        message = corrected_message(message, self, self._given)
        help = suggest_usage(message, self, self._given)
        shown = visible_text(message)  # an argument cannot add lines
        super().error(f"{shown}\n  help: {help}" if help else shown)


CommandParsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _lazy_command(file: str, function: str = "") -> Callable[[argparse.Namespace], int]:
    """A function that imports and calls the function of `runbook/cli/FILE.py`: `--version` and `lint` must not pay for
    the import of SSH."""

    def call(arguments: argparse.Namespace) -> int:
        code: int = getattr(importlib.import_module(f"runbook.cli.{file}"), function or file)(arguments)
        return code

    return call


def _add_command(
    commands: CommandParsers,
    name: str,
    about: str,
    *,
    says: str = "",
    calls: str = "",
    epilog: str | None = None,
    parents: Sequence[argparse.ArgumentParser] = (),
    prints: bool = False,
) -> argparse.ArgumentParser:
    """Adds a command. `about` is its line in the list of commands; `says` is the beginning of its own help (default:
    `about`, as a sentence); `calls`: FILE or FILE:FUNCTION of `runbook/cli`. `prints`: its output is its result, and
    the loss of output an error."""
    made = commands.add_parser(
        name,
        parents=parents,
        help=about,
        description=says or f"{about[0].upper()}{about[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter if epilog and "\n" in epilog else argparse.HelpFormatter,
    )
    if calls:
        made.set_defaults(func=_lazy_command(*calls.split(":")))
    if prints:
        made.set_defaults(prints=True)
    return made


def _shared_parser() -> argparse.ArgumentParser:
    """A parser for arguments that several commands share, for their `parents`."""
    return argparse.ArgumentParser(add_help=False)


def _add_flag(to: argparse.ArgumentParser, *names: str, help: str) -> None:
    to.add_argument(*names, action="store_true", help=help)


# Options that several commands have.


def _add_inventory_option(to: argparse.ArgumentParser, default: str) -> None:
    kinds = "inventory file, slurm[:JOBID] or kubernetes:[NAMESPACE:]LABELS"
    to.add_argument("-i", "--inventory", metavar="INV", help=f"{kinds} (default: {default})")


def _add_limit_option(to: argparse.ArgumentParser) -> None:
    help = "only these nodes: names, groups, ranges; a:b both, a:!b without b, 'a:&b' in both"
    to.add_argument("-l", "--limit", metavar="PATTERN", help=help)


def _add_variables_option(to: argparse.ArgumentParser) -> None:
    help = "set a variable (-e steps=40); @file.yml reads many"
    to.add_argument("-e", "--extra-vars", metavar="K=V", action="append", default=[], help=help)


def _add_forks_option(to: argparse.ArgumentParser, done: str, *short: str) -> None:
    help = f"nodes {done} at once (default: 64)"
    to.add_argument(*short, "--forks", type=_positive_number_argument, default=64, metavar="N", help=help)


def _add_output_option(to: argparse.ArgumentParser, *more: str) -> None:
    to.add_argument("-o", "--output", choices=["text", *more], default="text", help="what goes to stdout")


def _add_rank_option(to: argparse.ArgumentParser, help: str) -> None:
    to.add_argument("--only-rank", type=_number_argument, action="append", default=[], metavar="N", help=help)


# The commands.


def make_parser() -> argparse.ArgumentParser:
    top: argparse.ArgumentParser = Parser(
        prog="runbook",
        description="Bring up a multi-node GPU job: ordered checks over SSH that stop at the first failure and name "
        "the node, the cause and the command that fixes it.",
        epilog=RUN_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"runbook {runbook.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_run_command(commands)
    _add_render_command(commands)
    _add_lint_command(commands)
    _add_inventory_command(commands)
    _add_diagnose_command(commands)
    _add_report_command(commands)
    _add_collect_command(commands)
    _add_jobs_commands(commands)
    _add_agent_command(commands)
    _add_serve_command(commands)
    about = "what a cause, a check, a lint rule, a variable, a key of a file or a word of the messages is about"
    explain = _add_command(commands, "explain", about, calls="explain:explain_id", prints=True)
    ids = "a cause (firewall-drop), check (ping), lint rule (env.prefix-trap), variable (NCCL_IB_HCA), key (gpus), "
    ids += "word (busbw) or shipped file (inventory.schema.json)"
    explain.add_argument("id", nargs="?", metavar="ID", help=f"{ids}; none lists all")
    about = "print a completion script for your shell"
    completion = _add_command(commands, "completion", about, calls="completion:print_completion", prints=True)
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
    return top


def _add_run_command(commands: CommandParsers) -> None:
    about = "run a playbook's stages on an inventory's nodes and stop at the first that fails"
    says = "Run a playbook: its stages in order, after `reach`, on the nodes of an inventory."
    run = _add_command(commands, "run", about, says=says, calls="run", epilog=RUN_EXAMPLES + RUN_EXIT_CODES)
    default = "the inventory's own `launch:`, after the checks"
    help = f"a file, or the name of a shipped one: two_node_allreduce (default: {default})"
    run.add_argument("playbook", metavar="PLAYBOOK", nargs="?", help=help)
    _add_inventory_option(run, "the one the playbook names")
    _add_limit_option(run)
    for name, help in (
        (("-t", "--tags"), "only stages with one of these tags (a,b)"),
        (("--skip-tags",), "leave out stages with one of these tags"),
    ):
        run.add_argument(*name, metavar="TAGS", action="append", default=[], help=help)
    run.add_argument("--start-at", metavar="STAGE", help="begin with this stage (reach always runs)")
    _add_variables_option(run)
    _add_forks_option(run, "worked on", "-f")
    _add_flag(run, "-C", "--check", help="print the plan and touch nothing")
    _add_output_option(run, "json", "jsonl", "junit")
    where = "where this run's files go (default: .runbook/runs/RUN_ID)"
    run.add_argument("--run-dir", metavar="DIR", help=f"{where}; those of an earlier run there go to DIR.1, DIR.2, …")
    _add_flag(run, "--keep", help="leave scripts, and logs of a launch, on the nodes (workdir/RUN_ID)")
    _add_rank_option(run, "of a launch: show only what this rank writes")
    run.add_argument("-v", "--verbose", action="count", default=0, help="more detail; twice for everything")
    _add_flag(run, "--report", help="leave a page of it all in the run's folder: report.html")
    _add_flag(run, "--detach", help="launches go on without this command, as with `detach: true` in the file")
    help = "go on without nodes that a check proved bad, or could not judge (`when_bad: drop` for every check)"
    _add_flag(run, "--without-bad", help=help)
    help = "stop where --without-bad would leave fewer nodes than that (default: what the playbook says, or 2)"
    run.add_argument("--min-nodes", type=_positive_number_argument, metavar="N", help=help)
    _add_flag(run, "--drain", help="in Slurm: drain the nodes that were proven bad (scontrol update … state=drain)")
    help = "never drain more than this percentage of the cluster's nodes (default: 10)"
    run.add_argument("--drain-at-most", type=_percent_argument, default=10.0, metavar="P", help=help)


def _add_render_command(commands: CommandParsers) -> None:
    about = "write the launch scripts of every node, .sh, .bat or .ps1, without reaching any"
    says = "Write every node's launch scripts: the very files that `run` pushes."
    render = _add_command(commands, "render", about, says=says, calls="render")
    help = "a file, or the name of a shipped one: train_single_gpu (default: the inventory's own `launch:`)"
    render.add_argument("playbook", metavar="PLAYBOOK", nargs="?", help=help)
    _add_inventory_option(render, "the one the playbook names")
    _add_limit_option(render)
    _add_variables_option(render)
    help = "for this shell on every node (default: what the inventory says)"
    render.add_argument("--shell", choices=["sh", "bat", "ps1"], help=help)
    help = "where DIR/NODE/launch.EXT go (default: rendered)"
    render.add_argument("--out", metavar="DIR", default="rendered", help=help)
    _add_flag(render, "-D", "--diff", help="show what would change under DIR, and write nothing")


def _add_lint_command(commands: CommandParsers) -> None:
    lint = _add_command(
        commands,
        "lint",
        "find every mistake in inventories and playbooks, with its place, without reaching any node",
        says="Check inventories and playbooks: YAML, schema, sense, environment variables. 0 clean, 1 findings, "
        "2 nothing to lint.",
        calls="lint",
        epilog="`# noqa: RULE` at the end of a line silences a rule there; `ignore`, `exclude` and `per_file` in "
        ".runbook-lint.yml or [tool.runbook.lint] of pyproject.toml do so for files. `runbook explain` lists the "
        "rules.",
    )
    lint.add_argument("paths", metavar="PATH", nargs="+", help="a file, or a folder to look for .yml and .yaml in")
    _add_output_option(lint, "json", "sarif", "github")


def _add_inventory_command(commands: CommandParsers) -> None:
    about = "list, draw, explain, import or make an inventory"
    inventory = _add_command(
        commands, "inventory", about, says="Look at an inventory, or get one.", calls="inventory", prints=True
    )
    below = inventory.add_subparsers(dest="action", metavar="ACTION", required=True)
    which = _shared_parser()
    _add_inventory_option(which, "inventory.yml here, or the only one in inventories/")
    _add_variables_option(which)
    new = _shared_parser()
    new.add_argument("--out", metavar="FILE", help="write the inventory there (default: print it)")
    _add_flag(new, "--force", help="let --out replace a file")
    new.add_argument("--name", metavar="NAME", help="the inventory's name")

    about = "the nodes, with ranks, addresses, GPUs, groups and logins"
    listed = _add_command(below, "list", about, parents=[which])
    _add_limit_option(listed)
    _add_output_option(listed, "json")
    _add_command(below, "graph", "groups and their nodes as a tree", parents=[which])
    about = "where a node's values come from: every candidate with its place, and the one that wins"
    explain = _add_command(below, "explain", about, parents=[which])
    explain.add_argument("node", metavar="NODE", help="a node, or several: a group, a range, a pattern")
    help = "gpus, address, ssh.user, env.NCCL_DEBUG, vars.x, MASTER_ADDR …; none: all"
    explain.add_argument("key", metavar="KEY", nargs="?", help=help)

    imported = _add_command(
        below,
        "import",
        "make an inventory from a hostfile, an Ansible inventory, a Slurm host list or a batch script",
        says="Make an inventory from a hostfile (DeepSpeed, MPI), an Ansible inventory (INI, YAML, JSON), a "
        "Slurm host list, or a script with `#SBATCH` or torchrun in it. Nothing is run; what has no place in ours is "
        "left as a comment, and secrets are not copied.",
        calls="inventory:import_inventory",
        parents=[new],
    )
    imported.add_argument("file", metavar="FILE", help="a file, `-` for stdin, or a host list itself: 'gn[01-04,07]'")
    kinds = ["hostfile", "ansible", "slurm", "script"]
    imported.add_argument("--from", dest="kind", choices=kinds, help="what FILE is (default: what it looks like)")
    _add_inventory_init_command(below, new)


def _add_inventory_init_command(below: CommandParsers, new: argparse.ArgumentParser) -> None:
    made = _add_command(
        below,
        "init",
        "make an inventory by asking the hosts themselves over SSH, Slurm about a job, or a Kubernetes cluster about "
        "pods",
        says="Log in to the hosts, look at GPUs, network, InfiniBand and Python, and write an inventory. What "
        "could not be found out is left as a comment. Nothing is left on the hosts. 0 written, 3 a host not reached. "
        "`slurm[:JOBID]` instead of hosts: the nodes of that job; `kubernetes:[NAMESPACE:]LABELS`: the pods with "
        "these labels.",
        calls="inventory:init_inventory",
        parents=[new],
    )
    help = "host, user@host, host:port, a Host of ~/.ssh/config, gn[01-04], or slurm[:JOBID] or kubernetes:LABELS alone"
    made.add_argument("hosts", metavar="HOST", nargs="+", help=help)
    made.add_argument("--user", metavar="NAME", help="login name (default: as ssh would)")
    made.add_argument("--key", metavar="FILE", help="private key (default: as ssh would)")
    made.add_argument("--port", type=_port_argument, metavar="N", help="port of sshd (default: as ssh would)")
    made.add_argument("--jump", metavar="NODE", help="jump host, as ssh -J takes it")
    _add_flag(made, "--accept-new", help="trust a host's key the first time")


def _add_diagnose_command(commands: CommandParsers) -> None:
    about = "find in logs what failed: the root cause, the lines that prove it, the remedy"
    says = "Read logs (files, folders such as torchrun's --log-dir, .gz, - for stdin) and name the root cause."
    exits = "exit codes: 0 a cause was found, or the logs are healthy; 1 the logs do not show it; 2 no such file"
    diagnose = _add_command(commands, "diagnose", about, says=says, calls="diagnose", epilog=exits)
    diagnose.add_argument("logs", metavar="LOG", nargs="+", help="a file, a folder, or - for standard input")
    _add_output_option(diagnose, "json")


def _add_report_command(commands: CommandParsers) -> None:
    about = "a run as one HTML file, or two side by side: verdict, fix, timeline, charts, links, ranks"
    says = (
        "Write a run as one HTML file that needs nothing else, from its folder alone; of two runs, what differs. "
        "Its path goes to stdout."
    )
    report = _add_command(commands, "report", about, says=says, calls="report", epilog=REPORT_EPILOG, prints=True)
    help = "a run's folder, or its id (default: the latest run)"
    report.add_argument("run_dir", nargs="?", metavar="RUN_DIR", help=help)
    report.add_argument("other", nargs="?", metavar="OTHER_RUN_DIR", help="a run to compare it with")
    report.add_argument("--out", metavar="FILE.html", help="where it goes (default: report.html in the run's folder)")


def _add_collect_command(commands: CommandParsers) -> None:
    collect = _add_command(
        commands,
        "collect",
        "one archive for a colleague or a forum: the run, the scripts, every node's tools; no secrets, no user names",
        says="Gather versions, inventory, scripts, the run's events and logs, and what every node's tools say, "
        "into one archive, with secrets and user names taken out. Nothing is changed and nothing is left on the nodes.",
        calls="collect",
        epilog="exit codes: 0 everything gathered; 2 wrong files or arguments; 3 a node could not be asked: the "
        "archive is written all the same",
    )
    _add_inventory_option(collect, "the run's, else inventory.yml here or the only one in inventories/")
    _add_limit_option(collect)
    collect.add_argument("--run-dir", metavar="DIR", help="the run's folder (default: the latest of .runbook/runs)")
    collect.add_argument("--out", metavar="FILE", help="default: runbook-collect-NAME-TIME.tar.gz here")
    _add_forks_option(collect, "asked", "-f")
    _add_flag(
        collect, "--hide-addresses", help="replace names and addresses by host1, 10.0.0.1, …, the same ones throughout"
    )
    _add_output_option(collect, "json")


def _add_jobs_commands(commands: CommandParsers) -> None:
    which = _shared_parser()
    _add_inventory_option(which, "inventory.yml here, or the only one in inventories/")
    _add_variables_option(which)
    _add_limit_option(which)
    _add_forks_option(which, "asked")
    one = _shared_parser()
    one.add_argument(
        "job", metavar="JOB", nargs="?", help="its id, or the beginning of it (default: the only one there is)"
    )
    read = _shared_parser()
    _add_rank_option(read, "show only what this rank writes")

    def command(
        name: str, about: str, *more: argparse.ArgumentParser, example: str, prints: bool = False
    ) -> argparse.ArgumentParser:
        epilog = f"example:\n{example}\n{JOB_EXIT_CODES}"
        return _add_command(commands, name, about, calls="jobs", epilog=epilog, parents=[which, *more], prints=prints)

    ps = command(
        "ps",
        "list the jobs on the nodes: what lives, since when, with how much CPU and memory",
        example=PS_EXAMPLE,
        prints=True,
    )
    ps.add_argument("-v", "--verbose", action="count", default=0, help="a line for every rank")
    _add_output_option(ps, "json")
    logs = command("logs", "print what a job's ranks wrote", one, read, example=LOGS_EXAMPLE, prints=True)
    _add_flag(logs, "-f", "--follow", help="go on until the job has ended; Ctrl-C leaves it alone")
    about = "follow a job, and end all of it at the first rank that fails, with the cause; Ctrl-C leaves it alone"
    attach = command("attach", about, one, read, example=ATTACH_EXAMPLE)
    help = (
        "the folder of the run that launched it: its logs, events and result go on there, and nodes that are not "
        "reached are waited for"
    )
    attach.add_argument("--run-dir", metavar="DIR", help=help)
    stop = command("stop", "end a job on every node: TERM, then its grace, then KILL", one, example=STOP_EXAMPLE)
    _add_flag(stop, "--now", help="KILL at once, without grace: no checkpoint is written")
    about = "remove a job's files and logs from the nodes, once none of its ranks lives"
    _add_flag(command("clean", about, one, example=CLEAN_EXAMPLE), "--all", help="every job without a living rank")


def _add_agent_command(commands: CommandParsers) -> None:
    about = "on a node that SSH does not reach: dial a runbook server, and be one of its nodes"
    says = "Dial a runbook server, so that this host can be a node with `connection: agent`."
    agent = _add_command(commands, "agent", about, says=says, calls="agent")
    which = _shared_parser()
    help = "the agent's folder (default: ~/.runbook-agent/HOSTNAME)"
    which.add_argument("--dir", type=Path, metavar="DIR", help=help)
    own = agent.add_subparsers(dest="agent_command", metavar="COMMAND", required=True)

    def command(name: str, about: str) -> argparse.ArgumentParser:
        return _add_command(own, name, about, parents=[which])

    enrol = command("enrol", "make this host known to a server, with a string that `runbook serve enrol` prints there")
    enrol.add_argument("string", metavar="STRING", help="valid once, within an hour")
    enrol.add_argument("--name", metavar="NAME", help="the node's name in inventories (default: this host's)")
    _add_flag(enrol, "--again", help="forget the enrolment that this host has")
    run = command("run", "dial the server and stay; it ends on request, or when the server refuses it for good")
    _add_flag(run, "--as-root", help="as root, who may do everything here: for trying it out")
    command("status", "show who this host is, and whether its agent is connected").set_defaults(prints=True)
    drain = command("drain", "take no new runs; what runs goes on")
    _add_flag(drain, "--undo", help="take new runs again")
    install = command("install", "print a unit for systemd")
    _add_flag(install, "--systemd", help="write it, and start it now and at boot")
    uninstall = command("uninstall", "stop the unit, remove it, and forget the enrolment; jobs go on")
    for one in (install, uninstall):
        one.add_argument("--user", metavar="NAME", help="as root: whom the agent runs as (default: who called sudo)")


def _add_serve_command(commands: CommandParsers) -> None:
    about = "a page and a JSON API for the cluster: nodes, groups, runs"
    serve = _add_command(commands, "serve", about, calls="serve")
    serve.add_argument("--listen", metavar="ADDR:PORT", help="default: 127.0.0.1:8400; any other needs people and TLS")
    serve.add_argument("--data", metavar="DIR", help="where it keeps everything (default: $RUNBOOK_DATA or .runbook)")
    serve.add_argument("--config", metavar="FILE", help="a serve.yml; what the command line says wins")
    help = "no TLS on an address that others reach: who is on the network can read passwords"
    _add_flag(serve, "--insecure-http", help=help)
    below = serve.add_subparsers(dest="action", metavar="ACTION")
    deeds = _add_command(below, "user", "the people who may log in").add_subparsers(
        dest="deed", metavar="ACTION", required=True
    )
    where = _shared_parser()
    where.add_argument("--data", metavar="DIR", default=argparse.SUPPRESS, help="that of the server")
    named = argparse.ArgumentParser(add_help=False, parents=[where])
    named.add_argument("name", metavar="NAME")
    about = "add a person; the password is asked for, or read from stdin"
    add = _add_command(deeds, "add", about, parents=[named])
    add.add_argument("--role", choices=["viewer", "operator", "admin"], required=True)
    _add_command(deeds, "list", "everybody and their roles", parents=[where], prints=True)
    _add_command(deeds, "remove", "remove a person, with sessions and tokens", parents=[named])
    about = "print a link that logs a person in once, for five minutes"
    link = _add_command(deeds, "link", about, parents=[named], prints=True)
    link.add_argument("--url", default="http://127.0.0.1:8400", help="the server's address (default: %(default)s)")
    about = "print a string that makes a host a node, once, within an hour"
    enrol = _add_command(below, "enrol", about, parents=[where], prints=True)
    help = "valid for this node only; it replaces the one enrolled under that name"
    enrol.add_argument("--name", metavar="NODE", help=help)


def _number_argument(text: str) -> int:
    """The number that a text is; argparse would call a wrong one an `invalid _number value`."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _port_argument(text: str) -> int:
    number = _number_argument(text)
    if not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError("must be from 1 to 65535")
    return number


def _percent_argument(text: str) -> float:
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage") from None
    if not 0 <= number <= 100:
        raise argparse.ArgumentTypeError("must be from 0 to 100")
    return number


def _positive_number_argument(text: str) -> int:
    number = _number_argument(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number
