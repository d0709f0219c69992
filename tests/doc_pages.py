"""The Python of a page, run in its order; what the page shows under a block is what the block prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(?P<code>.*?)```(?:\n\n```text\n(?P<shown>.*?)```)?", re.DOTALL)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


class Example(NamedTuple):
    """A block of Python, and what the page says that it prints; None where it says nothing."""

    code: str
    shown: str | None


def examples(page: str) -> list[Example]:
    """Of a page of the docs."""
    return [Example(found["code"], found["shown"]) for found in BLOCK.finditer((ROOT / page).read_text())]


def run(page: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run a page, and check what it prints; the names that it has made are returned."""
    names = {"__name__": "page"} if names is None else names
    for number, example in enumerate(examples(page)):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(example.code, f"{page}, block {number}", "exec", dont_inherit=True), names)
        if example.shown is not None:
            assert alike(printed.getvalue(), example.shown), f"{page}, block {number} prints\n{printed.getvalue()}"
    return names


def alike(printed: str, shown: str) -> bool:
    """Whether two texts are the same, but for what rounding does to numbers: a twentieth, or two of the last digits."""
    if NUMBER.split(printed) != NUMBER.split(shown):
        return False
    return all(map(_near, NUMBER.findall(printed), NUMBER.findall(shown)))


def _near(printed: str, shown: str) -> bool:
    last = 0 if shown.isdigit() else 10.0 ** -len(shown.partition(".")[2])
    return abs(float(printed) - float(shown)) <= max(0.05 * abs(float(shown)), 2.01 * last)
