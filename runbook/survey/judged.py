"""One host of a survey, judged: what the inventory will say of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runbook.parsers.ibstat import Port
from runbook.survey.addresses import HostAddress
from runbook.survey.ask import HostAnswers
from runbook.survey.devices import GpusFound
from runbook.survey.pythons import PythonFound


@dataclass(frozen=True, slots=True)
class SurveyedHost:
    """One host, judged."""

    told: HostAnswers
    name: str
    place: HostAddress
    gpus: GpusFound
    python: PythonFound | None
    ports: Sequence[Port]
