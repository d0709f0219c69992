"""Sample references, run the corpus, write its page."""

from __future__ import annotations

import argparse
import time

import jax

from tests.corpus.case import Case
from tests.corpus.outcome import run, sample_references
from tests.corpus.page import write_page
from tests.corpus.registry import all_cases


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("command", choices=("references", "run", "list", "page"))
    parser.add_argument("names", nargs="*", help="cases, or beginnings of their names (default: all)")
    given = parser.parse_args()
    if given.command == "page":
        write_page()
        return
    for case in all_cases().values():
        if given.names and not any(case.name.startswith(name) for name in given.names):
            continue
        jax.clear_caches()
        started = time.perf_counter()
        if given.command == "list":
            print(f"{case.name}: {case.n_rows} rows")
        elif given.command == "run":
            _run(case)
        elif not case.refusal:
            sample_references(case)
            print(f"{case.name}: {time.perf_counter() - started:.0f} s", flush=True)


def _run(case: Case) -> None:
    result = run(case)
    result.save(case)
    for request, outcome in result.outcomes.items():
        print(
            f"{case.name} {request}: {outcome.status} {outcome.method} {outcome.seconds:.1f} s {outcome.detail}",
            flush=True,
        )


if __name__ == "__main__":
    main()
