"""Real posteriors with gold-standard draws, from posteriordb, as NumPyro models; and a hierarchy.

posteriordb (the Stan developers' posterior database, BSD-3-Clause; the data carry their own sources' licences) has for
each of six posteriors ten chains of a thousand draws that its authors vouch for. The models here are our own text of
what is sampled there. Its files are read from a folder with its `data/*.json.zip` and `draws/*.json.zip`.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Float, Int
from numpyro.distributions import constraints

from posterase.errors import InputFileError
from posterase.experiments import radon

Values = dict[str, np.ndarray]
Rows = Int[np.ndarray, " rows"]


class Posterior(NamedTuple):
    """A model, its data, and how its reference draws become its parameters."""

    name: str
    model: Callable[..., None]
    data: str
    """The file of the data; empty for the embedded hierarchy, of which there are no reference draws."""
    arguments: Callable[[dict[str, Any]], dict[str, Any]]
    """The model's arguments from the file."""
    parameters: Callable[[Values, dict[str, Any]], Values]
    """The model's parameters from reference draws, which hold what it computes from them; and its arguments."""
    group: Callable[[dict[str, Any]], Rows]
    """Rows that belong together."""
    told: str
    """The group, in words."""
    shared: tuple[str, ...] = ()


def kidiq(mom_hs: Any, mom_iq: Any, kid_score: Any = None) -> None:
    """Children's test scores on the mother's schooling and IQ."""
    beta = numpyro.sample("beta", dist.ImproperUniform(constraints.real, (), (3,)))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    with numpyro.plate("child", len(mom_hs)):
        numpyro.sample("kid_score", dist.Normal(beta[0] + beta[1] * mom_hs + beta[2] * mom_iq, sigma), obs=kid_score)


def nes(
    real_ideo: Any, race_adj: Any, age_discrete: Any, educ1: Any, gender: Any, income: Any, partyid7: Any = None
) -> None:
    """Party identification in the American National Election Study of 2000."""
    beta = numpyro.sample("beta", dist.ImproperUniform(constraints.real, (), (9,)))
    sigma = numpyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), ()))
    ages = [age_discrete == age for age in (2, 3, 4)]
    columns = [jnp.ones_like(real_ideo), real_ideo, race_adj, *ages, educ1, gender, income]
    with numpyro.plate("person", len(real_ideo)):
        mean = sum(beta[i] * column for i, column in enumerate(columns))
        numpyro.sample("partyid7", dist.Normal(mean, sigma), obs=partyid7)


