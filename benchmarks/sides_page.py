"""What `benchmarks/sides.py` found, as docs/results/sides and as what docs/side-by-side.md cites of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import write_whole
from benchmarks.peers import Row

DOCS = Path(__file__).parent.parent / "docs"
AT_THE_FLOOR = 2.0
"""Times the error of the farther refit."""
UNTOUCHED = "untouched draws"
HEAD = (
    "| posterior | removed | method | error of means (by chance) | of log sd | at the floor | seconds | times `erase` "
    "| first | says |\n|---|---|---|---|---|---|---|---|---|---|"
)
RESULTS = DOCS / "results"
PAGE = DOCS / "side-by-side.md"
SPEED = {"2 CPU cores": "speed-cpu.json", "one NVIDIA H200": "speed-gpu.json"}


class Mode(NamedTuple):
    """A change of the mode, as pyDVL predicts it and as it is."""

    request: str
    needed: float
    """Root mean square over parameters, in posterior standard deviations."""
    error: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Found:
    """What a run found, and what it could not run."""

    machine: str
    versions: list[str]
    rows: list[Row]
    modes: list[Mode]
    skipped: list[str]


def at_the_floor(row: Row, floor: list[Row]) -> bool:
    def near(of: Callable[[Row], float]) -> bool:
        return of(row) <= AT_THE_FLOOR * max(map(of, floor))

    return near(lambda row: row.mean_error) and near(lambda row: row.sd_error)


def keep(found: Found, about: str) -> None:
    write_whole(RESULTS / "sides.json", json.dumps(as_json(found), indent=1) + "\n")
    write_whole(RESULTS / "sides.md", page(found, about))
    write_whole(PAGE, filled(PAGE.read_text(), blocks(found)))


def as_json(found: Found) -> dict[str, Any]:
    rows, modes = [dataclasses.asdict(row) for row in found.rows], [mode._asdict() for mode in found.modes]
    return dataclasses.asdict(found) | {"rows": rows, "modes": modes}


def from_json(kept: dict[str, Any]) -> Found:
    rows, modes = [Row(**row) for row in kept["rows"]], [Mode(**mode) for mode in kept["modes"]]
    return Found(kept["machine"], kept["versions"], rows, modes, kept["skipped"])


class Beside(NamedTuple):
    """A row, and how it stands to the refits and to `erase` on the same request."""

    row: Row
    reached: bool
    ratio: float


def beside(rows: list[Row]) -> dict[tuple[str, str], list[Beside]]:
    found: dict[tuple[str, str], list[Beside]] = {}
    for key in dict.fromkeys((row.posterior, row.request) for row in rows):
        here = [row for row in rows if (row.posterior, row.request) == key]
        floor = [row for row in here if row.kind == "refit"]
        own = next(row for row in here if row.method == "erase").seconds
        found[key] = [Beside(row, at_the_floor(row, floor), row.seconds / own) for row in here]
    return found


def page(found: Found, about: str) -> str:
    """docs/results/sides.md."""
    intro = (
        f"# Side by side, measured\n\nFrom `python -m benchmarks sides`: {found.machine}; {'; '.join(found.versions)}."
    )
    skipped = [f"Not run: {'; '.join(found.skipped)}.\n"] if found.skipped else []
    lines = [line(each) for here in beside(found.rows).values() for each in here]
    parts = [intro, "", about, *skipped, modes(found), "", HEAD, *lines]
    return "\n".join(parts) + "\n"


def line(each: Beside) -> str:
    row = each.row
    errors = f"{row.mean_error:.3f} ({row.chance:.3f}) | {row.sd_error:.3f} | {'yes' if each.reached else 'no'}"
    timed = row.method != UNTOUCHED
    times = f"{row.seconds:.2g} | {each.ratio:.2g} | {row.first:.2g}" if timed else " | | "
    return f"| {row.posterior} | {row.request} | {row.method} | {errors} | {times} | {row.says} |"


def modes(found: Found) -> str:
    """What pyDVL says of the mode."""
    if not found.modes:
        return "The change of the mode was not measured."
    each = "; ".join(f"{mode.request}: {mode.error:.2g} of {mode.needed:.2g}" for mode in found.modes)
    return (
        f"The mode of the logistic regression as pyDVL predicts it is off by, in posterior standard deviations, {each}."
    )


def blocks(found: Found) -> dict[str, str]:
    """What the page cites, by the names of its places."""
    stand = beside(found.rows)
    names = list(dict.fromkeys(row.method for row in found.rows))
    head = "| | " + " | ".join(f"{posterior}: {request}" for posterior, request in stand) + " |"
    cells = [
        f"| {name} | " + " | ".join(cell(name, here) for here in stand.values()) + " |"
        for name in names  # in the order in which they ran
    ]
    measured = "\n".join([head, "|---" * (len(stand) + 1) + "|", *cells])
    said = f"{found.machine}; {'; '.join(found.versions)}."
    return {
        "measured": measured,
        "faster": faster(stand),
        "modes": modes(found),
        "torch": torch(),
        "machine": said,
    }


def faster(stand: dict[tuple[str, str], list[Beside]]) -> str:
    """Who of the others was at the floor sooner than `erase`."""
    lines = []
    for (posterior, request), here in stand.items():
        sooner = [each for each in here if each.row.kind in ("reuse", "refit") and each.reached and each.ratio < 1]
        names = ", ".join(f"{each.row.method} ({each.ratio:.2g}×)" for each in sorted(sooner, key=lambda it: it.ratio))
        lines.append(f"{posterior}, {request}: {names or 'nobody'}")
    return f"At the floor, and sooner than `erase`: {'; '.join(lines)}."


def cell(name: str, here: list[Beside]) -> str:
    """The ratio of seconds, and, of what is not at the floor, its errors."""
    each = next((each for each in here if each.row.method == name), None)
    if each is None:
        return ""
    errors = f"{each.row.mean_error:.2f} / {each.row.sd_error:.2f}"
    if name == UNTOUCHED:
        return "at the floor" if each.reached else errors
    return f"**{each.ratio:.2g}×**" if each.reached else f"{each.ratio:.2g}×, {errors}"


def torch() -> str:
    """What `python -m benchmarks networks` measured of the paper's algorithm in eager PyTorch."""
    head = "| the paper's algorithm, PyTorch / posterase | " + " | ".join(SPEED) + " |"
    kept = [json.loads((RESULTS / "networks" / name).read_text())["ratios"] for name in SPEED.values()]
    lines = []
    for network in ("LeNet", "CIFAR network"):
        for part in ("a step of SGLD", "a request"):
            ratios = [
                each["first"] / each["second"]
                for ratios in kept
                for each in ratios
                if each["what"].startswith(f"{network}: {part}, ") and "PyTorch" in each["what"]
            ]
            lines.append(f"| {network}: {part} | " + " | ".join(f"{ratio:.2g}" for ratio in ratios) + " |")
    return "\n".join([head, "|---" * (len(SPEED) + 1) + "|", *lines])


def filled(text: str, blocks: dict[str, str]) -> str:
    """A page with what was measured put into its places."""
    for name, block in blocks.items():
        opening, end = f"<!-- {name} -->\n", "<!-- end -->"
        assert text.count(opening) == 1, name
        before, rest = text.split(opening)
        text = f"{before}{opening}\n{block}\n\n{rest[rest.index(end) :]}"
    return text
