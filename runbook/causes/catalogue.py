"""The catalogue of causes: each cause by its id, read from its page. Checks and rules share the ids, which are never
renamed.

A page is a section of `pages/FAMILY.md`, and the only place that describes its cause. Under the heading `## the-id` it
has one line for each part:

- summary: what has to be fixed, in one line
- kinds: the kinds of CAUSE_KINDS that the cause belongs to
- follows: causes that explain this one where both are found
- symptom: what people see; left out where the summary says it
- why: …
- confirm: how to make sure by hand
- remedy: what mends it
- remedy WAY: what mends it in a certain case; `live`: where a check or a job finds it, and not a reader of logs
- told by CHECK: what that check means by it; and where it differs, how to confirm and to mend it there

A remedy is a template. The finder of the cause fills in `{name}` (`finding_for`); on a page it reads NAME.
`on {node}: ` says where a step is done, `controller: ` that it is done where `runbook` runs, and `; on {other}: `
begins another step. A step that is nothing but one piece of code is a command, to be typed as it stands; any other is a
sentence.

The pages are read when a cause is first asked for: a healthy run reads none."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from runbook.model.errors import Unreachable
from runbook.model.remedy import Remedy, RemedyStep
from runbook.model.verdict import Finding

Confidence = Literal["high", "medium", "low"]
"""How sure it is that the text which was read shows a cause."""

CauseKind = Literal["consequence", "vague", "of the node", "lasting", "at start", "transient", "once"]

CAUSE_KINDS: Mapping[CauseKind, str] = {
    "consequence": "what the other nodes report when one has failed: never the root while another cause is known",
    "vague": "says that something is wrong, and not what",
    "of the node": (
        "stays with the machine when the job ends, so that the next job has it too; never caused by a wrong "
        "inventory, the program or the user's own account"
    ),
    "lasting": "no later step repairs it",
    "at start": "keeps a program from starting: one that has made steps did without what was missing",
    "transient": "may be gone by the next attempt: other programs used the port, the memory or the network",
    "once": "may be chance the first time, but not the second",
}

FAMILY_ORDER = (
    *("reaching", "slurm", "kubernetes", "agents", "containers", "environment", "names", "network", "rendezvous"),
    *("ranks", "rdma", "gpu"),
)
"""Families in the order in which they are listed; families that are not named here come after them."""

REQUIRED_PARTS = ("summary", "why", "confirm", "remedy")
_PAGE_PART = re.compile(r"^- (summary|kinds|follows|symptom|why|confirm|remedy|told by)(?: ([a-z-]+))?: (.+)$")
CAPITALS_NOTE = "  (a word in capitals, such as NODE or PORT, stands for yours; a finding of a run names it)\n"
_REMEDY_FIELD = re.compile(r"\{([a-z_][a-z0-9_]*)\}")
_REMEDY_STEP = re.compile(r"(?:^|; )(on \{[a-z0-9_]+\}|controller): ")
BACKTICKED_TEXT = re.compile(r"`([^`]*)`")


@dataclass(frozen=True, slots=True)
class CausePage:
    """The page of one cause. `remedies`: templates by the way (case) that they are for, the general one under "".
    `by_check`: by a check's id, what that check means by the cause."""

    id: str
    summary: str
    kinds: tuple[str, ...]
    follows: tuple[str, ...]
    symptom: str
    why: str
    confirm: str
    remedies: Mapping[str, str]
    by_check: Mapping[str, str]

    @property
    def remedy(self) -> str:
        """The general remedy, with its fields as words in capitals: for a reader who found the cause by hand."""
        return filled_template(self.remedies[""], str.upper)

    @property
    def ways(self) -> Mapping[str, str]:
        """The other remedies by their ways, with their fields as words in capitals."""
        return {way: filled_template(text, str.upper) for way, text in self.remedies.items() if way}

    def text(self) -> str:
        """The page as `runbook explain` prints it."""
        return (
            f"{self.id}: {self.summary}\n\nsymptom: {self.symptom}\nwhy:     {self.why}\nconfirm: {self.confirm}\n"
            f"remedy:  {self.remedy}\n"
            + "".join(f"  {way}: {text}\n" for way, text in self.ways.items())
            + (CAPITALS_NOTE if any(_REMEDY_FIELD.search(text) for text in self.remedies.values()) else "")
        )

    def line(self, check: str) -> str:
        """The line of this cause on the page of a check: what the check means by it, how to confirm, what mends it."""
        means = self.by_check[check]
        if "; " not in means:
            means = f"{means}; {_without_full_stop(self.confirm)}; {_without_full_stop(self.remedy)}"
        return f"- `{self.id}`: {means}"


@functools.cache
def cause_pages() -> Mapping[str, CausePage]:
    """Every cause's page by the cause's id, family by family. ValueError if two families describe one id."""
    found: dict[str, CausePage] = {}
    for text in page_texts_by_family().values():
        pages = parse_cause_pages(text)
        if twice := found.keys() & pages.keys():
            raise ValueError(f"described by two families: {', '.join(sorted(twice))}")
        found |= pages
    return found


@functools.cache
def page_texts_by_family() -> Mapping[str, str]:
    """By family, the text of its pages as shipped."""
    from importlib import resources  # imported only here: a run in which all passes does not need it

    shipped = {
        file.name.removesuffix(".md"): file.read_text(encoding="utf-8")
        for file in resources.files("runbook.causes").joinpath("pages").iterdir()
        if file.name.endswith(".md")
    }
    names = (*(name for name in FAMILY_ORDER if name in shipped), *sorted(shipped.keys() - set(FAMILY_ORDER)))
    return {name: shipped[name] for name in names}


