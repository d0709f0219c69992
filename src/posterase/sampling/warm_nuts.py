"""NUTS from a warm start: from draws that are near the target, in the coordinates that their covariance gives.

    θ = m + L z,        L Lᵀ the covariance of the draws, m their mean

In z the target has about unit covariance, however correlated its parameters are. So the sampler's mass matrix is the
identity, and only the step size is left to adapt, which takes a few dozen steps of dual averaging instead of hundreds.
The metric decides how fast the chains are, not where they go.

References
----------
Hoffman & Gelman (2014), The No-U-Turn sampler, JMLR 15, Section 3.2. Neal (2011), MCMC using Hamiltonian dynamics,
Section 4.1, on metrics as changes of coordinates.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from posterase.draws.draws import Draws
from posterase.model.base import AbstractModel
from posterase.model.densities import LogDensity
from posterase.numerics.densities import unconstrained
from posterase.numerics.extra_chances import Frame, RaveledDensity
from posterase.numerics.transport_maps import MATRICES_UP_TO
from posterase.runtime import sharding
from posterase.runtime.precision import all_digits, as_jax, cast_floats, widest_float
from posterase.sampling.effective_draws import effective_draws

PIECES = 10
"""A run is cut into about so many pieces, between which progress is shown."""

FIRST_STEPS = 5
"""Steps of the first call, in which the program is compiled: the others are timed."""

FEWEST_EFFECTIVE = 2.0
"""A covariance is a matrix where there are at least so many effective draws per parameter; else only variances."""

FLATTENED = (1.0, 0.5, 0.25, 0.125, 0.0)
"""Powers of the weights: the first that leaves enough effective draws is taken."""

ENOUGH_SHARE = 0.1
"""Enough effective draws after weighting: this share of all."""


class WarmStart(NamedTuple):
    """Draws near a target: where chains start from, and coordinates in which they have about unit covariance."""

    thetas: Float[np.ndarray, "n d"]
    """Raveled unconstrained draws."""
    weights: Float[np.ndarray, " n"]
    centre: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, "d ..."]
    """A Cholesky factor of the draws' covariance, or their standard deviations."""
    like: PyTree
    """One draw's parameters, for the structure of a raveled one."""

    @property
    def covariance(self) -> Float[np.ndarray, "d d"]:
        """Of the draws."""
        return self.scale @ self.scale.T if self.scale.ndim == 2 else np.diag(self.scale**2)

    def z(self, thetas: Float[np.ndarray, "... d"]) -> Float[np.ndarray, "... d"]:
        """Coordinates of raveled parameters."""
        centred = thetas - self.centre
        return np.linalg.solve(self.scale, centred.T).T if self.scale.ndim == 2 else centred / self.scale

    def theta(self, z: Float[np.ndarray, "... d"]) -> Float[np.ndarray, "... d"]:
        """Raveled parameters at coordinates."""
        return self.centre + (z @ self.scale.T if self.scale.ndim == 2 else z * self.scale)

    def pick(self, random: np.random.Generator, chains: int) -> Float[np.ndarray, "chain d"]:
        """Draws by their weights, spread evenly over the chains that they come from."""
        edges = np.cumsum(self.weights)
        points = (np.arange(chains) + random.uniform()) / chains * edges[-1]
        return self.thetas[np.minimum(np.searchsorted(edges, points, side="right"), len(edges) - 1)]


class WarmSampled(NamedTuple):
    """What the chains returned."""

    thetas: Float[np.ndarray, "chain draw d"]
    divergences: int
    """After the warm-up."""
    gradients: int
    """Of all chains, warm-up and all."""
    sequential: int
    """Those that waited for each other."""


def warm_start(model: AbstractModel, draws: Draws) -> WarmStart:
    """Coordinates from weighted draws. Weights that leave few effective draws are flattened first."""
    thetas, like = unconstrained(model, draws)
    weights = flattened(np.asarray(draws.weights, np.float64).ravel())
    plain = draws if draws.log_weights is None else draws.replace(draws.params)
    remembered = min(min(effective_draws(plain).values()) / len(weights), 1.0)
    effective = remembered / (weights**2).sum()
    centre = weights @ thetas
    centred = thetas - centre
    variances = np.maximum(weights @ centred**2, np.finfo(np.float32).tiny)
    scale = np.sqrt(variances)
    d = len(centre)
    if d <= MATRICES_UP_TO and effective >= FEWEST_EFFECTIVE * d:
        trust = effective / (effective + d)
        correlation = (centred / scale * weights[:, None]).T @ (centred / scale)
        with contextlib.suppress(np.linalg.LinAlgError):  # of parameters that determine each other: variances will do
            scale = scale[:, None] * np.linalg.cholesky(trust * correlation + (1 - trust) * np.eye(d))
    return WarmStart(thetas, weights, centre, scale, like)


