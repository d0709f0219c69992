"""Sample references, run the corpus, write its page."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
import traceback
from pathlib import Path
from typing import Any

import jax

import posterase as pe
from posterase.errors import PosteraseError
from tests.corpus.case import REFERENCE_SEED, Case
from tests.corpus.judge import Summary, wrong_variables
from tests.corpus.registry import all_cases

HERE = Path(__file__).parent
REFERENCES, RESULTS = HERE / "references", HERE / "results"
"""A file per case, so that cases can be run beside each other."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a request ended."""

    status: str
    """"right", "wrong", "refused" or "traceback"."""
    method: str = ""
    detail: str = ""
    seconds: float = 0.0


def references_of(case: Case) -> dict[str, dict[str, Summary]]:
    """The stored summaries of a case: by request, by variable."""
    stored = json.loads((REFERENCES / f"{case.name}.json").read_text())
    return {
        request: {name: Summary.from_dict(each) for name, each in variables.items()}
        for request, variables in stored["requests"].items()
    }


def sample_references(case: Case) -> None:
    """Sample the posterior of the kept rows of every request at length, and store its summary."""
    requests = {}
    for request, rows in case.requests.items():
        samples = case.sample(case.kept_data(rows), case.reference_draws, REFERENCE_SEED)
        requests[request] = {name: Summary.of(values).to_dict() for name, values in samples.items()}
    stored = {
        "command": f"python -m tests.corpus references {case.name}",
        "draws": 4 * case.reference_draws,
        "requests": requests,
    }
    REFERENCES.mkdir(exist_ok=True)
    (REFERENCES / f"{case.name}.json").write_text(json.dumps(stored) + "\n")


def run(case: Case, policy: pe.Policy | None = None) -> dict[str, Outcome]:
    """Fit, erase both requests, compare with the references."""
    try:
        model, draws = case.fit()
    except PosteraseError as error:
        return dict.fromkeys(case.requests, Outcome("refused", "", str(error)))
    except Exception:
        return dict.fromkeys(case.requests, Outcome("traceback", "", traceback.format_exc()))
    if case.no_posterior:
        return dict.fromkeys(case.requests, Outcome("wrong", "", "the bridge took a model that is no MCMC posterior"))
    references = references_of(case)
    found = {}
    for request, rows in case.requests.items():
        started = time.perf_counter()
        try:
            found[request] = _outcome(case, pe.erase(model, draws, rows, policy=policy), references[request])
        except PosteraseError as error:
            found[request] = Outcome("refused", "", str(error))
        except Exception:
            found[request] = Outcome("traceback", "", traceback.format_exc())
        found[request] = dataclasses.replace(found[request], seconds=time.perf_counter() - started)
    return found


def _outcome(case: Case, result: Any, reference: dict[str, Summary]) -> Outcome:
    if not result.verdict.accepted:
        return Outcome("refused", "", f"{result.verdict.reason} {result.verdict.advice}")
    wrong = wrong_variables(result.to_arviz()["posterior"].to_dataset(), reference, case.emptied, case.ignore)
    return Outcome("wrong" if wrong else "right", result.verdict.rung, "; ".join(wrong))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("command", choices=("references", "run", "list"))
    parser.add_argument("names", nargs="*", help="cases, or beginnings of their names (default: all)")
    given = parser.parse_args()
    cases = [c for c in all_cases().values() if not given.names or any(c.name.startswith(n) for n in given.names)]
    for case in cases:
        jax.clear_caches()
        if given.command == "list":
            print(f"{case.name}: {case.n_rows} rows")
        elif given.command == "references":
            started = time.perf_counter()
            if not case.no_posterior:
                sample_references(case)
            print(f"{case.name}: {time.perf_counter() - started:.0f} s", flush=True)
        else:
            outcomes = run(case)
            for request, outcome in outcomes.items():
                print(
                    f"{case.name} {request}: {outcome.status} {outcome.method} {outcome.seconds:.1f} s "
                    f"{outcome.detail}",
                    flush=True,
                )
            RESULTS.mkdir(exist_ok=True)
            stored = {name: dataclasses.asdict(each) for name, each in outcomes.items()}
            (RESULTS / f"{case.name}.json").write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
