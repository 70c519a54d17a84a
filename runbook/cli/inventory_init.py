"""`runbook inventory init HOST…`: ask the hosts, and write what they said as an inventory."""

from __future__ import annotations

import argparse
from pathlib import Path

from runbook.cli.new_file import refuse_to_replace, write_product
from runbook.cli.run import terminated_like_interrupted
from runbook.cli.source import asked, is_asked
from runbook.importers.survey import Login, SurveyResult, parse_hosts, survey
from runbook.importers.survey_draft import draft_of
from runbook.load.write import written
from runbook.model.commands import word
from runbook.model.errors import Unreachable
from runbook.model.visible import visible
from runbook.report.output import stderr

UNREACHED = 3
HERE = {
    "ssh-host-key-unknown": "--accept-new trusts the key that it shows now",
    "ssh-auth-failed": "--user NAME and --key FILE say who logs in, and with what",
    "ssh-refused": "--port N, or HOST:PORT, names another port",
}
"""Remedies speak of the inventory, which is only being made: what to type here instead."""


def init_inventory(arguments: argparse.Namespace) -> int:
    """0 written; 2 wrong arguments; 3 a host was not reached: it is a comment in `--out`, and nothing is printed."""
    refuse_to_replace(arguments.out, force=arguments.force)
    if len(arguments.hosts) == 1 and is_asked(arguments.hosts[0]):
        write_product(asked(arguments.hosts[0], arguments.name), arguments.out)
        return 0
    login = Login(arguments.user, arguments.key, arguments.port, arguments.jump, arguments.accept_new)
    hosts = parse_hosts(arguments.hosts, login)
    if stderr.isatty():
        stderr.line(f"asking {len(hosts)} host{'s' * (len(hosts) > 1)} …")
    with terminated_like_interrupted():
        heard = survey(hosts)
    for name, failure in heard.failures.items():
        stderr.tell(_why(name, failure))
    for name, first in heard.same.items():
        stderr.line(f"warning: {name} is the same machine as {first}: left out")
    if not heard.told:
        stderr.line("no host was reached; nothing was written")
        return UNREACHED
    if heard.failures and arguments.out is None:
        some = "the host that was" if len(heard.told) == 1 else f"the {len(heard.told)} hosts that were"
        stderr.line(f"nothing was written: mend that, or give --out FILE for an inventory of {some} reached")
        return UNREACHED
    name = arguments.name or (Path(arguments.out).stem if arguments.out else "cluster")
    write_product(written(draft_of(hosts, heard, name)), arguments.out)
    _next(arguments.out, heard)
    return UNREACHED if heard.failures else 0


def _why(name: str, failure: Unreachable) -> str:
    lines = [f"{name} was not reached: {failure.cause}", f"  {failure.says.removeprefix(f'{name}: ')}"]
    lines += [f"  {'evidence' if number == 0 else '':<8}  {line}" for number, line in enumerate(failure.evidence)]
    lines.append(f"  fix       {failure.remedy}")
    lines += [f"  or here   {HERE[failure.cause]}"] if failure.cause in HERE else []
    lines += [f"  more      runbook explain {failure.cause}"]
    return "\n".join(map(visible, lines)) + "\n\n"


def _next(out: str | None, heard: SurveyResult) -> None:
    if out is not None:
        count = f"{len(heard.told)} node{'s' * (len(heard.told) > 1)}"
        stderr.line(f"wrote {out}: {count}. Look it over, then: runbook run two_node_allreduce -i {word(out)}")
