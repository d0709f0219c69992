"""InfluenceShift against a NUTS refit, and its solvers against each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

import posterase as pe
from benchmarks.harness import Ratio, compare
from benchmarks.problems import breast_cancer
from benchmarks.reweight import draws_of, logistic, request

CHAINS, WARMUP, DRAWS = 4, 500, 500


@jax.jit
def nuts(key: jax.Array, model: pe.Model) -> jax.Array:
    def chain(key: jax.Array) -> jax.Array:
        warm, sample = jax.random.split(key)
        adaptation = blackjax.window_adaptation(blackjax.nuts, model.log_density)
        (state, settings), _ = adaptation.run(warm, jnp.zeros(31), WARMUP)
        step = blackjax.nuts(model.log_density, **settings).step

        def next_draw(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            state, _ = step(key, state)
            return state, state.position

        return jax.lax.scan(next_draw, state, jax.random.split(sample, DRAWS))[1]

    return jax.vmap(chain)(jax.random.split(key, CHAINS))


def run() -> Iterator[Ratio]:
    model = breast_cancer().model
    draws = pe.Draws(nuts(jax.random.key(0), model))
    kept = model.without(model.change(remove=np.arange(10)))
    yield compare(
        f"breast cancer, 10 rows: NUTS, {CHAINS} × {WARMUP + DRAWS} steps / InfluenceShift, {CHAINS * DRAWS} draws",
        lambda: nuts(jax.random.key(1), kept),
        request(model, draws, pe.InfluenceShift(), 10),
        repeats=3,
    )
    wide = logistic(20_000, 300)
    wide_draws = draws_of(wide, 300)
    cg = request(wide, wide_draws, pe.InfluenceShift(solver=pe.CG(), samples=20, weigh=False))
    for name, solver in {
        "Cholesky": pe.Cholesky(),
        "Neumann, 65 terms": pe.Neumann(order=64, scale=4 / 20_000),
    }.items():
        other = request(wide, wide_draws, pe.InfluenceShift(solver=solver, samples=20, weigh=False))
        yield compare(f"20,000 rows, 300 parameters, 20 draws: {name} / CG", other, cg, repeats=3)
