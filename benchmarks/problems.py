"""Posteriors that the ladder is measured on, and the rows they are asked to forget."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_breast_cancer

import posterase as pe
from posterase.experiments import gmm, radon

CHAINS = 4


class Problem(NamedTuple):
    """A model, where its chains start, and requests by name."""

    name: str
    model: pe.Model
    initial: Any
    requests: dict[str, Any]


def breast_cancer() -> Problem:
    """Logistic regression on scikit-learn's breast-cancer data: 569 rows, 31 parameters."""
    table = load_breast_cancer()
    x = (table.data - table.data.mean(axis=0)) / table.data.std(axis=0)
    x = np.column_stack([np.ones(len(x)), x]).astype(np.float32)
    model = pe.Model(
        lambda p: -0.5 * jnp.sum(p**2),
        lambda p, data: data["y"] * (data["x"] @ p) - jnp.logaddexp(0, data["x"] @ p),
        {"x": x, "y": table.target.astype(np.float32)},
    )
    rng = np.random.default_rng(0)
    mixed = rng.permutation(len(x))
    malignant = rng.permutation(np.flatnonzero(table.target == 0))
    requests = {
        "1 row": mixed[:1],
        "10 rows": mixed[:10],
        "57 rows of one class": malignant[:57],
        "171 rows of one class": malignant[:171],
    }
    return Problem("breast cancer", model, np.zeros((CHAINS, 31), np.float32), requests)


def radon_hierarchy() -> Problem:
    """The radon hierarchy: 919 rows, 89 parameters."""
    homes = radon.load()
    rng = np.random.default_rng(0)
    mixed = rng.permutation(len(homes.county))
    counties = rng.permutation(homes.county.max() + 1)
    requests = {
        "a county": np.flatnonzero(homes.county == counties[0]),
        "1 % of rows": mixed[:9],
        "10 % of rows": mixed[:92],
        "30 counties": np.flatnonzero(np.isin(homes.county, counties[:30])),
    }
    return Problem("radon", radon.make_model(homes), radon.initial(homes, CHAINS), requests)


def mixture() -> Problem:
    """The paper's Gaussian mixture: 2,000 points, 4 centres in the plane."""
    settings = gmm.Settings()
    points = gmm.make_points(settings)
    model = gmm.make_model(settings, points)
    centres = gmm.initial_centres(points.z, settings.components)
    initial = np.broadcast_to(centres, (CHAINS, *centres.shape)).astype(np.float32)
    return Problem("mixture", model, initial, {"800 points": points.removed})


def poisson() -> Problem:
    """Poisson regression on 120 rows, one of them far out and with far too large a count."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(120), rng.normal(size=(120, 3))])
    x[7, 1:] = [2.5, -2.0, 2.5]
    y = rng.poisson(np.exp(x @ np.array([0.8, 0.3, -0.2, 0.1])))
    y[7] = 60
    model = pe.Model(
        lambda p: -0.5 * jnp.sum((p / 2) ** 2),
        lambda p, data: data["y"] * (data["x"] @ p) - jnp.exp(data["x"] @ p),
        {"x": x.astype(np.float32), "y": y.astype(np.float32)},
    )
    return Problem("Poisson", model, np.zeros((CHAINS, 4), np.float32), {"the influential row": np.array([7])})


PROBLEMS = (breast_cancer, radon_hierarchy, mixture, poisson)
