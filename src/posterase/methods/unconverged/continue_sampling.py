"""Continue: go on with the sampler that made the draws, on the kept rows. Rejuvenation for big models.

Where a density of all rows is out of reach, mini-batches are not: every draw becomes a chain of SGLD or SGHMC and takes
some steps on the kept rows,

    θ ← θ + η ∇Ũ_kept(θ) + noise,        from shifted draws where `start` shifts them first

There is no acceptance step, so nothing is exact and nothing is measured: neither k̂ nor ε. What speaks for the result
is a comparison with refits (`posterase.match_refits`).

What a sampler carries beside its parameters (velocities, running moments) starts anew: it has seen the removed rows.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp

from posterase.draws.objections import Objection
from posterase.errors import InvalidOptionError
from posterase.methods.base import Method, MethodResult, Problem
from posterase.methods.diagnostics import Diagnostics
from posterase.model.densities import LogDensity
from posterase.numerics.cost import Cost
from posterase.numerics.densities import batch_size
from posterase.numerics.weights import parameter_ess
from posterase.runtime.checks import check_int
from posterase.sampling.sample import sample, start_chains
from posterase.sampling.sampler import Sampler, check_sampler

UNMEASURED = "how near the sampler came is not measured"

ADVICE = "compare it with refits (posterase.match_refits), or use Rejuvenate where a density can be had."


@dataclasses.dataclass(frozen=True)
class ContinueSamplingDetails:
    """What was done; of what it achieved nothing is measured."""

    steps: int
    started: MethodResult | None
    """What `start` did."""

    @property
    def brief(self) -> str:
        """What there is to say."""
        return f"{self.steps} steps, not measured"

    def __str__(self) -> str:
        return f"{self.steps} steps of every draw on the kept rows; {UNMEASURED}"

    def without_source(self) -> ContinueSamplingDetails:
        """The same without the model of all rows."""
        return self if self.started is None else dataclasses.replace(self, started=self.started.without_source())


class ContinueSampling(Method):
    """Some steps of an SG-MCMC sampler on the kept rows, from every draw.

    Parameters
    ----------
    sampler
        `SGLD(…)`, `SGHMC(…)` or another, with the step sizes and batches to go on with. Step sizes are
        rescaled by N/N′.
    steps
        How many steps every draw takes.
    start
        A method that moves the draws first: `InfluenceShift(weigh=False)`, say. None: as they are.
    """

    sampler: Sampler
    steps: int = eqx.field(static=True)
    start: Method | None = None

    def __check_init__(self) -> None:
        check_sampler(self.sampler)
        check_int("steps", self.steps, 1)
        if self.start is not None and (not isinstance(self.start, Method) or isinstance(self.start, ContinueSampling)):
            raise InvalidOptionError(
                f"start is {self.start!r}.", "use InfluenceShift(weigh=False), Transport() or None."
            )

    def run(self, problem: Problem, warm_start: MethodResult | None = None) -> MethodResult:
        key, model, draws, change = problem.parts
        first, resample, run = jax.random.split(key, 3)
        kept = model.without(change)
        started = None if self.start is None else self.start.run(problem.replace(key=first))
        moved = draws if started is None else started.draws
        moved = moved.resample(resample)
        sampler = self.sampler.rescaled(model.n_rows / kept.n_rows)
        flat, n = moved.flat(), moved.n_chains * moved.n_draws
        rows = kept.n_rows if sampler.batch is None else sampler.batch
        size = batch_size(LogDensity(kept).elements if sampler.batch is None else kept.elements(rows), n)
        pieces = []
        for at in range(0, n, size):
            chains = jax.tree.map(lambda leaf: leaf[at : at + size], flat)  # noqa: B023
            state = start_chains(jax.random.fold_in(run, at), kept, sampler, chains)
            pieces.append(sample(kept, sampler, state, 1, thin=self.steps).draws.params)
        joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *pieces)
        params = jax.tree.map(lambda new, old: new.astype(old.dtype).reshape(old.shape), joined, draws.params)
        returned = draws.replace(params)
        cost = Cost(gradients=n * self.steps * rows / kept.n_rows, sequential=self.steps)
        diagnostics = Diagnostics(
            ess=parameter_ess(returned),
            cost=cost if started is None else cost.plus(started.diagnostics.cost),
            flaw=Objection("not measured", UNMEASURED, ADVICE),
        )
        return MethodResult(returned, ContinueSamplingDetails(self.steps, started), diagnostics)
