"""Models as users of Stan write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Shaped
from scipy.special import expit

from tests.corpus.case import Case, Data

LINEAR = """
data {
  int<lower=1> N;
  int<lower=1> K;
  matrix[N, K] x;
  vector[N] y;
}
parameters {
  real alpha;
  vector[K] beta;
  real<lower=0> sigma;
}
transformed parameters {
  vector[N] mu = alpha + x * beta;
}
model {
  alpha ~ normal(0, 5);
  beta ~ normal(0, 2);
  sigma ~ exponential(1);
  y ~ normal(mu, sigma);
}
generated quantities {
  vector[N] log_lik;
  vector[N] y_rep;
  real contrast = beta[1] - beta[2];
  for (n in 1:N) {
    log_lik[n] = normal_lpdf(y[n] | mu[n], sigma);
    y_rep[n] = normal_rng(mu[n], sigma);
  }
}
"""


def _linear() -> Data:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(80, 3))
    return {"N": 80, "K": 3, "x": x, "y": 1.0 + x @ [0.8, -0.5, 0.0] + 0.7 * rng.normal(size=80)}


LOGISTIC = """
data {
  int<lower=0> N;
  int<lower=1> K;
  matrix[N, K] x;
  array[N] int<lower=0, upper=1> y;
}
parameters {
  real alpha;
  vector[K] beta;
}
model {
  alpha ~ normal(0, 1.5);
  beta ~ student_t(7, 0, 1);
  y ~ bernoulli_logit_glm(x, alpha, beta);
}
generated quantities {
  vector[K] odds_ratio = exp(beta);
}
"""


def _logistic() -> Data:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(150, 4))
    y = rng.binomial(1, expit(-0.4 + x @ [1.0, -0.7, 0.3, 0.0]))
    return {"N": 150, "K": 4, "x": x, "y": y}


NEGATIVE_BINOMIAL = """
data {
  int<lower=1> N;
  vector[N] roach;
  vector[N] treatment;
  vector[N] log_exposure;
  array[N] int<lower=0> count;
}
parameters {
  real alpha;
  real b_roach;
  real b_treatment;
  real<lower=0> phi;
}
model {
  alpha ~ normal(1, 2);
  b_roach ~ normal(0, 1);
  b_treatment ~ normal(0, 1);
  phi ~ exponential(0.5);
  count ~ neg_binomial_2_log(alpha + b_roach * roach + b_treatment * treatment + log_exposure, phi);
}
"""


def _negative_binomial() -> Data:
    rng = np.random.default_rng(3)
    roach, treatment, exposure = rng.normal(size=120), rng.binomial(1, 0.5, 120), rng.normal(0, 0.3, 120)
    mean = np.exp(1.2 + 0.6 * roach - 0.5 * treatment + exposure)
    count = rng.negative_binomial(1.5, 1.5 / (1.5 + mean))
    return {
        "N": 120,
        "roach": roach,
        "treatment": treatment.astype(float),
        "log_exposure": exposure,
        "count": count,
    }


HIERARCHY = """
data {
  int<lower=1> N;
  int<lower=1> J;
  array[N] int<lower=1, upper=J> school;
  vector[N] score;
}
parameters {
  real mu;
  real<lower=0> tau;
  real<lower=0> sigma;
  vector[J] eta;
}
transformed parameters {
  vector[J] theta = mu + tau * eta;
}
model {
  mu ~ normal(0, 5);
  tau ~ normal(0, 2);
  sigma ~ normal(0, 2);
  eta ~ std_normal();
  score ~ normal(theta[school], sigma);
}
"""


def _hierarchy() -> Data:
    rng = np.random.default_rng(4)
    school = np.repeat(np.arange(10), 8)
    score = 2.0 + rng.normal(size=10)[school] + 1.2 * rng.normal(size=80)
    return {"N": 80, "J": 10, "school": school + 1, "score": score}


EIGHT_SCHOOLS = """
data {
  int<lower=0> J;
  vector[J] y;
  vector<lower=0>[J] sigma;
}
parameters {
  real mu;
  real<lower=0> tau;
  vector[J] theta_tilde;
}
transformed parameters {
  vector[J] theta = mu + tau * theta_tilde;
}
model {
  mu ~ normal(0, 5);
  tau ~ cauchy(0, 5);
  theta_tilde ~ normal(0, 1);
  y ~ normal(theta, sigma);
}
"""


def _eight_schools() -> Data:
    rng = np.random.default_rng(5)
    sigma = rng.uniform(4, 9, 14)
    return {"J": 14, "y": 4.0 + 6.0 * rng.normal(size=14) + sigma * rng.normal(size=14), "sigma": sigma}


VARYING_SLOPES = """
data {
  int<lower=1> N;
  int<lower=1> J;
  array[N] int<lower=1, upper=J> person;
  vector[N] x;
  vector[N] y;
}
parameters {
  vector[2] gamma;
  vector<lower=0>[2] tau;
  cholesky_factor_corr[2] L;
  matrix[2, J] z;
  real<lower=0> sigma;
}
transformed parameters {
  matrix[J, 2] effects = (diag_pre_multiply(tau, L) * z)';
}
model {
  gamma ~ normal(0, 3);
  tau ~ normal(0, 1);
  L ~ lkj_corr_cholesky(2);
  to_vector(z) ~ std_normal();
  sigma ~ exponential(1);
  y ~ normal(gamma[1] + effects[person, 1] + (gamma[2] + effects[person, 2]) .* x, sigma);
}
generated quantities {
  real correlation = multiply_lower_tri_self_transpose(L)[1, 2];
}
"""


def _varying_slopes() -> Data:
    rng = np.random.default_rng(6)
    person, x = np.repeat(np.arange(12), 10), rng.normal(size=120)
    effects = rng.multivariate_normal([0, 0], [[0.6, 0.2], [0.2, 0.3]], size=12)
    y = 1.0 + effects[person, 0] + (0.5 + effects[person, 1]) * x + 0.6 * rng.normal(size=120)
    return {"N": 120, "J": 12, "person": person + 1, "x": x, "y": y}


ITEM_RESPONSE = """
data {
  int<lower=1> I;
  int<lower=1> J;
  int<lower=1> N;
  array[N] int<lower=1, upper=I> item;
  array[N] int<lower=1, upper=J> person;
  array[N] int<lower=0, upper=1> y;
}
parameters {
  vector<lower=0>[I] a;
  vector[I] b;
  vector[J] theta;
}
model {
  a ~ lognormal(0, 0.4);
  b ~ normal(0, 1.5);
  theta ~ std_normal();
  y ~ bernoulli_logit(a[item] .* (theta[person] - b[item]));
}
"""


def _item_response() -> Data:
    rng = np.random.default_rng(7)
    person, item = np.repeat(np.arange(30), 8), np.tile(np.arange(8), 30)
    a, b, theta = rng.lognormal(0, 0.3, 8), rng.normal(size=8), rng.normal(size=30)
    y = rng.binomial(1, expit(a[item] * (theta[person] - b[item])))
    return {"I": 8, "J": 30, "N": 240, "item": item + 1, "person": person + 1, "y": y}


ORDINAL = """
data {
  int<lower=2> K;
  int<lower=1> N;
  int<lower=1> D;
  array[N] int<lower=1, upper=K> answer;
  array[N] row_vector[D] x;
}
parameters {
  vector[D] beta;
  ordered[K - 1] cutpoints;
}
model {
  beta ~ normal(0, 1);
  cutpoints ~ normal(0, 3);
  for (n in 1:N) {
    answer[n] ~ ordered_logistic(x[n] * beta, cutpoints);
  }
}
"""


def _ordinal() -> Data:
    rng = np.random.default_rng(8)
    x = rng.normal(size=(140, 2))
    latent = x @ [0.9, -0.6] + rng.logistic(size=140)
    return {"K": 4, "N": 140, "D": 2, "answer": 1 + np.digitize(latent, [-1.0, 0.3, 1.5]), "x": x}


SURVIVAL = """
data {
  int<lower=1> N;
  vector<lower=0>[N] t;
  array[N] int<lower=0, upper=1> died;
  vector[N] age;
}
parameters {
  real<lower=0> shape;
  real b0;
  real b_age;
}
model {
  shape ~ gamma(2, 1);
  b0 ~ normal(0, 3);
  b_age ~ normal(0, 1);
  for (n in 1:N) {
    real scale = exp(b0 + b_age * age[n]);
    if (died[n]) {
      target += weibull_lpdf(t[n] | shape, scale);
    } else {
      target += weibull_lccdf(t[n] | shape, scale);
    }
  }
}
generated quantities {
  real median_at_mean_age = exp(b0) * pow(log(2), 1 / shape);
}
"""


def _survival() -> Data:
    rng = np.random.default_rng(9)
    age = rng.normal(size=100)
    time, censored = np.exp(1.0 - 0.4 * age) * rng.weibull(1.4, 100), rng.uniform(1, 6, 100)
    return {"N": 100, "t": np.minimum(time, censored), "died": (time < censored).astype(int), "age": age}


MIXTURE = """
data {
  int<lower=1> K;
  int<lower=1> N;
  array[N] real y;
}
parameters {
  simplex[K] theta;
  ordered[K] mu;
  vector<lower=0>[K] sigma;
}
model {
  vector[K] log_theta = log(theta);
  mu ~ normal(0, 5);
  sigma ~ lognormal(0, 0.5);
  theta ~ dirichlet(rep_vector(2, K));
  for (n in 1:N) {
    vector[K] lps = log_theta;
    for (k in 1:K) {
      lps[k] += normal_lpdf(y[n] | mu[k], sigma[k]);
    }
    target += log_sum_exp(lps);
  }
}
"""


def _mixture() -> Data:
    rng = np.random.default_rng(10)
    which = rng.choice(3, size=180, p=[0.3, 0.45, 0.25])
    return {"K": 3, "N": 180, "y": rng.normal(np.array([-3.5, 0.0, 4.0])[which], np.array([0.8, 0.7, 1.0])[which])}


HIDDEN_MARKOV = """
data {
  int<lower=1> S;
  int<lower=1> T;
  array[S] int<lower=1> length;
  vector[T] y;
}
parameters {
  array[2] simplex[2] transition;
  ordered[2] level;
  real<lower=0> sigma;
}
model {
  int at = 0;
  for (k in 1:2) {
    transition[k] ~ dirichlet([2, 2]');
  }
  level ~ normal(0, 3);
  sigma ~ exponential(1);
  for (s in 1:S) {
    vector[2] forward = rep_vector(-log(2), 2);
    for (t in 1:length[s]) {
      vector[2] next;
      for (k in 1:2) {
        real arrived = t == 1
          ? forward[k]
          : log_sum_exp(forward[1] + log(transition[1, k]), forward[2] + log(transition[2, k]));
        next[k] = arrived + normal_lpdf(y[at + t] | level[k], sigma);
      }
      forward = next;
    }
    target += log_sum_exp(forward);
    at += length[s];
  }
}
"""


def _hidden_markov() -> Data:
    rng = np.random.default_rng(11)
    length = rng.integers(8, 16, size=25)
    parts = []
    for steps in length:
        state = np.zeros(steps, int)
        state[0] = rng.integers(2)
        for i in range(1, steps):
            state[i] = state[i - 1] if rng.uniform() < 0.8 else 1 - state[i - 1]
        parts.append(rng.normal(np.array([-1.0, 1.5])[state], 0.8))
    y = np.concatenate(parts)
    return {"S": 25, "T": len(y), "length": length, "y": y}


def cut_sequences(data: Data, rows: Int[np.ndarray, " kept"]) -> dict[str, Any]:
    """The data of some sequences, which lie one after the other in `y`."""
    ends = np.cumsum(data["length"])
    kept = [np.arange(ends[row] - data["length"][row], ends[row]) for row in rows]
    y = data["y"][np.concatenate([np.empty(0, int), *kept])]
    return {"S": len(rows), "T": len(y), "length": data["length"][rows], "y": y}


ZERO_INFLATED = """
data {
  int<lower=1> N;
  array[N] int<lower=0> fish;
  vector[N] livebait;
}
parameters {
  real<lower=0, upper=1> pi;
  real b0;
  real b1;
}
model {
  pi ~ beta(2, 2);
  b0 ~ normal(0, 2);
  b1 ~ normal(0, 1);
  for (n in 1:N) {
    real eta = b0 + b1 * livebait[n];
    if (fish[n] == 0) {
      target += log_mix(pi, 0, poisson_log_lpmf(0 | eta));
    } else {
      target += log1m(pi) + poisson_log_lpmf(fish[n] | eta);
    }
  }
}
"""


def _zero_inflated() -> Data:
    rng = np.random.default_rng(12)
    livebait = rng.binomial(1, 0.6, 160).astype(float)
    fish = rng.poisson(np.exp(0.5 + 0.7 * livebait)) * rng.binomial(1, 0.65, 160)
    return {"N": 160, "fish": fish, "livebait": livebait}


LOCAL_LEVEL = """
data {
  int<lower=1> T;
  int<lower=1> N;
  array[N] int<lower=1, upper=T> week;
  vector[N] y;
}
parameters {
  real start;
  vector[T - 1] innovation;
  real<lower=0> sigma_level;
  real<lower=0> sigma;
}
transformed parameters {
  vector[T] level = start + cumulative_sum(append_row(0, sigma_level * innovation));
}
model {
  start ~ normal(0, 3);
  innovation ~ std_normal();
  sigma_level ~ normal(0, 1);
  sigma ~ normal(0, 1);
  y ~ normal(level[week], sigma);
}
"""


def _local_level() -> Data:
    rng = np.random.default_rng(13)
    week = np.repeat(np.arange(30), 3)
    level = np.cumsum(0.4 * rng.normal(size=30))
    return {"T": 30, "N": 90, "week": week + 1, "y": level[week] + 0.6 * rng.normal(size=90)}


AUTOREGRESSION = """
data {
  int<lower=2> T;
  vector[T] y;
}
parameters {
  real alpha;
  real<lower=-1, upper=1> phi;
  real<lower=0> sigma;
}
model {
  alpha ~ normal(0, 2);
  sigma ~ exponential(1);
  y[2:T] ~ normal(alpha + phi * y[1:T - 1], sigma);
}
"""


def _autoregression() -> Data:
    rng = np.random.default_rng(14)
    y = np.zeros(100)
    for t in range(1, 100):
        y[t] = 0.5 + 0.7 * y[t - 1] + 0.8 * rng.normal()
    return {"T": 100, "y": y}


MEASUREMENT_ERROR = """
data {
  int<lower=1> N;
  vector[N] x_measured;
  vector[N] y;
  real<lower=0> tau;
}
parameters {
  vector[N] x;
  real mu_x;
  real<lower=0> sigma_x;
  real alpha;
  real beta;
  real<lower=0> sigma;
}
model {
  mu_x ~ normal(0, 3);
  sigma_x ~ normal(0, 2);
  x ~ normal(mu_x, sigma_x);
  x_measured ~ normal(x, tau);
  alpha ~ normal(0, 3);
  beta ~ normal(0, 2);
  sigma ~ normal(0, 1);
  y ~ normal(alpha + beta * x, sigma);
}
"""


def _measurement_error() -> Data:
    rng = np.random.default_rng(15)
    x = 1.0 + rng.normal(size=60)
    return {
        "N": 60,
        "x_measured": x + 0.4 * rng.normal(size=60),
        "y": 0.5 + 1.2 * x + 0.5 * rng.normal(size=60),
        "tau": 0.4,
    }


MISSING = """
data {
  int<lower=0> N_obs;
  int<lower=0> N_mis;
  vector[N_obs] x_obs;
  vector[N_obs] y_obs;
  vector[N_mis] y_mis;
}
parameters {
  vector[N_mis] x_mis;
  real mu;
  real<lower=0> tau;
  real alpha;
  real beta;
  real<lower=0> sigma;
}
model {
  mu ~ normal(0, 2);
  tau ~ exponential(1);
  alpha ~ normal(0, 2);
  beta ~ normal(0, 2);
  sigma ~ exponential(1);
  x_obs ~ normal(mu, tau);
  x_mis ~ normal(mu, tau);
  y_obs ~ normal(alpha + beta * x_obs, sigma);
  y_mis ~ normal(alpha + beta * x_mis, sigma);
}
"""


def _missing() -> Data:
    rng = np.random.default_rng(16)
    x = rng.normal(0.5, 1.0, 70)
    y = 1.0 - 0.8 * x + 0.6 * rng.normal(size=70)
    return {"N_obs": 60, "N_mis": 10, "x_obs": x[:60], "y_obs": y[:60], "y_mis": y[60:]}


GAUSSIAN_PROCESS = """
data {
  int<lower=1> N;
  array[N] real x;
  vector[N] y;
}
parameters {
  real<lower=0> rho;
  real<lower=0> alpha;
  real<lower=0> sigma;
}
model {
  matrix[N, N] K = add_diag(gp_exp_quad_cov(x, alpha, rho), square(sigma) + 1e-9);
  rho ~ inv_gamma(5, 5);
  alpha ~ std_normal();
  sigma ~ std_normal();
  y ~ multi_normal_cholesky(rep_vector(0, N), cholesky_decompose(K));
}
"""


def _gaussian_process() -> Data:
    rng = np.random.default_rng(17)
    x = np.sort(rng.uniform(0, 6, 40))
    return {"N": 40, "x": x, "y": np.sin(1.5 * x) + 0.3 * rng.normal(size=40)}


def by_mask(
    subset: Callable[[Data, Int[np.ndarray, " kept"]], Data],
) -> Callable[[Data, Bool[np.ndarray, " rows"]], Data]:
    """A subset as the case cuts its data."""
    return lambda data, kept: subset(data, np.flatnonzero(kept))


def rows_of(column: Shaped[np.ndarray, " rows"], value: Any) -> Int[np.ndarray, " some"]:
    """The rows of a group."""
    return np.flatnonzero(column == value)


def _case(name: str, program: str, data: Data, n_rows: int, group: Any, row: int = 3, **more: Any) -> Case:
    return Case(
        f"stan-{name}",
        "stan",
        program,
        data,
        row=row,
        group=np.asarray(group),
        n_rows=n_rows,
        about=ABOUT[name],
        **more,
    )


ABOUT = {
    "linear-regression": "A linear regression with generated quantities",
    "logistic-regression": "A logistic regression by its GLM density",
    "negative-binomial": "Overdispersed counts with an exposure",
    "hierarchy": "Pupils in schools, non-centred",
    "eight-schools": "Fourteen schools with known errors, non-centred",
    "varying-slopes": "Correlated intercepts and slopes with an LKJ prior",
    "item-response": "Two-parameter item response: a row for each answer",
    "ordinal": "An ordered logistic regression",
    "survival": "Weibull survival with censoring",
    "mixture": "Three normal components, summed out",
    "hidden-markov": "A hidden Markov model by the forward algorithm: a row is a sequence",
    "zero-inflated": "Counts with too many zeros",
    "local-level": "A level that walks, non-centred, observed three times a week",
    "autoregression": "An AR(1) of the observations themselves",
    "measurement-error": "A covariate with measurement error: a parameter per row",
    "missing-covariates": "Missing covariates as parameters",
    "gaussian-process": "A Gaussian process with its function integrated out",
}


HIERARCHY_DATA, SLOPES_DATA, ITEM_DATA = _hierarchy(), _varying_slopes(), _item_response()

CASES = [
    _case("linear-regression", LINEAR, _linear(), 80, range(10, 16), fast=True),
    _case("logistic-regression", LOGISTIC, _logistic(), 150, range(20, 30)),
    _case("negative-binomial", NEGATIVE_BINOMIAL, _negative_binomial(), 120, range(40, 48)),
    _case("hierarchy", HIERARCHY, HIERARCHY_DATA, 80, rows_of(HIERARCHY_DATA["school"], 5), emptied=4),
    _case("eight-schools", EIGHT_SCHOOLS, _eight_schools(), 14, [5, 6]),
    _case("varying-slopes", VARYING_SLOPES, SLOPES_DATA, 120, rows_of(SLOPES_DATA["person"], 7), emptied=6),
    _case(
        "item-response",
        ITEM_RESPONSE,
        ITEM_DATA,
        240,
        rows_of(ITEM_DATA["person"], 4),
        emptied=3,
        bridge={"n_rows": "N"},
    ),
    _case("ordinal", ORDINAL, _ordinal(), 140, range(30, 40)),
    _case("survival", SURVIVAL, _survival(), 100, range(50, 58)),
    _case("mixture", MIXTURE, _mixture(), 180, range(60, 72)),
    _case(
        "hidden-markov",
        HIDDEN_MARKOV,
        _hidden_markov(),
        25,
        [8, 9],
        cut=by_mask(cut_sequences),
        bridge={"subset": cut_sequences, "n_rows": "S"},
    ),
    _case("zero-inflated", ZERO_INFLATED, _zero_inflated(), 160, range(70, 80)),
    _case("local-level", LOCAL_LEVEL, _local_level(), 90, [30, 31, 32], bridge={"n_rows": "N"}),
    _case("autoregression", AUTOREGRESSION, _autoregression(), 100, range(90, 100), row=99),
    _case("measurement-error", MEASUREMENT_ERROR, _measurement_error(), 60, range(20, 24)),
    _case("missing-covariates", MISSING, _missing(), 60, range(12, 18), bridge={"n_rows": "N_obs"}),
    _case("gaussian-process", GAUSSIAN_PROCESS, _gaussian_process(), 40, [12, 13, 14]),
]
