"""Keeping subjects out of what is kept for ever."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

HIDDEN = "⟨subject⟩"


def mentions(text: str, subject: str) -> bool:
    """Whether a text names a subject."""
    return bool(_pattern([subject]).search(text))


def hidden(value: Any, subjects: Sequence[str]) -> Any:
    """Plain JSON with every mention of these subjects, in texts and names, replaced."""
    return _hidden(value, _pattern(subjects)) if subjects else value


def _hidden(value: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(HIDDEN, value)
    if isinstance(value, dict):
        return {pattern.sub(HIDDEN, name): _hidden(each, pattern) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hidden(each, pattern) for each in value]
    return value


def _pattern(subjects: Sequence[str]) -> re.Pattern[str]:
    """Any of them where it is not part of a longer word or number."""
    longest_first = sorted(set(subjects), key=len, reverse=True)
    return re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, longest_first))})(?![\w]|\.\d)", re.IGNORECASE)
