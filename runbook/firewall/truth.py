"""Three-valued logic: True, False, and None for "this program cannot tell"; plus numbers that are only known as a span.

The rule everywhere in this package: what is not understood is None, and None is never turned into a claim.
"""

from __future__ import annotations

from dataclasses import dataclass

Truth = bool | None


def both(a: Truth, b: Truth) -> Truth:
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def either(a: Truth, b: Truth) -> Truth:
    if a is True or b is True:
        return True
    return None if a is None or b is None else False


def flip(a: Truth, inverted: bool = True) -> Truth:
    return a if a is None or not inverted else not a


@dataclass(frozen=True, slots=True)
class NumberRange:
    """A number known exactly (`low == high`) or only to lie in a closed interval, as a client's ephemeral port does."""

    low: int
    high: int

    @classmethod
    def exactly(cls, number: int) -> NumberRange:
        return cls(number, number)

    @property
    def exact(self) -> int | None:
        return self.low if self.low == self.high else None

    def within(self, other: NumberRange) -> Truth:
        """Is this number in `other`? An interval turned inside out (nft prints such for merged rules) tells nothing."""
        if other.low > other.high:
            return None
        if other.low <= self.low and self.high <= other.high:
            return True
        if self.high < other.low or other.high < self.low:
            return False
        return None

    def below(self, number: int) -> Truth:
        if self.high < number:
            return True
        return False if self.low >= number else None
