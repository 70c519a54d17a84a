"""One host of a survey, judged: what the inventory will say of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runbook.parsers.ib_ports import Port
from runbook.survey.addresses import Place
from runbook.survey.ask import Told
from runbook.survey.devices import Gpus
from runbook.survey.pythons import Python


@dataclass(frozen=True, slots=True)
class Seen:
    """One host, judged."""

    told: Told
    name: str
    place: Place
    gpus: Gpus
    python: Python | None
    ports: Sequence[Port]
