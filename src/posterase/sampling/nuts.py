"""The No-U-Turn sampler, through blackjax, for models small enough to see all rows at every step.

References
----------
Hoffman & Gelman (2014), The No-U-Turn sampler, JMLR 15. Cabezas et al. (2024), BlackJAX, arXiv 2402.10797.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, Key, PyTree

from posterase.draws.draws import Draws
from posterase.errors import InvalidOptionError, NonFiniteResultError
from posterase.model.base import AbstractModel
from posterase.numerics.failures import entry_point
from posterase.runtime import sharding
from posterase.runtime.precision import all_digits, cast_floats, widest_float
from posterase.runtime.prng import as_key
from posterase.sampling.mixing import mixing
from posterase.sampling.sample import initial_points

PIECES = 10


@dataclasses.dataclass(frozen=True)
class NutsDiagnostics:
    """How well the chains mixed."""

    rhat: dict[str, float]
    """R̂, rank normalised, the worst element of each parameter: above 1.01 the chains disagree."""
    ess: dict[str, float]
    """Bulk effective sample size, the worst element of each parameter."""
    divergences: int
    """Transitions whose energy went wrong."""
    gradients: int
    """Gradient evaluations after the warm-up, all chains together."""
    warmup_gradients: int
    """Those of the warm-up."""
    sequential: int
    """Gradient evaluations that waited for each other, warm-up and all: chains run side by side."""

    def __str__(self) -> str:
        worst, least = max(self.rhat.values()), min(self.ess.values())
        rhat = "R̂ not measured, for want of a second chain" if np.isnan(worst) else f"R̂ {worst:.3f} at worst"
        return f"{rhat}, ESS {least:.0f} at least, {self.divergences} divergences"


class NutsSampled(NamedTuple):
    """Draws and how well the chains mixed."""

    draws: Draws
    diagnostics: NutsDiagnostics


@entry_point
def nuts(
    key: Key[Array, ""] | int,
    model: AbstractModel,
    initial: PyTree,
    draws: int = 1000,
    *,
    warmup: int = 1000,
    target_acceptance: float = 0.8,
    report: Callable[[int, int], None] | None = None,
    mesh: Mesh | None = None,
) -> NutsSampled:
    """Draw from a model's posterior by the No-U-Turn sampler.

    Parameters
    ----------
    key
        A seed or a jax key.
    model
        Whose posterior is sampled.
    initial
        Where the chains begin, on the parameters' own scale, leaves shaped `(chain, …)`.
    draws
        How many a chain.
    warmup
        Steps before them, in which step size and mass matrix are adapted, to each chain by itself.
    target_acceptance
        The acceptance rate that the step size is adapted to: a higher one takes smaller steps.
    report
        `report(done, draws)` is called on the way.
    mesh
        Devices to spread chains and rows over: `pe.mesh()`.
    """
    for name, value in (("draws", draws), ("warmup", warmup)):
        if not (isinstance(value, int) and value >= 4):
            raise InvalidOptionError(f"{name} is {value!r}.", "use a whole number, at least 4.")
    if not 0 < target_acceptance < 1:
        raise InvalidOptionError(f"target_acceptance is {target_acceptance}.", "use a number between 0 and 1.")
    points = initial_points(initial)
    model.check(points)
    return sharding.run_over(
        mesh, lambda: _nuts(as_key(key), model.spread(), points, draws, warmup, target_acceptance, report)
    )


def _nuts(
    key: Key[Array, ""],
    model: AbstractModel,
    points: Draws,
    draws: int,
    warmup: int,
    target_acceptance: float,
    report: Callable[[int, int], None] | None,
) -> NutsSampled:
    for_warmup, for_draws = (jax.random.split(one, points.n_chains) for one in jax.random.split(key))
    start = cast_floats(points.flat(), widest_float())  # as blackjax draws its momenta
    state, settings, warmed = _warm(for_warmup, model, jax.vmap(model.unconstrain)(start), warmup, target_acceptance)
    if not np.isfinite(settings["step_size"]).all():
        raise NonFiniteResultError(
            "the warm-up found no step size: the density is not finite around the initial points.",
            "start inside the support, near the mode, and check the model's functions there.",
        )
    piece = draws if report is None else max(1, draws // PIECES)
    pieces, done = [], 0
    while done < draws:
        size = min(piece, draws - done)
        state, out = _draw(for_draws, model, state, settings, jnp.asarray(done), size)
        pieces.append(out)
        done += size
        if report is not None:
            report(done, draws)
    params, divergent, steps = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), *pieces)
    sampled = Draws(params)
    rhat, ess = mixing(sampled)
    waited = int(warmed.max(axis=0).sum() + steps.max(axis=0).sum())
    counts = int(divergent.sum()), int(steps.sum()), int(warmed.sum()), waited
    return NutsSampled(sampled, NutsDiagnostics(rhat, ess, *counts))


@eqx.filter_jit
@all_digits()
def _warm(
    keys: Key[Array, " chain"], model: AbstractModel, thetas: PyTree, steps: int, target: float
) -> tuple[Any, dict[str, Any], Int[Array, "chain steps"]]:
    import blackjax

    def warm(
        key: Key[Array, ""], theta: PyTree, model: AbstractModel
    ) -> tuple[Any, dict[str, Any], Int[Array, " steps"]]:
        adaptation = blackjax.window_adaptation(blackjax.nuts, model.log_density, target_acceptance_rate=target)
        (state, settings), info = adaptation.run(key, theta, steps)
        used = {name: settings[name] for name in ("step_size", "inverse_mass_matrix")}
        return state, used, info.info.num_integration_steps

    return sharding.map_chains(warm, (keys, thetas), (model,))


@eqx.filter_jit
@all_digits()
def _draw(
    keys: Key[Array, " chain"], model: AbstractModel, state: Any, settings: dict[str, Any], done: Array, draws: int
) -> tuple[Any, tuple[PyTree, Array, Array]]:
    import blackjax

    def chain(
        key: Key[Array, ""], state: Any, settings: dict[str, Any], model: AbstractModel, done: Array
    ) -> tuple[Any, tuple[PyTree, Array, Array]]:
        step = blackjax.nuts(model.log_density, **settings).step

        def one(state: Any, at: Array) -> tuple[Any, tuple[PyTree, Array, Array]]:
            state, info = step(jax.random.fold_in(key, at), state)
            return state, (model.constrain(state.position), info.is_divergent, info.num_integration_steps)

        return jax.lax.scan(one, state, done + jnp.arange(draws))

    return sharding.map_chains(chain, (keys, state, settings), (model, done))
