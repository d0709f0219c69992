"""Radon in the homes of Minnesota: a hierarchy of 919 measurements in 85 counties.

    log_radon ~ N(α[county] + β floor, σ_y),   α = μ + σ_α α′,   α′ ~ N(0, 1),   μ, β ~ N(0, 10),   σ_α, σ_y ~ N⁺(0, 1)

A county that loses all its measurements has nothing left but its prior: α′ returns to N(0, 1).

The data are those of Gelman & Hill (2007), Data analysis using regression and multilevel/hierarchical models, in the
copy of posteriordb (`radon_mn`): `radon.csv` beside this file.
"""

from __future__ import annotations

import csv
from importlib import resources
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from posterase.model.factorised import Model
from posterase.model.transforms import positive


class Homes(NamedTuple):
    """One row a measurement."""

    county: Int[np.ndarray, " rows"]
    """0 to 84."""
    floor: Float[np.ndarray, " rows"]
    """0 in the basement, 1 on the first floor."""
    log_radon: Float[np.ndarray, " rows"]


def load() -> Homes:
    """The embedded data."""
    with resources.files("posterase.experiments").joinpath("radon.csv").open() as file:
        rows = list(csv.DictReader(file))
    return Homes(
        np.array([int(row["county"]) - 1 for row in rows]),
        np.array([float(row["floor"]) for row in rows]),
        np.array([float(row["log_radon"]) for row in rows]),
    )


def make_model(homes: Homes) -> Model:
    """The hierarchy, non-centred: parameters mu, beta, sigma_alpha, sigma_y and one alpha a county."""

    def log_prior(p: dict[str, Any]) -> Any:
        wide = (p["mu"] / 10) ** 2 + (p["beta"] / 10) ** 2
        return -0.5 * (wide + p["sigma_alpha"] ** 2 + p["sigma_y"] ** 2 + jnp.sum(p["alpha"] ** 2))

    def log_likelihood(p: dict[str, Any], data: dict[str, Any]) -> Any:
        level = p["mu"] + p["sigma_alpha"] * p["alpha"][data["county"]]
        residual = (data["log_radon"] - level - p["beta"] * data["floor"]) / p["sigma_y"]
        return -0.5 * residual**2 - jnp.log(p["sigma_y"]) - 0.5 * jnp.log(2 * jnp.pi)

    return Model(log_prior, log_likelihood, homes._asdict(), transforms={"sigma_alpha": positive, "sigma_y": positive})


def initial(homes: Homes, chains: int) -> dict[str, Any]:
    """Where chains can start."""
    counties = homes.county.max() + 1
    return {
        "mu": np.full(chains, homes.log_radon.mean(), np.float32),
        "beta": np.zeros(chains, np.float32),
        "sigma_alpha": np.full(chains, 0.3, np.float32),
        "sigma_y": np.full(chains, 0.8, np.float32),
        "alpha": np.zeros((chains, counties), np.float32),
    }
