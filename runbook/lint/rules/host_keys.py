"""Host keys: that nobody switches them off behind `host_keys:`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runbook.lint.scalars import scalars
from runbook.load.document import Document
from runbook.model.errors import Problem

_OFF = re.compile(
    r"\b(?:StrictHostKeyChecking[ =]+(?:no|off|false)\b|(?:User|Global)KnownHostsFile[ =]+(?:/dev/null|none\b|NUL\b)"
    r"|ANSIBLE_HOST_KEY_CHECKING[ =]+(?:false|no|0)\b)",
    re.IGNORECASE,
)
_NAMES = ("KnownHostsFile", "StrictHostKeyChecking", "HOST_KEY_CHECKING")


def host_keys_off(document: Document) -> Iterator[Problem]:
    """In a command, in an option that some program is given; the schema refuses it for `host_keys` itself."""
    text = document.text.lower()
    if not any(name.lower() in text for name in _NAMES):
        return
    for keys, value in scalars(document):
        setting = f"{keys[-1]}={value}" if keys and isinstance(keys[-1], str) else str(value)
        if _OFF.search(setting):
            message = "this accepts any host key: whoever stands in between gets the login"
            help = "`StrictHostKeyChecking=accept-new` trusts the first key; better, put the keys into known_hosts"
            yield Problem("ssh.host-keys-off", message, document.span(*keys), help)