def warm_nuts(
    key: Key[Array, ""],
    model: AbstractModel,
    start: WarmStart,
    chains: int,
    draws: int,
    warmup: int,
    target_acceptance: float,
    report: Callable[[int, int, float], None] | None = None,
) -> WarmSampled:
    """Draw from a model's posterior, from a warm start.

    Parameters
    ----------
    key
        A jax key.
    model
        Whose posterior is sampled.
    start
        Draws near it.
    chains, draws
        How many chains, and how many draws of each.
    warmup
        Steps before them, in which the step size is adapted.
    target_acceptance
        The acceptance rate that it is adapted to.
    report
        `report(done, steps, seconds left)` is called on the way.
    """
    random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    precise = RaveledDensity(LogDensity(model), cast_floats(start.like, widest_float()))
    frame = Frame(as_jax(start.centre, widest_float()), as_jax(start.scale, widest_float()))
    sampler = _Sampler(key, precise, frame, target_acceptance)
    state = sampler.begin(start.z(start.pick(random, chains)))
    piece, total, done, kept, out = -(-draws // PIECES), warmup + draws, 0, [], []
    while done < total:
        adapts = done < warmup
        count = min(piece, total - done) if not adapts else min(FIRST_STEPS, warmup) if not done else warmup - done
        started = time.perf_counter()
        state, made = sampler.go(state, done, count, adapts, piece)
        kept += [] if adapts else [np.asarray(made.z, np.float64)[:, :count]]
        out.append((adapts, jax.device_get(made)))
        done += count
        if done == warmup:
            state = state.with_one_step_size()
        if report is not None and done > FIRST_STEPS:
            report(done, total, (total - done) * (time.perf_counter() - started) / count)
    return WarmSampled(
        start.theta(np.concatenate(kept, axis=1)),
        sum(int(made.divergent.sum()) for adapts, made in out if not adapts),
        sum(int(made.steps.sum()) for _, made in out),
        sum(int(made.waited) for _, made in out),
    )


def flattened(weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Weights to a power that leaves enough effective draws."""
    for power in FLATTENED:
        flat = np.where(weights > 0, weights, 0.0) ** power if power else (weights > 0).astype(float)
        flat /= flat.sum()
        if 1 / (flat**2).sum() >= ENOUGH_SHARE * len(weights):
            break
    return flat


class _State(NamedTuple):
    """Where the chains are."""

    z: Float[Array, "chain d"]
    averaging: Any
    """blackjax's state of dual averaging."""

    def with_one_step_size(self) -> _State:
        """The median over chains of what dual averaging has found: each has had only a short time to find its own."""
        average = np.asarray(self.averaging.log_step_size_avg)
        found = np.full_like(average, np.median(average))
        return self._replace(averaging=self.averaging._replace(log_step_size=as_jax(found, found.dtype)))


class _Made(NamedTuple):
    """What steps made."""

    z: Float[Array, "chain room d"]
    divergent: Array
    steps: Array
    """Gradients of each chain."""
    waited: Array


class _Sampler(NamedTuple):
    """The program of steps, for warm-up and draws alike: one compilation."""

    key: Key[Array, ""]
    density: RaveledDensity
    frame: Frame
    target_acceptance: float

    def begin(self, z: Float[np.ndarray, "chain d"]) -> _State:
        from blackjax.adaptation.step_size import dual_averaging_adaptation

        size = np.full(len(z), z.shape[1] ** -0.25)
        averaging = dual_averaging_adaptation(self.target_acceptance)[0](size)
        strong = type(averaging)(*(as_jax(np.broadcast_to(each, size.shape), _dtype(each)) for each in averaging))
        return _State(as_jax(z, widest_float()), strong)

    def go(self, state: _State, done: int, count: int, adapts: bool, room: int) -> tuple[_State, _Made]:
        target = as_jax(self.target_acceptance, widest_float())
        numbers = as_jax(done, np.int32), as_jax(count, np.int32), as_jax(adapts), target
        return _go(self.key, self.density, self.frame, state, *numbers, room)


def _dtype(number: Any) -> Any:
    return np.int32 if np.asarray(number).dtype.kind == "i" else widest_float()


@eqx.filter_jit
@all_digits()
def _go(
    key: Key[Array, ""],
    density: RaveledDensity,
    frame: Frame,
    state: _State,
    done: Array,
    count: Array,
    adapts: Array,
    target_acceptance: Array,
    room: int,
) -> tuple[_State, _Made]:
    """So many steps of every chain; the last `room` of them are returned."""
    from blackjax.adaptation.step_size import dual_averaging_adaptation
    from blackjax.mcmc import nuts

    kernel = nuts.build_kernel()

    def chain(
        key: Any, state: _State, density: Any, frame: Frame, done: Any, count: Any, adapts: Any, target: Any
    ) -> Any:
        update = dual_averaging_adaptation(target)[1]

        def at(z: Float[Array, " d"]) -> Float[Array, ""]:
            return density(frame.theta(z))

        def step(i: Array, carry: Any) -> Any:
            chain, averaging, kept, divergent, steps = carry
            size, mass = jnp.exp(averaging.log_step_size), jnp.ones_like(state.z)
            chain, info = kernel(jax.random.fold_in(key, done + i), chain, at, size, mass)
            updated = update(averaging, info.acceptance_rate)
            averaging = jax.tree.map(lambda new, old: jnp.where(adapts, new, old).astype(old.dtype), updated, averaging)
            kept = kept.at[i % room].set(chain.position)
            steps = steps.at[i % room].add(info.num_integration_steps)
            return chain, averaging, kept, divergent + info.is_divergent, steps

        none = jnp.zeros((), jnp.int32)
        kept = jnp.zeros((room, *state.z.shape), state.z.dtype)
        begin = nuts.init(state.z, at), state.averaging, kept, none, jnp.zeros(room, jnp.int32)
        ended, averaging, kept, divergent, steps = jax.lax.fori_loop(0, count, step, begin)
        return _State(ended.position, averaging), kept, divergent, steps

    keys = jax.random.split(key, len(state.z))
    found = sharding.map_chains(chain, (keys, state), (density, frame, done, count, adapts, target_acceptance))
    state, kept, divergent, steps = found
    return state, _Made(kept, divergent, steps.sum(axis=1) + 1, steps.max(axis=0).sum() + 1)
