from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.model.units import bandwidth_text, bytes_text, seconds_text, significant_digits_text

from .strategies import UNHURRIED


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (0.0235, "0.0235"),
        (0.0083, "0.00830"),
        (0.000512345, "0.000512"),
        (1.2345, "1.23"),
        (9.999, "10.0"),
        (19.83, "19.8"),
        (123.4, "123"),
        (999.6, "1000"),
        (12345.6, "12346"),
        (-0.5, "-0.500"),
        (float("nan"), "nan"),
    ],
)
def test_three_digits_are_kept(number: float, text: str) -> None:
    assert significant_digits_text(number) == text


@UNHURRIED
@given(st.floats(min_value=1e-9, max_value=1e12))
def test_three_digits_are_never_far_off(number: float) -> None:
    text = significant_digits_text(number)
    assert "e" not in text
    assert float(text) == pytest.approx(number, rel=0.00501)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1000, "1000 B"),
        (4, "4 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.50 KiB"),
        (1 << 20, "1 MiB"),
        (3 << 30, "3 GiB"),
        (1 << 41, "2 TiB"),
        (1500, "1.46 KiB"),
        (16 << 20, "16 MiB"),
        (1 << 30, "1 GiB"),
        (1536 << 20, "1.50 GiB"),
        (3 << 60, "3072 PiB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0, "0 s"),
        (0.0001, "1 ms"),
        (0.04, "40 ms"),
        (0.0994, "99 ms"),
        (0.0996, "0.1 s"),
        (2.24, "2.2 s"),
        (99.94, "99.9 s"),
        (99.96, "1 min 40 s"),
        (119.6, "2 min 00 s"),
        (125, "2 min 05 s"),
        (3599.7, "1 h 00 min"),
        (3900, "1 h 05 min"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(371.2, "371 GB/s"), (1.0, "1.00 GB/s"), (0.0235, "23.5 MB/s"), (0.00000123, "1.23 kB/s"), (0.0, "0 B/s")],
)
def test_bandwidth(rate: float, text: str) -> None:
    assert bandwidth_text(rate) == text
