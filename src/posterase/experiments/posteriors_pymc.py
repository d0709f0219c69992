"""The posteriors of `posterase.experiments.posteriors` as PyMC models. Our own text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt


def kidiq(mom_hs: Any, mom_iq: Any, kid_score: Any) -> pm.Model:
    """Children's test scores on the mother's schooling and IQ."""
    with pm.Model() as model:
        hs, iq = pm.Data("mom_hs", mom_hs), pm.Data("mom_iq", mom_iq)
        beta = pm.Flat("beta", shape=3)
        sigma = pm.HalfCauchy("sigma", 2.5)
        pm.Normal("kid_score", beta[0] + beta[1] * hs + beta[2] * iq, sigma, observed=kid_score)
    return model


def nes(
    real_ideo: Any, race_adj: Any, age_discrete: Any, educ1: Any, gender: Any, income: Any, partyid7: Any
) -> pm.Model:
    """Party identification in the American National Election Study of 2000."""
    ages = [np.asarray(age_discrete == age, float) for age in (2, 3, 4)]
    columns = np.stack([np.ones_like(real_ideo), real_ideo, race_adj, *ages, educ1, gender, income], axis=1)
    with pm.Model() as model:
        x = pm.Data("x", columns)
        beta = pm.Flat("beta", shape=9)
        sigma = pm.HalfFlat("sigma", initval=1.0)
        pm.Normal("partyid7", x @ beta, sigma, observed=partyid7)
    return model


def eight_schools(sigma: Any, y: Any) -> pm.Model:
    """Effects of coaching in eight schools, non-centred."""
    with pm.Model() as model:
        spread = pm.Data("sigma", sigma)
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        whitened = pm.Normal("theta_trans", 0, 1, shape=len(sigma))
        theta = pm.Deterministic("theta", mu + tau * whitened)
        pm.Normal("y", theta, spread, observed=y)
    return model


def gauss_mix(y: Any) -> pm.Model:
    """A mixture of two Gaussians, their means in order."""
    with pm.Model() as model:
        in_order = pm.distributions.transforms.ordered
        mu = pm.Normal("mu", 0, 2, shape=2, transform=in_order, initval=np.array([-1.0, 1.0]))
        sigma = pm.HalfNormal("sigma", 2, shape=2)
        theta = pm.Beta("theta", 5, 5)
        pm.NormalMixture("y", w=pt.stack([theta, 1 - theta]), mu=mu, sigma=sigma, observed=y)
    return model


def gp_poisson(x: Any, k: Any) -> pm.Model:
    """Counts whose log rate is a Gaussian process."""
    with pm.Model() as model:
        places = pm.Data("x", x)
        rho = pm.Gamma("rho", 25, 4)
        alpha = pm.HalfNormal("alpha", 2)
        whitened = pm.Normal("f_tilde", 0, 1, shape=len(x))
        squares = (places[:, None] - places[None, :]) ** 2
        covariance = alpha**2 * pt.exp(-squares / (2 * rho**2)) + 1e-10 * pt.eq(squares, 0)  # no two places are one
        f = pm.Deterministic("f", pt.linalg.cholesky(covariance) @ whitened)
        pm.Poisson("k", pt.exp(f), observed=k)
    return model


def regression(x: Any, y: Any) -> pm.Model:
    """Linear regression on correlated columns."""
    with pm.Model() as model:
        columns = pm.Data("x", x)
        beta = pm.Normal("beta", 0, 10, shape=x.shape[1])
        sigma = pm.HalfNormal("sigma", 10)
        pm.Normal("y", columns @ beta, sigma, observed=y)
    return model


def radon_hierarchy(county: Any, floor: Any, log_radon: Any) -> pm.Model:
    """Radon in the homes of 85 counties, non-centred."""
    with pm.Model() as model:
        of, low = pm.Data("county", county), pm.Data("floor", floor)
        mu, beta = pm.Normal("mu", 0, 10), pm.Normal("beta", 0, 10)
        sigma_alpha, sigma_y = pm.HalfNormal("sigma_alpha", 1), pm.HalfNormal("sigma_y", 1)
        alpha = pm.Normal("alpha", 0, 1, shape=85)
        pm.Normal("log_radon", mu + sigma_alpha * alpha[of] + beta * low, sigma_y, observed=log_radon)
    return model


MODELS: dict[str, Callable[..., pm.Model]] = {
    "kidiq-kidscore_momhsiq": kidiq,
    "nes2000-nes": nes,
    "eight_schools-eight_schools_noncentered": eight_schools,
    "low_dim_gauss_mix-low_dim_gauss_mix": gauss_mix,
    "gp_pois_regr-gp_pois_regr": gp_poisson,
    "sblrc-blr": regression,
    "radon_mn": radon_hierarchy,
}
