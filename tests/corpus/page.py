"""docs/results/models.md: what came of every model of the corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from benchmarks.harness import write_whole

from tests.corpus.case import Case
from tests.corpus.judge import MEAN_SHIFT, SPREAD_RATIO, STANDARD_ERRORS
from tests.corpus.outcome import Outcome, Result
from tests.corpus.registry import all_cases

PAGE = Path(__file__).parents[2] / "docs" / "results" / "models.md"

LIBRARIES = {"numpyro": "NumPyro", "pymc": "PyMC", "stan": "Stan"}

REQUESTS = {"row": "one row", "group": "group"}

Results = Mapping[Case, Result]

INTRODUCTION = f"""\
Which models work? The corpus has {{n}} models as users of NumPyro, PyMC and Stan write them: the examples that the
libraries' galleries teach, in our own words and with simulated data. Each is fitted by its own library, and receives
two requests: to erase one row, and to erase a group of rows (a county, a person, or several rows), by
`pe.erase(model, draws, rows)` with the default policy.

An answer is right if no parameter, and no quantity that the model computes, differs from a long run on the kept data by
more than {STANDARD_ERRORS} standard errors *and* more than {MEAN_SHIFT} standard deviations in its mean, or more than
{STANDARD_ERRORS} standard errors *and* {SPREAD_RATIO - 1:.0%} in its standard deviation. The long runs are made by the
library itself, without posterase. A refusal is right if the corpus expects it and its message names something that
works; the table names the model of the corpus that shows it. Mini-batches and subsampled plates have no posterior of
their rows to erase from: a refusal is the only right outcome, and they do not count as requests that could be answered.

Seconds are those of the request in a process that has fitted the model and done nothing else; the first request
includes most of the compilation. Run it again with `python -m tests.corpus run`, one model with
`python -m tests.corpus run NAME`; write this page with `python -m tests.corpus page`."""


def write_page() -> None:
    """Write the page from the stored results."""
    results = {case: found for case in all_cases().values() if (found := Result.load(case)) is not None}
    tables = [
        _table(name, {case: found for case, found in results.items() if case.library == library})
        for library, name in LIBRARIES.items()
    ]
    parts = [
        "# Models that work",
        f"From `python -m tests.corpus run`: {_machine(results.values())}.",
        INTRODUCTION.format(n=len(results)),
        _totals(results),
        *tables,
    ]
    write_whole(PAGE, "\n\n".join(parts) + "\n")


def _machine(results: Iterable[Result]) -> str:
    machines = sorted({result.machine for result in results})
    first = machines[0].partition(" ")[0]
    return machines[-1] + ("" if machines[-1].startswith(first) else f"; the oldest results are of {first}")


def _totals(results: Results) -> str:
    lines = [
        "| library | models | requests | answered and right | share | right refusals | other refusals | wrong "
        "| tracebacks | no posterior, refused |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, libraries in [*((name, [each]) for each, name in LIBRARIES.items()), ("**all**", list(LIBRARIES))]:
        ours = {case: result for case, result in results.items() if case.library in libraries}
        counted = Counter(
            outcome.status for case, result in ours.items() if case.is_posterior for outcome in result.outcomes.values()
        )
        others = [o.status for case, result in ours.items() if not case.is_posterior for o in result.outcomes.values()]
        asked = counted.total()
        columns = [
            name,
            len(ours),
            asked,
            counted["right"],
            f"{counted['right'] / asked:.0%}" if asked else "",
            *(counted[status] for status in ("right refusal", "refused", "wrong", "traceback")),
            f"{others.count('right refusal')} of {len(others)}" if others else "",
        ]
        lines.append(_line(columns))
    return "\n".join(lines)


def _table(name: str, results: Results) -> str:
    lines = [
        f"## {name}\n",
        "| model | what it shows | one row | seconds | group | rows | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    refusals = {}
    for case, result in results.items():
        row, group = result.outcomes["row"], result.outcomes["group"]
        short = case.name.removeprefix(f"{case.library}-")
        shown = [_cell(case, row), f"{row.seconds:.1f}", _cell(case, group), len(case.group), f"{group.seconds:.1f}"]
        lines.append(_line([short, case.shows.rstrip("."), *shown]))
        for request, outcome in result.outcomes.items():
            if outcome.status != "right":
                said = outcome.detail.strip().splitlines()
                text = " ".join(" ".join(said[-1:] if outcome.status == "traceback" else said).split())
                refusals.setdefault((short, outcome.status, text), []).append(REQUESTS[request])
    notes = [
        f"- **{short}**, {' and '.join(requests)}: {status}. {escape(text, quote=False)}"
        for (short, status, text), requests in refusals.items()
    ]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _cell(case: Case, outcome: Outcome) -> str:
    if outcome.status == "right":
        return outcome.method
    if outcome.status == "right refusal":
        example = f"; {case.instead.removeprefix(f'{case.library}-')} works" if case.instead else ""
        return f"right refusal{example}"
    return f"**{outcome.status}**"


def _line(columns: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, columns))} |"
