"""Names from nodes, logs and files, quoted for commands that people paste: interfaces, chains, paths, hosts.

Every remedy with a command in it puts such a name in through here. A name is one word of its command, with unprintable
characters escaped: an escaped name names nothing, so that such a command fails instead of acting."""

from __future__ import annotations

import re
import shlex

from runbook.model.safe_text import visible_text

_NFT_WORD = re.compile(r"[A-Za-z][A-Za-z0-9/_.-]*|[0-9]+")
NFT_LIST_COMMAND = "sudo nft -a list ruleset"
"""The remedy's command where a name cannot be typed in an nft command: it lists all rules, for a person to choose."""
_POWERSHELL_BARE_WORD = re.compile(r"[A-Za-z0-9_.:-]+")
_POWERSHELL_QUOTES = re.compile("(['\u2018\u2019\u201a\u201b])")
_NETSH_RULE_NAME = re.compile(r"[\w .,:;@=+/()\[\]{}*-]+")
_MARK_ESCAPES = {"`": r"\x60", "; on ": r";\x20on "}
"""A sentence shows commands between backticks, and a step of a remedy ends at `; on node-b: `: no name may hold
either."""


def shell_word(name: object) -> str:
    """The name as one word of a command in a POSIX shell."""
    text = visible_text(str(name))
    for mark, escape in _MARK_ESCAPES.items():
        text = text.replace(mark, escape)
    if text.startswith("~/"):  # the shell expands it
        return "~/" + (shlex.quote(text[2:]) if text[2:] else "")
    return shlex.quote(text)


def nft_words(*names: object) -> str | None:
    """Names of families, tables and chains, and handles, as nft reads them; None where one of them cannot be typed.

    nft joins its arguments and reads them as one text in its own language: no quoting of the shell keeps a `;` from it.
    """
    words = [str(name) for name in names]
    return " ".join(words) if all(map(_NFT_WORD.fullmatch, words)) else None


def powershell_word(name: object) -> str:
    """The name as one word of a command in PowerShell, in which typographic quotes end a quoted text as well."""
    text = visible_text(str(name))
    return text if _POWERSHELL_BARE_WORD.fullmatch(text) else "'" + _POWERSHELL_QUOTES.sub(r"\1\1", text) + "'"


def netsh_name(name: str) -> str:
    """A firewall rule's name between double quotes, for netsh in cmd and in PowerShell alike; `"THE RULE"` for a name
    with a character that is not safe in both."""
    return f'"{name}"' if _NETSH_RULE_NAME.fullmatch(name) and visible_text(name) == name else '"THE RULE"'