def parse_cause_pages(family: str) -> Mapping[str, CausePage]:
    """By cause, the pages in one family's text. ValueError if a page lacks a part, has a part twice or an unknown one,
    or if an id occurs twice."""
    pages: dict[str, CausePage] = {}
    for section in family.split("\n## ")[1:]:
        id, _, body = section.partition("\n")
        parts: dict[tuple[str, str], str] = {}
        for line in filter(None, body.split("\n")):
            part = _PAGE_PART.match(line)
            if part is None or (part[1], part[2] or "") in parts:
                raise ValueError(f"the page of {id}: this is not a part of it, or occurs twice: {line}")
            parts[part[1], part[2] or ""] = part[3]
        if id in pages or any((part, "") not in parts for part in REQUIRED_PARTS):
            raise ValueError(f"the page of {id} needs {', '.join(REQUIRED_PARTS)}, each once")
        pages[id] = _page_from_parts(id, parts)
    return pages


def _page_from_parts(id: str, parts: Mapping[tuple[str, str], str]) -> CausePage:
    summary = parts["summary", ""]
    return CausePage(
        id=id,
        summary=summary,
        kinds=_comma_separated_part(parts, "kinds"),
        follows=_comma_separated_part(parts, "follows"),
        symptom=parts.get(("symptom", ""), f"{summary}."),
        why=parts["why", ""],
        confirm=parts["confirm", ""],
        remedies={way: text for (part, way), text in parts.items() if part == "remedy"},
        by_check={check: text for (part, check), text in parts.items() if part == "told by"},
    )


def _comma_separated_part(parts: Mapping[tuple[str, str], str], part: str) -> tuple[str, ...]:
    text = parts.get((part, ""))
    return tuple(text.split(", ")) if text else ()


def cause_lines_for_check(check: str) -> list[str]:
    """The lines of a check's page about its causes, one line for each cause that the check finds."""
    return [page.line(check) for page in cause_pages().values() if check in page.by_check]


@functools.cache
def causes_of_kind(kind: CauseKind) -> frozenset[str]:
    """The ids of the causes of this kind."""
    return frozenset(page.id for page in cause_pages().values() if kind in page.kinds)


# Which cause explains which.


def ordered_causes(found: Iterable[str]) -> list[str]:
    """The causes, each once: a cause comes after the cause that it follows from, mere consequences come last, and
    independent causes keep their order."""
    left = list(dict.fromkeys(found))
    ordered: list[str] = []
    while left:
        free = [cause for cause in left if root_cause_among(cause, left) is None]
        ordered.append((free or left)[0])  # if all that are left follow from each other, the first
        left.remove(ordered[-1])
    return ordered


def root_cause_among(cause: str, among: Collection[str]) -> str | None:
    """The first cause of `among` that this cause follows from; None if there is none. Of two causes that follow from
    each other, neither is the root of the other."""
    others = [other for other in among if other != cause and other not in causes_of_kind("consequence")]
    if cause in causes_of_kind("consequence"):
        return others[0] if others else None
    return next(
        (other for other in others if other in explaining_causes(cause) and cause not in explaining_causes(other)), None
    )


def explaining_causes(cause: str) -> tuple[str, ...]:
    """The causes that explain this one where both are found."""
    page = cause_pages().get(cause)
    return page.follows if page else ()


# Remedies.


def template_fields(template: str) -> set[str]:
    """The names of the template's fields: `node` for `{node}`."""
    return set(_REMEDY_FIELD.findall(template))


def filled_template(template: str, value_of: Callable[[str], str]) -> str:
    """The template with `value_of(name)` in the place of each `{name}`."""
    return _REMEDY_FIELD.sub(lambda field: value_of(field[1]), template)


def remedy_from_page(cause: str, way: str = "", /, **fields: object) -> Remedy:
    """The remedy `way` from the page of a cause, its fields filled in. KeyError if the page has no such remedy, or if a
    field of the template is not given."""
    values = {name: str(value) for name, value in fields.items()}
    template = cause_pages()[cause].remedies[way]
    return Remedy(*(_remedy_step(where, what, values) for where, what in _template_steps(template)))


def finding_for(
    cause: str,
    says: str,
    evidence: tuple[str, ...] = (),
    peers: tuple[str, ...] = (),
    *,
    way: str = "live",
    **fields: object,
) -> Finding:
    """A finding with the remedy `way` from its cause's page; `fields` are the values of the template's fields."""
    return Finding(cause, says, remedy_from_page(cause, way, **fields), evidence, peers)


def unreachable_for(
    cause: str, says: str, evidence: tuple[str, ...] = (), *, way: str = "live", **fields: object
) -> Unreachable:
    """The error for a node that could not be reached, with the remedy `way` from its cause's page."""
    return Unreachable(cause, says, remedy_from_page(cause, way, **fields), evidence)


def _template_steps(template: str) -> Iterator[tuple[str, str]]:
    """(place, text) for each step of the template; the place is empty for a template that names none."""
    first, *parts = _REMEDY_STEP.split(template)
    if first:
        yield "", template
    else:
        yield from zip(parts[::2], parts[1::2], strict=True)


def _remedy_step(where: str, what: str, fields: Mapping[str, str]) -> RemedyStep:
    code = BACKTICKED_TEXT.fullmatch(what)
    node = (
        None
        if not where and code
        else filled_template(where.removeprefix("controller").removeprefix("on "), fields.__getitem__)
    )
    text = filled_template(code[1] if code else what, fields.__getitem__)
    return RemedyStep(node, (text,)) if code else RemedyStep(node, (), text)


def _without_full_stop(sentence: str) -> str:
    return sentence.removesuffix(".")
