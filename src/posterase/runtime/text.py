"""Words as people write them: a value as text, and a name that is none answered with the nearest that is one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""A function of a module: `module:function`."""


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The nearest of the known names, as a question; something else to say where none is near."""
    names = {each.lower(): each for each in reversed(list(known))}
    longer = [full for lower, full in names.items() if lower.startswith(name.lower())] if name else []
    near = longer[-1:] or [names[each] for each in difflib.get_close_matches(name.lower(), list(names), 1)]
    return f"did you mean {near[0]!r}?" if near else otherwise


def written(value: Any) -> str:
    """A value as people write it: 17 for 17.0."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)
