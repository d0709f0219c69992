"""A table as plain text, and its three renderings: Markdown, LaTeX and the terminal's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.table import Table


class Grid(NamedTuple):
    """A table as plain text; a line break in a column's title is one."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def markdown(grid: Grid) -> str:
    """For the documentation."""
    lines = [grid.columns, ("---",) + ("---:",) * (len(grid.columns) - 1), *grid.rows]
    table = ["| " + " | ".join(flat(cell).replace("|", r"\|") for cell in line) + " |" for line in lines]
    return "\n".join([f"**{grid.title}**", "", *table, *(["", grid.note] if grid.note else [])])


TEX = {
    "ε̂": r"$\hat\varepsilon$",
    "k̂": r"$\hat k$",
    "×10³": r"$\times 10^3$",
    "‖f − f′‖₁": r"$\|f - f'\|_1$",
    **{each: "\\" + each for each in "%&_#"},
    **{"±": r"$\pm$", "−": "$-$", "≤": r"$\le$", "×": r"$\times$", "↳": r"$\hookrightarrow$"},
}


def latex(grid: Grid) -> str:
    """A booktabs table; its note ends the caption."""
    longest_first = "|".join(map(re.escape, sorted(TEX, key=len, reverse=True)))

    def escaped(text: str) -> str:
        return re.sub(longest_first, lambda found: TEX[found[0]], text)

    def head(title: str) -> str:
        lines = [escaped(line) for line in title.split("\n")]
        return lines[0] if len(lines) == 1 else r"\shortstack[r]{" + r" \\ ".join(lines) + "}"

    caption = escaped(f"{grid.title}. {grid.note}".strip())
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering\scriptsize",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(grid.columns) - 1)}}}",
            r"\toprule",
            " & ".join(map(head, grid.columns)) + r" \\",
            r"\midrule",
            *(" & ".join(map(escaped, row)) + r" \\" for row in grid.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def rich_table(grid: Grid) -> Table:
    """For a terminal."""
    table = Table(
        title=grid.title,
        title_justify="left",
        title_style="bold",
        caption=grid.note,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for at, title in enumerate(grid.columns):
        table.add_column(title, justify="right" if at else "left")
    for row in grid.rows:
        table.add_row(*row)
    return table


def flat(title: str) -> str:
    """On one line."""
    return title.replace("\n", " ")


def number(value: float, digits: int) -> str:
    """With a true minus, and no negative zero."""
    return f"{value:z.{digits}f}".replace("-", "−")