def eight_schools(sigma: Any, y: Any = None) -> None:
    """Effects of coaching in eight schools, non-centred."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(sigma)):
        theta = mu + tau * numpyro.sample("theta_trans", dist.Normal(0, 1))
        numpyro.deterministic("theta", theta)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def gauss_mix(y: Any = None) -> None:
    """A mixture of two Gaussians, their means in order."""
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.ordered_vector, (), (2,)))
    numpyro.factor("prior_of_mu", dist.Normal(0, 2).log_prob(mu).sum())
    sigma = numpyro.sample("sigma", dist.HalfNormal(2).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Beta(5, 5))
    weights = dist.Categorical(probs=jnp.stack([theta, 1 - theta]))
    with numpyro.plate("point", len(y)):
        numpyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, sigma)), obs=y)


def gp_poisson(x: Any, k: Any = None) -> None:
    """Counts whose log rate is a Gaussian process."""
    rho = numpyro.sample("rho", dist.Gamma(25, 4))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2))
    whitened = numpyro.sample("f_tilde", dist.Normal(0, 1).expand([len(x)]).to_event(1))
    f = numpyro.deterministic("f", _gp_factor(x, rho, alpha, jnp) @ whitened)
    with numpyro.plate("place", len(x)):
        numpyro.sample("k", dist.Poisson(jnp.exp(f)), obs=k)


def regression(x: Any, y: Any = None) -> None:
    """Linear regression on correlated columns."""
    beta = numpyro.sample("beta", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10))
    with numpyro.plate("row", len(x)):
        numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def radon_hierarchy(county: Any, floor: Any, log_radon: Any = None, n_counties: int = 85) -> None:
    """Radon in the homes of 85 counties, non-centred."""
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    beta = numpyro.sample("beta", dist.Normal(0, 10))
    sigma_alpha = numpyro.sample("sigma_alpha", dist.HalfNormal(1))
    sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1))
    with numpyro.plate("county", n_counties):
        alpha = numpyro.sample("alpha", dist.Normal(0, 1))
    with numpyro.plate("home", len(county)):
        mean = mu + sigma_alpha * alpha[county] + beta * floor
        numpyro.sample("log_radon", dist.Normal(mean, sigma_y), obs=log_radon)


def _gp_factor(x: Any, rho: Any, alpha: Any, xp: Any) -> Any:
    """L with L Lᵀ = α² exp(−(x−x′)²/(2ρ²)) + 1e-10 I."""
    squares = (x[:, None] - x[None, :]) ** 2
    return xp.linalg.cholesky(alpha**2 * xp.exp(-squares / (2 * rho**2)) + 1e-10 * xp.eye(len(x)))


def _whitened_gp(draws: Values, data: dict[str, Any]) -> Values:
    shape = draws["rho"].shape
    flat = zip(*(draws[name].reshape(-1, *draws[name].shape[2:]) for name in ("rho", "alpha", "f")), strict=True)
    x = np.asarray(data["x"], np.float64)
    solved = [np.linalg.solve(_gp_factor(x, rho, alpha, np), f) for rho, alpha, f in flat]
    return {"rho": draws["rho"], "alpha": draws["alpha"], "f_tilde": np.array(solved).reshape(*shape, -1)}


def _whitened_schools(draws: Values, _: dict[str, Any]) -> Values:
    mu, tau = draws["mu"], draws["tau"]
    return {"mu": mu, "tau": tau, "theta_trans": (draws["theta"] - mu[..., None]) / tau[..., None]}


def _same(draws: Values, _: dict[str, Any]) -> Values:
    return draws


def _picked(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda data: {name: np.asarray(data[name], np.float64) for name in names}


POSTERIORS = (
    Posterior(
        "kidiq-kidscore_momhsiq",
        kidiq,
        "kidiq",
        _picked("mom_hs", "mom_iq", "kid_score"),
        _same,
        lambda data: np.flatnonzero(data["mom_iq"] < 85),
        "mothers with an IQ below 85",
    ),
    Posterior(
        "nes2000-nes",
        nes,
        "nes2000",
        _picked("real_ideo", "race_adj", "age_discrete", "educ1", "gender", "income", "partyid7"),
        _same,
        lambda data: np.flatnonzero(data["age_discrete"] == 4),
        "everybody over 64",
    ),
    Posterior(
        "eight_schools-eight_schools_noncentered",
        eight_schools,
        "eight_schools",
        _picked("sigma", "y"),
        _whitened_schools,
        lambda data: np.sort(np.argsort(data["y"])[-3:]),
        "the three best schools",
    ),
    Posterior(
        "low_dim_gauss_mix-low_dim_gauss_mix",
        gauss_mix,
        "low_dim_gauss_mix",
        _picked("y"),
        _same,
        lambda data: np.flatnonzero(data["y"] < 0)[:500],
        "500 points of one component",
    ),
    Posterior(
        "gp_pois_regr-gp_pois_regr",
        gp_poisson,
        "gp_pois_regr",
        lambda data: {"x": np.asarray(data["x"], np.float64), "k": np.asarray(data["k"])},
        _whitened_gp,
        lambda data: np.flatnonzero(data["x"] > 5),
        "the three places on the right",
        shared=("x",),
    ),
    Posterior(
        "sblrc-blr",
        regression,
        "sblrc",
        lambda data: {"x": np.asarray(data["X"], np.float64), "y": np.asarray(data["y"], np.float64)},
        _same,
        lambda data: np.sort(np.argsort(data["y"])[-20:]),
        "the twenty largest y",
    ),
    Posterior(
        "radon_mn",
        radon_hierarchy,
        "",
        lambda _: {name: np.asarray(values) for name, values in radon.load()._asdict().items()},
        _same,
        lambda data: np.flatnonzero(np.isin(data["county"], (1, 18, 69))),
        "three whole counties",
    ),
)


def arguments(posterior: Posterior, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The model's arguments, from posteriordb's file."""
    return posterior.arguments(_read(Path(folder) / "data" / f"{posterior.data}.json.zip") if posterior.data else {})


def reference_draws(posterior: Posterior, folder: str | os.PathLike[str]) -> Values:
    """The model's parameters, `(chain, draw, …)`, from posteriordb's reference draws."""
    chains = _read(Path(folder) / "draws" / f"{posterior.name}.json.zip")
    named: dict[str, list[Float[np.ndarray, "chain draw"]]] = {}
    for key in chains[0]:  # beta[1], beta[2], …: in order
        named.setdefault(key.split("[")[0], []).append(np.array([chain[key] for chain in chains]))
    indexed = {key.split("[")[0] for key in chains[0] if "[" in key}
    draws = {name: np.stack(parts, axis=-1) if name in indexed else parts[0] for name, parts in named.items()}
    return posterior.parameters(draws, arguments(posterior, folder))


def _read(path: Path) -> Any:
    try:
        with zipfile.ZipFile(path) as file:
            return json.loads(file.read(file.namelist()[0]))
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        raise InputFileError(
            f"{str(path)!r} cannot be read: {error}",
            "name the folder with posteriordb's data/ and draws/ (--posteriordb, or posteriordb in POSTERASE_DATA).",
        ) from error
