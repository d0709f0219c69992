"""The product in one request: a posterior fitted by NUTS forgets one person, and a new fit shows what is right.

The regression on 442 patients of `posterase.experiments.diabetes`. The patient is the one whose change moves some
coefficient most, by 0.37 posterior standard deviations: one person among hundreds never moves a posterior far.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import numpy as np

from posterase.draws.draws import Draws
from posterase.experiments.diabetes import CHAINS, DRAWS, TERMS, Exact, columns, load, make_model
from posterase.ladder.erase import erase
from posterase.ladder.result import Result
from posterase.model.base import AbstractModel
from posterase.sampling.nuts import nuts

PATIENT = 169
"""The row to erase."""

NAMES = (*TERMS, "sigma")
SHOWN = 4
"""Coefficients that are shown: those that moved most."""

T = TypeVar("T")


class Timed(NamedTuple):
    """Seconds of a step, the first time (with compilation) and again."""

    first: float
    again: float


class OnePerson(NamedTuple):
    """A fit, the erasure of one person, and a new fit without that person."""

    before: Draws
    result: Result
    refit: Draws
    exact: Exact
    """The kept posterior, in closed form."""
    erasing: Timed
    fitting: Timed

    @property
    def names(self) -> tuple[str, ...]:
        """Of the coefficients, then sigma."""
        return NAMES

    @property
    def moved_most(self) -> list[int]:
        """The coefficients that the person's removal moves most."""
        away = np.abs(columns(self.before).mean(axis=0) - self.exact.mean()) / self.exact.sd()
        return [int(at) for at in np.argsort(-away)[:SHOWN]]


def run(seed: int = 0, report: Callable[[str], None] = lambda _: None) -> OnePerson:
    """Fit, erase, and fit again; each step twice, to tell its seconds without compilation."""
    patients = load()
    model = make_model(patients)
    report("fitting 442 patients by NUTS")
    first_fit, before = _timed(lambda: _fit(seed, model))
    report(f"erasing patient {PATIENT}")
    first, result = _timed(lambda: erase(model, before, rows=[PATIENT], random_seed=seed, progress=False))
    again, _ = _timed(lambda: erase(model, before, rows=[PATIENT], random_seed=seed + 1, progress=False))
    report("fitting the other 441 again, to compare")
    again_fit, refit = _timed(lambda: _fit(seed + 1, model.without(model.change(remove=[PATIENT]))))
    exact = Exact(patients, np.arange(len(patients.y)) != PATIENT)
    return OnePerson(before, result, refit, exact, Timed(first, again), Timed(first_fit, again_fit))


def _fit(seed: int, model: AbstractModel) -> Draws:
    initial = {"beta": np.zeros((CHAINS, len(TERMS)), np.float32), "sigma": np.ones(CHAINS, np.float32)}
    return nuts(jax.random.key(seed), model, initial, DRAWS).draws


def _timed(step: Callable[[], T]) -> tuple[float, T]:
    started = time.perf_counter()
    made = step()
    return time.perf_counter() - started, made
