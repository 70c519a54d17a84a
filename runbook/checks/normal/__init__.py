"""Which bandwidth is normal: a table with sources, and what it says of the hardware at hand."""

from runbook.checks.normal.expect import (
    AUTO,
    BandwidthComparison,
    BandwidthSetting,
    Expectation,
    NotKnown,
    expect,
    link_floor,
    span_text,
)

__all__ = [
    "AUTO",
    "BandwidthComparison",
    "BandwidthSetting",
    "Expectation",
    "NotKnown",
    "expect",
    "link_floor",
    "span_text",
]
