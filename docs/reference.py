"""The part of the site that nobody writes: reference pages, made from what the program itself prints and checks with.

A hook of MkDocs. `pages()` gives the reference; the site's other pages are Markdown of this repository, so links are
resolved in the repository and rewritten for the site, and a cause, a rule, a check or a variable in code type becomes a
link."""

from __future__ import annotations

import argparse
import functools
import json
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runbook.causes.catalogue import CausePage, page_texts_by_family, parse_cause_pages
from runbook.causes.catalogue import cause_pages as known_causes
from runbook.cli.argument_parser import make_parser
from runbook.cli.explain import PAGES, stage_page, variable_page
from runbook.files.schema import load_schema
from runbook.files.shipped_files import shipped_path
from runbook.lint.findings import parse_rule_page, rule_pages
from runbook.lint.variables import Variable, known_variables

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = "110"
"""Width of the help texts, whatever the terminal of who builds."""
PROJECT = {
    "README.md": "index.md",
    "README.zh-CN.md": "index.zh-CN.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "DECISIONS.md": "project/decisions.md",
    "SECURITY.md": "project/security.md",
}
"""Files beside docs/ that are pages of the site, and where."""
LINK = re.compile(r"(?<=\]\()(?!https?:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
SPAN = re.compile(r"(?<![\[`])`(?P<id>[A-Za-z0-9_.-]+|runbook explain [A-Za-z0-9_.-]+)`(?![`\]])")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


# What MkDocs calls.


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    assert config.nav is not None
    config.nav += [{"Reference": navigation(pages())}, {"Project": [*list(PROJECT.values())[2:]]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for path, text in {**pages(), **project()}.items():
        files.append(File.generated(config, path, content=text))
    for path in linked_files(files):
        files.append(File.generated(config, f"repository/{path}.txt", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the site has them, and one to the reference for each word in code type that has a page there."""
    del config, files
    here = page.file.src_uri
    text = LINK.sub(lambda link: site_link(here, link["path"]) + (link["anchor"] or ""), markdown)
    if here.startswith("reference/"):
        return text
    parts = FENCE.split(text)
    fences = [*FENCE.findall(text), ""]
    return "".join(
        part for pair in zip([with_links(part, here) for part in parts], fences, strict=True) for part in pair
    )


def navigation(paths: Iterable[str]) -> list[Any]:
    """The reference's pages, those of one folder together."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(posixpath.dirname(path).removeprefix("reference").strip("/"), []).append(path)
    return [*folders.pop(""), *({folder.capitalize(): inside} for folder, inside in folders.items())]


# Links.


def project() -> dict[str, str]:
    return {site: (ROOT / path).read_text(encoding="utf-8") for path, site in PROJECT.items()}


def site_path(path: str) -> str:
    """Where a file of the repository lies in the site's sources."""
    if path in PROJECT:
        return PROJECT[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}.txt"


def repository_path(site: str) -> str:
    """Where a page of the site lies in the repository; a page that is only made for the site as if it lay in docs/."""
    return next((path for path, page in PROJECT.items() if page == site), f"docs/{site}")


def site_link(here: str, link: str) -> str:
    """A link of the repository as the page `here` of the site has to write it."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(repository_path(here)), link))
    return posixpath.relpath(site_path(target), posixpath.dirname(here) or ".")


def linked_files(files: Files) -> list[str]:
    """Files of the repository, beside its pages, that some page links to."""
    found: set[str] = set()
    texts = {file.src_uri: file.content_string for file in files if file.is_documentation_page()}
    for here, text in texts.items():
        folder = posixpath.dirname(repository_path(here))
        for link in LINK.finditer(text):
            path = posixpath.normpath(posixpath.join(folder, link["path"]))
            if site_path(path).startswith("repository/") and (ROOT / path).is_file():
                found.add(path)
    return sorted(found)


def with_links(text: str, here: str) -> str:
    def linked(span: re.Match[str]) -> str:
        where = places().get(span["id"].removeprefix("runbook explain "))
        if where is None or (span["id"] in PAGES):  # `ping` alone may well be the program
            return span[0]
        page, _, anchor = where.partition("#")
        return f"[{span[0]}]({posixpath.relpath(page, posixpath.dirname(here) or '.')}{'#' if anchor else ''}{anchor})"

    return SPAN.sub(linked, text)


@functools.cache
def places() -> Mapping[str, str]:
    """Where the reference tells of an id: `reference/causes/names.md#name-unresolvable`."""
    found = {name: f"reference/checks/{name}.md" for name in PAGES}
    for family, text in page_texts_by_family().items():
        found |= {cause: f"reference/causes/{family}.md#{cause}" for cause in parse_cause_pages(text)}
    for page, text in rule_pages().items():
        found |= {rule.id: f"reference/rules/{page}.md#{slug(rule.id)}" for rule in parse_rule_page(text)}
    found |= {name: f"reference/variables/{reader_page(of)}.md#{slug(name)}" for name, of in known_variables().items()}
    return found


def slug(heading: str) -> str:
    """The anchor of a heading, as Python-Markdown makes it."""
    return re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-")


# The reference.


@functools.cache
def pages() -> Mapping[str, str]:
    """Every page of the reference by its path in the site, as Markdown."""
    words = resources.files("runbook.cli").joinpath("words.md").read_text(encoding="utf-8")
    made = {"reference/commands.md": commands(), "reference/api.md": api(), "reference/words.md": words}
    made |= {f"reference/checks/{name}.md": check(name) for name in PAGES}
    made |= {f"reference/causes/{family}.md": causes(text) for family, text in page_texts_by_family().items()}
    made |= {f"reference/rules/{page}.md": text for page, text in rule_pages().items()}
    made |= {f"reference/files/{kind}.md": keys(kind) for kind in ("inventory", "playbook", "serve")}
    return made | variables()


def folder_of(package: str) -> Iterator[tuple[str, str]]:
    """The pages that `explain` reads in a package: name and text."""
    for page in sorted(resources.files(package).joinpath("pages").iterdir(), key=lambda page: page.name):
        if page.name.endswith(".md"):
            yield page.name.removesuffix(".md"), page.read_text(encoding="utf-8")


def check(name: str) -> str:
    """The page of a check, each of its causes linked."""
    text = stage_page(name)
    return re.sub(r"^- `([a-z0-9-]+)`(?=: )", lambda line: _cause_link(line, "- "), text, flags=re.MULTILINE)


def _cause_link(found: re.Match[str], before: str) -> str:
    where = places().get(found[1]) if found[1] in known_causes() else None
    return f"{before}[`{found[1]}`](../{where.removeprefix('reference/')})" if where else found[0]


def causes(family: str) -> str:
    """One family's causes as `explain` tells them."""
    title = family.partition("\n")[0]
    sections = [_cause(page) for page in parse_cause_pages(family).values()]
    return "\n".join([title, "", *sections])


def _cause(page: CausePage) -> str:
    told = {part: getattr(page, part) for part in ("symptom", "why", "confirm", "remedy")}
    told |= {f"remedy, {way}": text for way, text in page.ways.items()}
    said = "\n".join(f"- **{part}**: {text}" for part, text in told.items())
    by = ", ".join(f"[`{check}`](../checks/{check}.md)" for check in PAGES if check in page.by_check)
    return f"## {page.id}\n\n{page.summary[0].upper()}{page.summary[1:]}.\n\n{said}\n" + (
        f"- **told by**: {by}\n" if by else ""
    )


def variables() -> dict[str, str]:
    """A page a reader: NCCL, PyTorch, gloo, …"""
    readers: dict[str, list[Variable]] = {}
    for variable in known_variables().values():
        readers.setdefault(variable.reader, []).append(variable)
    made = {}
    for of in readers.values():
        sections = [_variable(one) for one in of]
        head = f"# Variables of {of[0].reader}\n\nAs `runbook lint` knows them: {len(of)}.\n"
        made[f"reference/variables/{reader_page(of[0])}.md"] = "\n".join([head, *sections])
    return made


def _variable(variable: Variable) -> str:
    facts = variable_page(variable).partition("\n\n")[2]
    return f"## {variable.name}\n\n```text\n{facts}```\n"


def reader_page(variable: Variable) -> str:
    return slug(variable.reader)


def commands() -> str:
    """What `--help` prints, command by command."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = COLUMNS
    try:
        sections = [f"## {name}\n\n```text\n{one.format_help()}```\n" for name, one in every_command(make_parser())]
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
    return "\n".join(["# Commands\n", *sections])


def every_command(one: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A parser and all below it, each with the words that reach it."""
    yield one.prog, one
    for action in one._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from every_command(below)


def keys(kind: str) -> str:
    """Every key of a kind of file: what it is, its default and an example, from the schema that checks it."""
    root = load_schema(kind)
    lines = [
        f"# Keys of {'serve.yml' if kind == 'serve' else 'an inventory' if kind == 'inventory' else 'a playbook'}",
        "",
    ]
    for name, part in tables(root, root):
        lines += [
            f"## {name}" if name else "## The file",
            "",
            *([part["description"], ""] if name and "description" in part else []),
        ]
        lines += ["| key | value | what it is | example |", "|---|---|---|---|"]
        lines += [_row(key, inner, root) for key, inner in part["properties"].items()]
        lines.append("")
    return "\n".join(lines)


def tables(part: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every mapping with keys of its own: the file's, the shared definitions', and those within them."""
    yield from _within("", part)
    for name, shared in root.get("$defs", {}).items():
        yield from _within(name, shared)


def _within(name: str, part: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if "properties" in part:
        yield name, part
    for key, inner in part.get("properties", {}).items():
        yield from _within(f"{name}.{key}" if name else key, inner)
    for branch in part.get("anyOf", []):
        if isinstance(branch, dict):
            yield from _within(name, branch)


def _row(key: str, part: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    shared = part["$ref"].rpartition("/")[2] if "$ref" in part else ""
    whole = {**root["$defs"][shared], **part} if shared else part
    value = whole.get("title", "")
    if shared and "properties" in root["$defs"][shared]:
        value = f"[{value}](#{slug(shared)})"
    examples = ", ".join(f"`{json.dumps(example, ensure_ascii=False)}`" for example in whole.get("examples", [])[:2])
    return f"| `{key}` | {_cell(value)} | {_cell(whole.get('description', ''))} | {_cell(examples)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def api() -> str:
    """The HTTP API from its OpenAPI file."""
    described = json.loads(shipped_path("schemas", "api.openapi.json").read_text(encoding="utf-8"))
    lines = ["# HTTP API of the server", "", described["info"]["description"], ""]
    lines += ["| request | role | what it does |", "|---|---|---|"]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if "summary" in operation:
                given = [f"`{one['name']}`" for one in operation.get("parameters", []) if one.get("in") == "query"]
                asked = f"; query: {', '.join(given)}" if given else ""
                lines.append(
                    f"| `{method.upper()} {path}` | {operation['x-role']} | {_cell(operation['summary'])}{asked} |"
                )
    lines += ["", "The server gives this description in full at `/api/v1/openapi.json`.", ""]
    return "\n".join(lines)
