"""Durations, sizes and ports."""

from __future__ import annotations

import pytest

from runbook.files.scalars import parse_port_ranges, parse_seconds, parse_size_bytes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10s", 10),
        ("500ms", 0.5),
        ("2m", 120),
        ("1h", 3600),
        (7, 7),
        (0.5, 0.5),
        ("1.5s", 1.5),
        ("90", 90),
        (" 3 s", 3),
    ],
)
def test_durations(text: object, value: float) -> None:
    assert parse_seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["", "soon", "-1s", "0", 0, "10 seconds", "1d", True, None, [1], "1e3", "9" * 400, 1e12, float("inf"), "٣s"]
)
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("10 minutes", "10m"),
        ("10 min", "10m"),
        ("90 sec", "90s"),
        ("1h30m", "90m"),
        ("1 Hour, 30 Minutes", "90m"),
        ("1m30s", "90s"),
        ("2 days", "48h"),
        ("1d", "24h"),
        ("0:30", "30s"),
        ("12:30:00", "750m"),
        ("12:30:45", "45045s"),
    ],
)
def test_what_was_meant_by_a_duration_is_told_and_is_one(text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"write {meant}$"):
        parse_seconds(text)
    assert parse_seconds(meant) > 0


@pytest.mark.parametrize("text", ["soon", "0 min", "400 days", "10 parsecs", "1:2", "m5", "-10 min"])
def test_nothing_is_guessed_of_what_cannot_be_meant(text: str) -> None:
    with pytest.raises(ValueError, match=r"write 500ms, 10s, 2m or 1h$"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["29500:29510", "29500..29510", "29500\u201329510", "29500 to 29510", "29500~29510"])
def test_a_range_of_ports_in_another_hand(text: str) -> None:
    with pytest.raises(ValueError, match=r"write 29500-29510$"):
        parse_port_ranges(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1K", 1024),
        ("5Gi", 5 << 30),
        ("1KiB", 1024),
        ("1kb", 1024),
        ("16M", 16 << 20),
        ("1G", 1 << 30),
        ("2T", 2 << 40),
        ("4096", 4096),
        (4096, 4096),
        ("0.5K", 512),
        ("1.5G", 3 << 29),
        (2.0, 2),
        ("0", 0),
        ("8 B", 8),
    ],
)
def test_sizes(text: object, value: int) -> None:
    assert parse_size_bytes(text) == value


@pytest.mark.parametrize("text", ["", "1.5", "0.3K", "-1K", "1X", "K", True, None, "1e3", 2.5, "9" * 30])
def test_what_is_no_size(text: object) -> None:
    with pytest.raises(ValueError, match=r"size|whole number"):
        parse_size_bytes(text)


@pytest.mark.parametrize(
    ("written", "ranges"),
    [
        (29500, ((29500, 29500),)),
        ("29500", ((29500, 29500),)),
        ("29500-29510", ((29500, 29510),)),
        ([29500, "40000-40100"], ((29500, 29500), (40000, 40100))),
        ("29500, 29505-29510", ((29500, 29500), (29505, 29510))),
        ("1-65535", ((1, 65535),)),
    ],
)
def test_ports(written: object, ranges: object) -> None:
    assert parse_port_ranges(written) == ranges


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (0, "below 1"),
        (65536, "above 65535"),
        ("1-70000", "above 65535"),
        ("29510-29500", "backwards"),
        ("http", "not a port"),
        ("", "not a port"),
        (True, "not a port"),
        (None, "not a port"),
        ([1, "x"], "not a port"),
    ],
)
def test_what_is_no_port(written: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_port_ranges(written)
