"""The posteriors of `posterase.experiments.posteriors` as Stan programs, with their data.

Our own text. Rows are counted apart from what has a parameter of its own (schools, places, counties), so that a
parameter whose rows are gone is left to its prior, as in the other libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from posterase.bridges.stan.data import Subset

Arguments = dict[str, Any]


class Written(NamedTuple):
    """A program, its data from the arguments of the NumPyro model, and how they are cut."""

    program: str
    data: Callable[[Arguments], Arguments]
    subset: Subset | None = None


KIDIQ = """
data {
  int<lower=0> N;
  vector[N] mom_hs;
  vector[N] mom_iq;
  vector[N] kid_score;
}
parameters {
  vector[3] beta;
  real<lower=0> sigma;
}
model {
  sigma ~ cauchy(0, 2.5);
  kid_score ~ normal(beta[1] + beta[2] * mom_hs + beta[3] * mom_iq, sigma);
}
"""

NES = """
data {
  int<lower=0> N;
  vector[N] real_ideo;
  vector[N] race_adj;
  vector[N] age_discrete;
  vector[N] educ1;
  vector[N] gender;
  vector[N] income;
  vector[N] partyid7;
}
transformed data {
  matrix[N, 9] x;
  for (n in 1 : N) {
    x[n] = [1, real_ideo[n], race_adj[n], age_discrete[n] == 2, age_discrete[n] == 3, age_discrete[n] == 4, educ1[n],
            gender[n], income[n]];
  }
}
parameters {
  vector[9] beta;
  real<lower=0> sigma;
}
model {
  partyid7 ~ normal(x * beta, sigma);
}
"""

EIGHT_SCHOOLS = """
data {
  int<lower=0> N;
  int<lower=0> schools;
  array[N] int<lower=1, upper=schools> school;
  vector[N] sigma;
  vector[N] y;
}
parameters {
  real mu;
  real<lower=0> tau;
  vector[schools] theta_trans;
}
transformed parameters {
  vector[schools] theta = mu + tau * theta_trans;
}
model {
  mu ~ normal(0, 5);
  tau ~ cauchy(0, 5);
  theta_trans ~ std_normal();
  y ~ normal(theta[school], sigma);
}
"""

GAUSS_MIX = """
data {
  int<lower=0> N;
  vector[N] y;
}
parameters {
  ordered[2] mu;
  vector<lower=0>[2] sigma;
  real<lower=0, upper=1> theta;
}
model {
  mu ~ normal(0, 2);
  sigma ~ normal(0, 2);
  theta ~ beta(5, 5);
  for (n in 1 : N) {
    target += log_mix(theta, normal_lpdf(y[n] | mu[1], sigma[1]), normal_lpdf(y[n] | mu[2], sigma[2]));
  }
}
"""

GP_POISSON = """
data {
  int<lower=0> N;
  int<lower=0> places;
  vector[places] x;
  array[N] int<lower=1, upper=places> place;
  array[N] int<lower=0> k;
}
parameters {
  real<lower=0> rho;
  real<lower=0> alpha;
  vector[places] f_tilde;
}
transformed parameters {
  vector[places] f;
  {
    matrix[places, places] covariance = add_diag(gp_exp_quad_cov(to_array_1d(x), alpha, rho), 1e-10);
    f = cholesky_decompose(covariance) * f_tilde;
  }
}
model {
  rho ~ gamma(25, 4);
  alpha ~ normal(0, 2);
  f_tilde ~ std_normal();
  k ~ poisson_log(f[place]);
}
"""

REGRESSION = """
data {
  int<lower=0> N;
  int<lower=0> D;
  matrix[N, D] x;
  vector[N] y;
}
parameters {
  vector[D] beta;
  real<lower=0> sigma;
}
model {
  beta ~ normal(0, 10);
  sigma ~ normal(0, 10);
  y ~ normal(x * beta, sigma);
}
"""

RADON = """
data {
  int<lower=0> N;
  int<lower=0> counties;
  array[N] int<lower=1, upper=counties> county;
  vector[N] floor_measure;
  vector[N] log_radon;
}
parameters {
  real mu;
  real beta;
  real<lower=0> sigma_alpha;
  real<lower=0> sigma_y;
  vector[counties] alpha;
}
model {
  mu ~ normal(0, 10);
  beta ~ normal(0, 10);
  sigma_alpha ~ normal(0, 1);
  sigma_y ~ normal(0, 1);
  alpha ~ std_normal();
  log_radon ~ normal(mu + sigma_alpha * alpha[county] + beta * floor_measure, sigma_y);
}
"""


def _counted(data: Arguments) -> Arguments:
    """The arguments, with the number of rows."""
    return {"N": len(next(iter(data.values()))), **data}


def _numbered(name: str, count: str) -> Callable[[Arguments], Arguments]:
    """With as many of something as there are rows, and which of them each row is of."""

    def made(data: Arguments) -> Arguments:
        n = len(next(iter(data.values())))
        return {"N": n, count: n, name: np.arange(n) + 1, **data}

    return made


def _cut(*names: str) -> Subset:
    """A subset of these arrays only."""
    return lambda data, rows: {**data, "N": len(rows), **{name: data[name][rows] for name in names}}


def _with_columns(data: Arguments) -> Arguments:
    return {**_counted(data), "D": np.shape(data["x"])[1]}


def _radon(data: Arguments) -> Arguments:
    floor, log_radon = (np.asarray(data[name], float) for name in ("floor", "log_radon"))
    county = np.asarray(data["county"]) + 1
    return {"N": len(county), "counties": 85, "county": county, "floor_measure": floor, "log_radon": log_radon}


PROGRAMS = {
    "kidiq-kidscore_momhsiq": Written(KIDIQ, _counted),
    "nes2000-nes": Written(NES, _counted),
    # As many schools, or places, as rows: the default subset would not know which is which.
    "eight_schools-eight_schools_noncentered": Written(
        EIGHT_SCHOOLS, _numbered("school", "schools"), _cut("school", "sigma", "y")
    ),
    "low_dim_gauss_mix-low_dim_gauss_mix": Written(GAUSS_MIX, _counted),
    "gp_pois_regr-gp_pois_regr": Written(GP_POISSON, _numbered("place", "places"), _cut("place", "k")),
    "sblrc-blr": Written(REGRESSION, _with_columns),
    "radon_mn": Written(RADON, _radon),
}
