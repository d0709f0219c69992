"""What a block of the networks' experiment comes to: every metric of the paper's Tables 1 to 3, for every chain.

Differences of predictions and ε̂ compare a method's chain with the networks retrained from the same pre-trained start by
other seeds of the sampler, and so does the floor: `retrain 2` takes the method's place there. All values are kept chain
by chain, so that differences of two rows of a table are taken pair by pair; their errors are a jackknife over chains.

ε̂ is given twice: of the chains as they are, whose step sizes differ since their step counts do, and with all of them
set to the retrained chains' count and step sizes. It is mostly a measure of step sizes (docs/results/networks.md).
"""

from __future__ import annotations

import dataclasses
import platform
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from posterase.errors import NonFiniteResultError
from posterase.experiments.bnn import Arm, Block, make_sampler, probabilities
from posterase.experiments.machine import machine
from posterase.metrics.membership import member_shares
from posterase.metrics.nearest_neighbours import kl_of_neighbours
from posterase.numerics.curvature import ravel_draws
from posterase.sampling.sample import sample
from posterase.version import __version__

SETS = ("kept", "removed", "test")
PRODUCTS = {"gpu": "TF32 while training, float32 while judging"}
"""What jax makes of products of float32 matrices, by backend, where that is not float32."""
Predictions = dict[str, Float[np.ndarray, "chains rows classes"]]


def results(block: Block, *, epsilon: bool = True) -> dict[str, Any]:
    """Everything that the tables, figures and the page need, as JSON has it."""
    settings = block.problem.settings
    labels = _labels(block)
    predictions = {name: predict(block, arm) for name, arm in block.arms.items()}
    targets = [name for name in block.arms if name.startswith("retrain")]
    rows: dict[str, dict[str, Any]] = {}
    for name, arm in block.arms.items():
        seen = predictions[name]
        row: dict[str, Any] = {
            f"error_{each}": (100 * np.mean(seen[each].argmax(-1) != labels[each], axis=1)).tolist() for each in SETS
        }
        true = {each: seen[each][:, np.arange(len(labels[each])), labels[each]] for each in SETS}
        row["mia"] = (100 * member_shares(true["kept"], true["test"], true["removed"])).tolist()
        row["loss_kept"] = (-np.log(np.maximum(true["kept"], 1e-30)).mean(axis=1)).tolist()
        others = [other for other in targets if other != name]
        for each in SETS:
            row[f"difference_{each}"] = _mean_over(
                [_difference(seen[each], predictions[other][each]) for other in others]
            )
        rows[name] = {**row, "notes": arm.notes}
    if epsilon:
        for equal, key in ((False, "epsilon_as_run"), (True, "epsilon")):
            for name, values in _epsilons(block, targets, equal=equal).items():
                rows[name][key] = values
    # Every pair of retrainings, each from both its sides: the mean over retrainings of their mean over the others.
    measured = [f"difference_{each}" for each in SETS] + (["epsilon", "epsilon_as_run"] if epsilon else [])
    floor = {key: _mean_over([np.array(rows[name][key]) for name in targets if rows[name][key]]) for key in measured}
    # Retrainings from other starts: how far apart networks are that share the recipe and the rows, and not the start.
    other_starts = {
        f"difference_{each}": _between_starts([predictions[name][each] for name in targets])
        for each in SETS
        if settings.chains > 1
    }
    rows |= {name: {"notes": {"failed": reason}} for name, reason in block.failed.items()}
    return {
        "settings": {**dataclasses.asdict(settings), "case_study": list(settings.case_study)},
        "title": settings.title,
        "name": settings.name,
        "variant": settings.variant,
        "parameters": block.problem.network.size,
        "rows": {"all": block.problem.model.n_rows, "kept": block.problem.kept.n_rows},
        "classes": list(block.problem.classes),
        "case_study_labels": np.asarray(block.problem.test["y"])[list(settings.case_study)].tolist(),
        "methods": rows,
        "floor": floor if len(targets) > 1 else None,
        "other_starts": other_starts or None,
        "machine": machine(),
        "versions": {
            "posterase": __version__,
            "jax": jax.__version__,
            "python": platform.python_version(),
            "float32_products": PRODUCTS.get(jax.default_backend(), "float32"),
        },
    }


def predict(block: Block, arm: Arm) -> Predictions:
    """Class probabilities of kept, removed and test rows."""
    problem = block.problem
    x = problem.model.data["x"]
    every = np.asarray(probabilities(problem.network, arm.state.theta, x))
    if not np.isfinite(every).all():
        raise NonFiniteResultError("a chain's predictions are not finite.", "train with a smaller rate.")
    test = np.asarray(probabilities(problem.network, arm.state.theta, problem.test["x"]))
    return {"kept": every[:, problem.kept.row_ids], "removed": every[:, problem.removed], "test": test}


def _labels(block: Block) -> dict[str, np.ndarray]:
    y = np.asarray(block.problem.model.data["y"])
    return {
        "kept": y[block.problem.kept.row_ids],
        "removed": y[block.problem.removed],
        "test": np.asarray(block.problem.test["y"]),
    }


def _difference(
    one: Float[np.ndarray, "chains rows classes"], other: Float[np.ndarray, "chains rows classes"]
) -> Float[np.ndarray, " chains"]:
    """Mean over rows of ‖f − f′‖₁, chain by chain."""
    return np.abs(one - other).sum(axis=-1).mean(axis=1)


def _between_starts(retrained: list[Float[np.ndarray, "chains rows classes"]]) -> list[float]:
    """Of every chain, the mean difference from the retrained networks of the other chains."""
    first, *_, last = (retrained[0], *retrained)
    chains = len(first)
    apart = np.zeros((chains, chains))
    for shift in range(1, chains):
        apart[:, shift] = _difference(first, np.roll(last, shift, axis=0))
    return (apart.sum(axis=1) / (chains - 1)).tolist()


def _mean_over(values: list[Float[np.ndarray, " chains"]]) -> list[float] | None:
    return np.mean(values, axis=0).tolist() if values else None


def _epsilons(block: Block, targets: list[str], *, equal: bool) -> dict[str, list[float] | None]:
    """ε̂ in nats of every arm against the retrained ones, chain by chain."""
    tails = {name: _tail(block, block.arms[name], equal=equal) for name in targets}
    found = {}
    for name, arm in block.arms.items():
        own = tails[name] if name in tails else _tail(block, arm, equal=equal)
        pairs = [tails[other] for other in targets if other != name]
        found[name] = _mean_over(
            [np.array([kl_of_neighbours(x, y).value for x, y in zip(own, other, strict=True)]) for other in pairs]
        )
    return found


def _tail(block: Block, arm: Arm, *, equal: bool) -> Float[Array, "chains draws parameters"]:
    """Consecutive states of every chain from where it stands: as it would go on, or as the retrained ones do."""
    settings = block.problem.settings
    state, sampler = arm.state, arm.sampler
    if equal:
        sampler = make_sampler(settings, block.problem.kept.n_rows)
        state = state._replace(step=jnp.full_like(state.step, settings.steps))
    draws = sample(arm.model, sampler, state, settings.draws).draws.params
    return jax.vmap(ravel_draws)(draws)
