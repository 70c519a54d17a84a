"""Launch scripts from templates. A value that did not pass through the shell's own quoting stops the rendering."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jinja2

import runbook
from runbook.launch import quote
from runbook.launch.environment import node_environment, rank_environment
from runbook.launch.ranks import rank_table
from runbook.model.inventory import Inventory, Node
from runbook.model.secret import Secret


@dataclass(frozen=True, slots=True)
class Script:
    """Files for one node, by name: the script, and `NAME.env` with secrets where there are any (mode 0600 both)."""

    name: str
    files: Mapping[str, bytes]


def _only_literals(value: object) -> object:
    if not isinstance(value, (quote.Literal, jinja2.Undefined)):
        raise TypeError(f"the template printed {value!r} without quoting it")
    return value


@functools.cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("runbook.launch"),
        undefined=jinja2.StrictUndefined,
        finalize=_only_literals,
        autoescape=False,  # shells are not HTML: `finalize` refuses what was not quoted for this shell
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(sh=quote.sh, name=quote.name, comment=quote.comment, raw=quote.raw)
    return environment


def render_sh(
    inventory: Inventory, node: Node, *, name: str, command: Sequence[str], made_from: Sequence[str]
) -> Script:
    """A POSIX script `NAME.sh` that starts `command` as every rank of `node`, or as one: `sh NAME.sh LOCAL_RANK`.

    A word of `command` that starts with `./` is a file beside the script. Raises CannotQuote.
    """
    environment = node_environment(inventory, node)
    ranks = [rank for rank in rank_table(inventory) if rank.node == node.name]
    secrets = {key: value for key, value in environment.items() if isinstance(value, Secret)}
    text = (
        _templates()
        .get_template("launch.sh.j2")
        .render(
            version=runbook.__version__,
            node=node,
            ranks=[(rank, rank_environment(rank)) for rank in ranks],
            world_size=inventory.world_size,
            made_from=made_from,
            environment={key: value for key, value in environment.items() if key not in secrets},
            secrets=f"{name}.env" if secrets else None,
            command=command,
            file=f"{name}.sh",
        )
    )
    files = {f"{name}.sh": text.encode()}
    if secrets:
        lines = [f"export {quote.name(key)}={quote.sh(value.reveal())}\n" for key, value in secrets.items()]
        files[f"{name}.env"] = "".join(lines).encode()
    return Script(f"{name}.sh", files)
