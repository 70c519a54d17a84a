"""What the shipped table knows of an environment variable, as `explain` prints it."""

from __future__ import annotations

from collections.abc import Iterator

from runbook.lint.variables import Variable

_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "switch": "0 or 1, and no words",
    "boolean": "0 or 1, or a word such as true, yes, on",
    "choice": "one of the values below",
    "set": "one or more of the values below",
    "level": "how far apart two devices may be: one of the values below, or its number",
    "per-function": "algorithms or protocols of the values below, also per function: "
    "`allreduce:ring,tree;broadcast:ring`",
    "interfaces": "names of network interfaces: a prefix, `=` for exact names, `^` for all but these, commas",
    "adapters": "names of InfiniBand adapters: a prefix, `=` for exact names, `^` for all but these, `name:port`, "
    "commas",
    "names": "names of network interfaces, whole, with commas",
    "path": "a path",
    "text": "text",
}


def variable_page(variable: Variable) -> str:
    lines = [f"{variable.name}: read by {variable.reader}", ""]
    lines += [f"{label + ':':<12} {text}" for label, text in _facts(variable)]
    return "\n".join(lines) + "\n"


def _facts(variable: Variable) -> Iterator[tuple[str, str]]:
    if variable.never:
        yield "exists", f"no release of {variable.reader} reads it"
    else:
        yield "value", f"{_KINDS.get(variable.kind, variable.kind)}{_bounds(variable)}"
    if variable.choices:
        more = ", and others" if variable.open_choice else ""
        case = "; in exactly this case" if variable.exact_case else ""
        yield "values", ", ".join(variable.choices) + more + case
    if variable.kind == "set":
        yield "joined by", f"`{variable.separator}`"
    if variable.since:
        yield "since", f"{variable.reader} {variable.since}"
    if variable.deprecated:
        yield "deprecated", f"since {variable.reader} {variable.deprecated}"
    if variable.removed:
        yield "removed", f"in {variable.reader} {variable.removed}: newer releases do not read it"
    if variable.last:
        yield "last read by", f"{variable.reader} {variable.last}: newer releases do not read it"
    if variable.use:
        yield "instead", variable.use
    if variable.set_by_runbook:
        yield "set by", "runbook itself, for every rank"
    if variable.turns_off:
        yield "turns off", variable.turns_off
    if variable.leftover:
        yield (
            "debugging",
            f"{' or '.join(variable.leftover)} is for debugging" + (f": it {variable.costs}" if variable.costs else ""),
        )
    if variable.mistaken:
        meant = ", ".join(f"{wrong} (write {right})" for wrong, right in variable.mistaken.items())
        yield "mistaken", meant
    yield "read more", f"{variable.source} (what it does, and its default)"


def _bounds(variable: Variable) -> str:
    unit = f" {variable.unit}" if variable.unit else ""
    if variable.lowest is not None and variable.highest is not None:
        return f" from {variable.lowest} to {variable.highest}{unit}"
    if variable.lowest is not None:
        return f", {variable.lowest} or more{unit}"
    return f" of{unit}" if unit else ""
