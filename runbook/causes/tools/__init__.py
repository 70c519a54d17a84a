"""Outputs of tools that people paste, or that `runbook collect` gathers: recognised, and read for what they prove. Pure.

`table.TABLE` holds every form that is known; `read_tool` reads a text that is one tool's output, `paste.read_paste` a text
that holds several, with or without the commands before them; `verdict.with_tools` puts what they say beside what logs say.
"""

from __future__ import annotations

from runbook.causes.tools.reading import Reading


def read_tool(text: bytes | str, name: str = "") -> Reading | None:
    """What a text says that is one tool's output, with or without the command before it; None when it is none."""
    from runbook.causes.tools.paste import read_paste  # checks use single readers, and need not wait for all of them

    found = read_paste(text if isinstance(text, str) else text.decode("utf-8", "replace"), name).found
    return found[0].reading if found else None


__all__ = ["Reading", "read_tool"]
