"""Makes findings with a remedy from a template of their cause's page: the caller gives the sentence and the template's
fields. Without a `way` it is the page's remedy for what a check or a job finds: `live`."""

from __future__ import annotations

from runbook.causes.catalogue import mend
from runbook.model.errors import Unreachable
from runbook.model.verdict import Finding


def finding_for(
    cause: str,
    says: str,
    evidence: tuple[str, ...] = (),
    peers: tuple[str, ...] = (),
    *,
    way: str = "live",
    **fields: object,
) -> Finding:
    return Finding(cause, says, mend(cause, way, **fields), evidence, peers)


def unreachable_for(
    cause: str, says: str, evidence: tuple[str, ...] = (), *, way: str = "live", **fields: object
) -> Unreachable:
    return Unreachable(cause, says, mend(cause, way, **fields), evidence)
