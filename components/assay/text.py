"""Numbers as people read them, the same in report.html and in the terminal."""

from __future__ import annotations

import math

DIGITS = 5


def number(value: float | None) -> str:
    """Returns a value in five significant digits: `0.87231`, `15,002`, `1.2e-07`; None is empty."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    size = math.floor(math.log10(abs(value)))
    if not -DIGITS < size < 9:
        return f"{value:.{DIGITS - 1}g}"
    return f"{value:,.{max(0, min(DIGITS, DIGITS - 1 - size))}f}"


def change(value: float | None) -> str:
    """Returns a difference with its sign."""
    text = number(value)
    return text if value is None or value <= 0 or not text else f"+{text}"


def count(how_many: int, what: str) -> str:
    """Returns `1 slice`, `2 slices`."""
    return f"{how_many:,} {what}{'' if how_many == 1 else 's'}"
