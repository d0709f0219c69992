"""How the requests of a case end: fitted, erased, and compared with the stored references."""

from __future__ import annotations

import dataclasses
import json
import time
import traceback
from pathlib import Path
from typing import Any, Literal

import posterase as pe
from posterase.errors import PosteraseError
from posterase.experiments.machine import machine
from tests.corpus.case import REFERENCE_SEED, Case
from tests.corpus.judge import Summary, wrong_variables

HERE = Path(__file__).parent
REFERENCES, RESULTS = HERE / "references", HERE / "results"
"""A file per case, so that several processes can share the work."""

Status = Literal["right", "wrong", "refused", "right refusal", "traceback"]

ACCEPTABLE: tuple[Status, ...] = ("right", "right refusal")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a request ended."""

    status: Status
    method: str = ""
    """The method that was accepted."""
    detail: str = ""
    """The text of the refusal, the variables that are wrong, or the traceback."""
    seconds: float = 0.0
    """Of the erasure, compilation included, in a process that has only fitted the model."""


@dataclasses.dataclass(frozen=True)
class Result:
    """How the requests of a case ended."""

    outcomes: dict[str, Outcome]
    """By the name of the request."""
    fit_seconds: float
    """Of the fit and the bridge."""
    machine: str

    def save(self, case: Case) -> None:
        """Write the file of the case."""
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{case.name}.json").write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, case: Case) -> Result | None:
        """Read the file of the case. None: the case was not run."""
        path = RESULTS / f"{case.name}.json"
        if not path.exists():
            return None
        stored = json.loads(path.read_text())
        outcomes = {request: Outcome(**each) for request, each in stored["outcomes"].items()}
        return cls(outcomes, stored["fit_seconds"], stored["machine"])


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


def run(case: Case, policy: pe.Policy | None = None) -> Result:
    """Fit the model, erase the rows of both requests, and compare with the references."""
    started = time.perf_counter()
    fitted: tuple[Any, pe.Draws] | Outcome
    try:
        fitted = case.fit()
    except PosteraseError as error:
        fitted = _refused(case, str(error))
    except Exception:
        fitted = Outcome("traceback", "", traceback.format_exc())
    fit_seconds = time.perf_counter() - started
    outcomes = {}
    for request in case.requests:
        started = time.perf_counter()
        outcome = fitted if isinstance(fitted, Outcome) else _erase(case, *fitted, request, policy)
        outcomes[request] = dataclasses.replace(outcome, seconds=round(time.perf_counter() - started, 2))
    return Result(outcomes, round(fit_seconds, 2), machine())


def _erase(case: Case, model: Any, draws: pe.Draws, request: str, policy: pe.Policy | None) -> Outcome:
    if not case.is_posterior:
        return Outcome("wrong", "", "the bridge accepted draws that are not of a posterior of these rows")
    try:
        result = pe.erase(model, draws, case.requests[request], policy=policy)
        verdict = result.verdict
        if not verdict.accepted:
            return _refused(case, f"{verdict.reason} {verdict.advice}")
        posterior = result.to_arviz()["posterior"].to_dataset()
        wrong = wrong_variables(posterior, references_of(case)[request], case.emptied_by(request), case.ignore)
        return Outcome("wrong" if wrong else "right", verdict.method, "; ".join(wrong))
    except PosteraseError as error:
        return _refused(case, str(error))
    except Exception:
        return Outcome("traceback", "", traceback.format_exc())


def _refused(case: Case, message: str) -> Outcome:
    """A refusal, which is right where the case expects one and the message names what works."""
    return Outcome("right refusal" if case.refusal and case.refusal in message else "refused", "", message)
