"""`runbook inventory …`: look at an inventory, or make one."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from runbook.cli.source import inventory_source
from runbook.lint.files import leads_out
from runbook.lint.redaction import secrets_in
from runbook.load.env import Environment
from runbook.load.extra_vars import parse_extra
from runbook.load.inventory import load_inventory_with_origins
from runbook.load.node_sets import select
from runbook.load.origins import Origins
from runbook.model.errors import FilesWrong, Problem
from runbook.model.inventory import Inventory
from runbook.model.redact import Redactor, secrets_of
from runbook.report.output import stdout

SUFFIXES = (".yml", ".yaml")


def inventory(arguments: argparse.Namespace) -> int:
    """0 done; 2 the files or arguments are wrong; 3 (`init`) a host was not reached."""
    if arguments.action == "import":
        from runbook.cli.inventory_import import import_inventory

        return import_inventory(arguments)
    if arguments.action == "init":
        from runbook.cli.inventory_init import init_inventory

        return init_inventory(arguments)
    found, origins = load(arguments)
    text = Redactor([*secrets_of(found), *secrets_in(origins.document)]).text(shown(arguments, found, origins))
    if arguments.action == "list" and arguments.output == "json":
        stdout.document(text)
    else:
        stdout.tell(text)
    return 0


def load(arguments: argparse.Namespace) -> tuple[Inventory, Origins]:
    """The inventory that is meant. Variables of `{env: NAME}` need not be set: what they hold is not shown."""
    path = inventory_source(arguments.inventory) if arguments.inventory is not None else only_one_here()
    return load_inventory_with_origins(
        path, extra_vars=parse_extra(arguments.extra_vars), environ=Environment(os.environ)
    )


def only_one_here() -> Path:
    """`inventory.yml` here, or the one file in `inventories/`. Raises FilesWrong where that is none or several."""
    here = [Path(f"inventory{suffix}") for suffix in SUFFIXES if Path(f"inventory{suffix}").is_file()]
    folder = Path("inventories")
    there = sorted(file for file in folder.glob("*") if file.suffix in SUFFIXES and file.is_file())
    outside = {file: real for file in here + there if (real := leads_out(file, [str(Path.cwd().resolve())]))}
    candidates = [file for file in here + there if file not in outside]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        message = f"which inventory? There are {len(candidates)}: {', '.join(map(str, candidates[:6]))}"
        raise FilesWrong([Problem("arguments.which-inventory", message, None, f"name one: -i {candidates[0]}")])
    for file, real in outside.items():
        message = f"{file} is a link that leads out of this folder, to {real}: it is not taken without being named"
        raise FilesWrong([Problem("arguments.no-inventory", message, None, f"name it: -i {file}")])
    message = "there is no inventory.yml here, and no inventories/ with one in it"
    help = "name one: -i FILE; or make one: runbook inventory init HOST…, runbook inventory import FILE"
    raise FilesWrong([Problem("arguments.no-inventory", message, None, help)])


def shown(arguments: argparse.Namespace, found: Inventory, origins: Origins) -> str:
    from runbook.report.inventory_listing import graph_text, list_json, list_text
    from runbook.report.inventory_values import explain_text

    if arguments.action == "graph":
        return graph_text(found)
    if arguments.action == "explain":
        return explain_text(found, origins, arguments.node, arguments.key)
    nodes = select(arguments.limit, found) if arguments.limit is not None else found.nodes
    return list_json(found, nodes) if arguments.output == "json" else list_text(found, nodes)
