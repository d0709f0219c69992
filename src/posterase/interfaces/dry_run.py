"""`posterase erase --dry-run`: rows that would go, methods that would be tried, and about how long they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from posterase.draws import Draws
from posterase.erasers.eraser import Eraser
from posterase.erasure import planned
from posterase.interfaces.builders import Fit
from posterase.log_densities import LogDensity
from posterase.model import AbstractModel
from posterase.numerics.cost import Cost
from posterase.numerics.densities import batch_size, unconstrained
from posterase.policy import Policy
from posterase.removal import Removal
from posterase.stored_likelihoods import StoredLikelihoods
from posterase.streams import Stream

SHOWN = 10
"""Row ids that are printed."""

TOGETHER = 64
"""Draws whose gradients are timed at once."""

WAITS = 2.5
"""Gradients that wait for each other take so many times what they take together. Measured: 2.5 on a hierarchy."""

MACHINERY = 0.6
"""Seconds that the methods' own part of a program takes to compile, however simple the model. Measured on two cores."""

STORED_PER_ROW_AND_DRAW = 2e-9
"""Seconds to read a stored log-likelihood and add it up."""


class Needs(NamedTuple):
    """What a method needs, per draw and d¼, the growth of Hamiltonian trajectories with the number d of parameters."""

    gradients: float
    programs: float
    """Compiled programs that hold the model's gradient, about."""


NEEDS = {
    "Reweight": Needs(0.0, 0.0),
    "Transport": Needs(0.5, 2.5),
    "Rejuvenate": Needs(4.0, 7.0),
    "Refit": Needs(10.0, 9.0),
}
"""Of each method. Measured: linear regression (3 parameters, 60 rows) and a hierarchy (89 parameters, 919 rows)."""

OUTPUT = Needs(4.0, 5.0)
"""Of moving the draws of an accepted method that does not sample anew."""


class Forecast(NamedTuple):
    """A method that would be tried, and the seconds that it would take if it is accepted."""

    method: str
    evaluations: float
    """Gradients of the model, each of all rows."""
    first: float
    """Seconds where its programs have to be compiled."""
    again: float
    """Seconds where they are compiled."""

    def __str__(self) -> str:
        again = _seconds(self.again)
        if self.first == self.again:
            return f"{self.method}: {again}"
        return f"{self.method}: {_seconds(self.first)} for the first time, {again} once its programs are compiled"


class DryRun(NamedTuple):
    """What a request would do."""

    removed: list[int]
    n_rows: int
    forecasts: list[Forecast]
    doubts: list[str]
    """Why only a refit is left, if it is."""

    def lines(self) -> list[str]:
        """For people."""
        some = ", ".join(map(str, self.removed[:SHOWN])) + (", …" if len(self.removed) > SHOWN else "")
        rows = "1 row" if len(self.removed) == 1 else f"{len(self.removed)} rows"
        lines = [f"{rows} of {self.n_rows} would be erased: {some}."]
        if self.doubts:
            lines.append(f"Only a refit could be accepted: {'; '.join(self.doubts)}.")
        if not self.forecasts:
            return [*lines, "No method would be tried. To allow a refit: --policy refit=true."]
        lines.append("Methods, in order; the first that passes ends the request:")
        return [*lines, *(f"  {each}" for each in self.forecasts), ESTIMATED]

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        methods = [each._asdict() for each in self.forecasts]
        return {"removed_rows": self.removed, "rows": self.n_rows, "doubts": self.doubts, "methods": methods}


ESTIMATED = (
    "Estimated from the measured time of this model's gradient, times the evaluations that each method needed on other "
    "models; it may be off by a factor of three. Each method includes the moves of its draws. Nothing was written."
)


def dry_run(fit: Fit, rows: Any, policy: Policy) -> DryRun:
    """What an erasure of these rows would do."""
    removal = fit.model.removal(rows)
    methods, doubts = planned(fit.model, fit.draws, policy)
    forecasts = _forecast(fit.model, fit.draws, removal, methods)
    kept = fit.model.n_rows
    return DryRun([int(row) for row in removal.row_ids], kept, forecasts, [doubt.reason for doubt in doubts])


def _forecast(model: AbstractModel, draws: Draws, removal: Removal, methods: Sequence[Eraser]) -> list[Forecast]:
    """The cost of each method: evaluations that it needed elsewhere, times the time of this model's gradient."""
    n = draws.n_chains * draws.n_draws
    if isinstance(model, StoredLikelihoods):
        seconds = STORED_PER_ROW_AND_DRAW * n * removal.n_rows
        return [Forecast(type(each).__name__, 0.0, seconds, seconds) for each in methods]
    compiling, gradient = _measured(model, draws)
    share = removal.n_rows / model.n_rows
    growth = n * sum(int(np.prod(leaf.shape[2:])) for leaf in jax.tree.leaves(draws.params)) ** 0.25
    found = []
    for method in methods:
        needs = NEEDS.get(type(method).__name__, NEEDS["Refit"])
        moves = Needs(0.0, 0.0) if method.samples_anew else OUTPUT
        weights = 0.0 if method.samples_anew else n * (share + 2 * (needs.gradients > 0))
        cost = Cost(gradients=(needs.gradients + moves.gradients) * growth, densities=weights)
        again = WAITS * cost.evaluations * gradient
        first = again + (needs.programs + moves.programs) * (compiling + MACHINERY)
        found.append(Forecast(type(method).__name__, round(cost.evaluations), first, again))
    return found


def _measured(model: AbstractModel, draws: Draws) -> tuple[float, float]:
    """Seconds to compile the gradient of the log density, and to evaluate it at one draw."""
    density = LogDensity(model)
    thetas, like = unconstrained(model, draws)
    flat, unravel = ravel_pytree(like)
    # Streamed rows are read for one draw at a time.
    together = 1 if isinstance(model.data, Stream) else batch_size(density.elements, TOGETHER)
    some = jnp.asarray(thetas[:together], flat.dtype)

    @eqx.filter_jit
    def gradients(thetas: Float[Array, "n d"], density: LogDensity) -> Float[Array, "n d"]:
        return jax.lax.map(jax.grad(lambda theta: density(unravel(theta))), thetas, batch_size=together)

    def run() -> None:
        jax.block_until_ready(gradients(some, density))

    first, again = _timed(run), min(_timed(run) for _ in range(3))
    return max(first - again, 0.0), again / len(some)


def _timed(run: Callable[[], None]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _seconds(seconds: float) -> str:
    """To two digits: it is an estimate."""
    return "less than 0.1 s" if seconds < 0.1 else f"about {float(f'{seconds:.2g}'):g} s"
