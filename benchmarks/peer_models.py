"""The posteriors of `benchmarks.problems`, written for NumPyro, PyMC and as a plain density, on the rows that are kept.

Densities are of unconstrained parameters, Jacobians included, and equal ours up to a constant: `apart` measures it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

import posterase as pe
from benchmarks.problems import Problem
from posterase.model.densities import LogDensity
from posterase.numerics.densities import evaluate

Rows = dict[str, np.ndarray]


class Peers(NamedTuple):
    """One posterior as others write it."""

    numpyro: Callable[..., None]
    pymc: Callable[[Rows], Any]
    density: Callable[[Rows], Callable[[PyTree], Float[Array, ""]]]
    """Of the unconstrained parameters: a tree as the draws', positive ones as logarithms."""
    positive: tuple[str, ...]


def kept_rows(problem: Problem, rows: np.ndarray) -> Rows:
    data: Any = problem.model.data
    return {name: np.delete(np.asarray(values), rows, axis=0) for name, values in data.items()}


def logistic() -> Peers:
    import numpyro
    import numpyro.distributions as dist

    def program(x: Any, y: Any) -> None:
        p = numpyro.sample("p", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        numpyro.sample("y", dist.BernoulliLogits(x @ p), obs=y)

    def model(rows: Rows) -> Any:
        import pymc as pm

        with pm.Model() as made:
            p = pm.Normal("p", 0, 1, shape=rows["x"].shape[1])
            pm.Bernoulli("y", logit_p=rows["x"].astype(float) @ p, observed=rows["y"].astype(int))
        return made

    def density(rows: Rows) -> Callable[[PyTree], Float[Array, ""]]:
        x, y = jnp.asarray(rows["x"]), jnp.asarray(rows["y"])

        def at(theta: PyTree) -> Float[Array, ""]:
            eta = x @ theta["p"]
            return jnp.sum(y * eta - jnp.logaddexp(0, eta)) - 0.5 * jnp.sum(theta["p"] ** 2)

        return at

    return Peers(program, model, density, ())


def hierarchy() -> Peers:
    import numpyro
    import numpyro.distributions as dist

    def program(county: Any, floor: Any, log_radon: Any, counties: int = 85) -> None:
        mu = numpyro.sample("mu", dist.Normal(0, 10))
        beta = numpyro.sample("beta", dist.Normal(0, 10))
        sigma_alpha = numpyro.sample("sigma_alpha", dist.HalfNormal(1))
        sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1))
        alpha = numpyro.sample("alpha", dist.Normal(0, 1).expand([counties]).to_event(1))
        level = mu + sigma_alpha * alpha[county] + beta * floor
        numpyro.sample("log_radon", dist.Normal(level, sigma_y), obs=log_radon)

    def model(rows: Rows) -> Any:
        import pymc as pm

        with pm.Model() as made:
            mu, beta = pm.Normal("mu", 0, 10), pm.Normal("beta", 0, 10)
            sigma_alpha, sigma_y = pm.HalfNormal("sigma_alpha", 1), pm.HalfNormal("sigma_y", 1)
            alpha = pm.Normal("alpha", 0, 1, shape=85)
            level = mu + sigma_alpha * alpha[rows["county"]] + beta * rows["floor"]
            pm.Normal("log_radon", level, sigma_y, observed=rows["log_radon"])
        return made

    def density(rows: Rows) -> Callable[[PyTree], Float[Array, ""]]:
        county, floor, log_radon = (jnp.asarray(rows[name]) for name in ("county", "floor", "log_radon"))

        def at(theta: PyTree) -> Float[Array, ""]:
            log_scales = theta["sigma_alpha"], theta["sigma_y"]
            sigma_alpha, sigma_y = (jnp.exp(each) for each in log_scales)
            level = theta["mu"] + sigma_alpha * theta["alpha"][county] + theta["beta"] * floor
            wide = (theta["mu"] / 10) ** 2 + (theta["beta"] / 10) ** 2
            prior = -0.5 * (wide + sigma_alpha**2 + sigma_y**2 + jnp.sum(theta["alpha"] ** 2))
            rows_of = -0.5 * ((log_radon - level) / sigma_y) ** 2 - jnp.log(sigma_y)
            return prior + jnp.sum(rows_of) + sum(log_scales)

        return at

    return Peers(program, model, density, ("sigma_alpha", "sigma_y"))


PEERS = {"breast cancer": logistic, "radon": hierarchy}


def named(params: PyTree) -> dict[str, Any]:
    """Parameters by the peers' names: a single array is `p`."""
    return params if isinstance(params, dict) else {"p": params}


def unconstrained(peers: Peers, params: PyTree) -> dict[str, np.ndarray]:
    return {
        name: np.log(np.asarray(leaf, float)) if name in peers.positive else np.asarray(leaf, float)
        for name, leaf in named(params).items()
    }


def apart(problem: Problem, peers: Peers, draws: pe.Draws, removed: np.ndarray) -> dict[str, float]:
    """The largest deviation of each peer's log density from ours, over draws, after the constant is taken out."""
    rows, kept = kept_rows(problem, removed), problem.model.without(problem.model.change(remove=removed))
    ours = evaluate(LogDensity(kept), draws).ravel()
    flat = {name: leaf.reshape(-1, *leaf.shape[2:]) for name, leaf in unconstrained(peers, draws.params).items()}
    points = [{name: leaf[i] for name, leaf in flat.items()} for i in range(len(ours))]
    with jax.enable_x64(True):
        wide = {name: values.astype(float) if values.dtype.kind == "f" else values for name, values in rows.items()}
        values = {
            "plain density": [float(peers.density(wide)(point)) for point in points],
            "NumPyro": [_numpyro(peers, wide, point) for point in points],
        }
    made = peers.pymc(rows)
    logp = made.compile_logp(mode="FAST_COMPILE")  # a few calls are not worth a C compiler
    values["PyMC"] = [float(logp(_pymc_point(made, point))) for point in points]
    found = {name: np.asarray(each) - ours for name, each in values.items()}
    return {name: float(np.abs(each - each.mean()).max()) for name, each in found.items()}


def _numpyro(peers: Peers, rows: Rows, point: dict[str, np.ndarray]) -> float:
    from numpyro.infer.util import potential_energy

    return -float(potential_energy(peers.numpyro, (), rows, {name: jnp.asarray(leaf) for name, leaf in point.items()}))


def _pymc_point(made: Any, point: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {value.name: point[value.name.removesuffix("_log__")] for value in made.value_vars}
