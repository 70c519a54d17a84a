"""nvidia-smi as drivers of all ages answer it, on a clock of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runbook.node import gpus


class Driver:
    """Takes `wakes_s` to answer, and refuses the fields that it does not know, one at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wakes_s: float, without: tuple[str, ...]) -> None:
        self.now, self.wakes_s, self.without = 0.0, wakes_s, without
        monkeypatch.setattr(gpus, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(gpus, "run", self.run)

    def run(self, argv: list[str], seconds: float) -> dict[str, Any]:
        fields = next(word for word in argv if word.startswith("--query-gpu=")).partition("=")[2].split(",")
        self.now += min(self.wakes_s, seconds)
        if self.wakes_s > seconds:
            return {"timed_out": True, "state": "S", "code": None, "out": "", "err": ""}
        if unknown := [field for field in fields if field in self.without]:
            return {"code": 2, "out": f'Field "{unknown[0]}" is not a valid field to query.', "err": ""}
        return {"code": 0, "out": ", ".join("1" for _ in fields), "err": ""}


OLD = ("clocks_event_reasons.active", "mig.mode.current", "retired_pages.pending")


@pytest.mark.parametrize("wakes_s", [0.1, 5.0, 8.0, 11.0, 13.0, 60.0])
@pytest.mark.parametrize("unknown", range(len(OLD) + 1))
def test_only_a_tool_that_had_its_time_is_told_as_hung(
    wakes_s: float, unknown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(monkeypatch, wakes_s, OLD[:unknown])
    said = gpus.query_gpus("nvidia-smi", gpus.GPU_QUERY_FIELDS, 12.0, in_all_s=26.0)
    assert driver.now <= 26.0
    assert bool(said.get("timed_out")) is (wakes_s > 12.0)
    if (unknown + 1) * wakes_s <= 26.0 and wakes_s <= 12.0:
        assert said["code"] == 0
        assert not {*OLD[:unknown]} & {*said["fields"]}
        assert ("clocks_throttle_reasons.active" in said["fields"]) is (unknown > 0)
