"""A model, its data and its requests; how it is fitted, and how a posterior without some rows is sampled for reference.

A reference is the library's own NUTS on the kept data, without posterase: the model is built again with the data that
`cut` returns for the rows that are kept.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

import posterase as pe

Samples = dict[str, Float[np.ndarray, "chain draw ..."]]
"""Draws by variable, those that the model computes from its parameters included."""

Data = Mapping[str, Any]

FIT_SEED, REFERENCE_SEED = 1, 2


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A model as a user writes it, with one request to erase a row and one to erase a group of rows."""

    name: str
    library: Literal["numpyro", "pymc", "stan"]
    build: Any
    """NumPyro: the model function. PyMC: a function of the data that returns the `pm.Model`. Stan: the program."""
    data: Data
    """Arguments of the model; Stan's data."""
    row: int
    """The row of the one-row request."""
    group: Int[np.ndarray, " some"]
    """The rows of the group request."""
    n_rows: int
    emptied: int | Literal["rows"] | None = None
    """The number of the group (county, person, …) that loses all of its rows, where the model has an axis of groups; or
    "rows", where every row is a group of its own."""
    cut: Callable[[Data, Bool[np.ndarray, " rows"]], Data] | None = None
    """The data of the rows that are kept. None: every array whose first axis has `n_rows` entries is cut."""
    bridge: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of `pe.from_numpyro`, `pe.from_pymc` or `pe.from_stan`."""
    sampler: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of NUTS, `{"target_accept_prob": 0.95}` say, as the library calls them. NumPyro: `around` is a function
    of the NUTS kernel, such as `HMCECS`."""
    draws: int = 1000
    reference_draws: int = 10_000
    ignore: tuple[str, ...] = ()
    """Variables that have no posterior to compare, such as labels of components."""
    refusal: str = ""
    """Words that the right refusal contains, naming something that works. Empty: the requests must be answered."""
    instead: str = ""
    """The case whose model is what the refusal names."""
    is_posterior: bool = True
    """Whether the draws are of a posterior of its rows. Those of mini-batches and subsampled plates are not: such cases
    are outside of the share of requests that must be answered."""
    about: str = ""
    """What the model shows, in a line. Default: the summary of the model function's docstring."""
    fast: bool = False
    """Whether it is one of those in `make test`."""

    @property
    def shows(self) -> str:
        """What the model shows, in a line."""
        return self.about or (inspect.getdoc(self.build) or "").partition("\n")[0]

    @property
    def requests(self) -> dict[str, Int[np.ndarray, " some"]]:
        """Rows to erase, by the name of the request."""
        return {"row": np.array([self.row]), "group": np.asarray(self.group)}

    def emptied_by(self, request: str) -> Int[np.ndarray, " some"]:
        """The numbers of the groups that may lose all of their rows."""
        if self.emptied == "rows":
            return self.requests[request]
        return np.array([] if self.emptied is None else [self.emptied], int)

    def kept_data(self, rows: Int[np.ndarray, " some"]) -> Data:
        """The data without these rows."""
        kept = np.ones(self.n_rows, bool)
        kept[rows] = False
        if self.cut is not None:
            return self.cut(self.data, kept)
        return {name: _cut(value, kept) for name, value in self.data.items()}

    def fit(self) -> tuple[Any, pe.Draws]:
        """The model and its draws, fitted as a user does and handed to the bridge."""
        return FITTED[self.library](self)

    def sample(self, data: Data, draws: int, seed: int) -> Samples:
        """Draws of the posterior of these data, by the library's own sampler."""
        return SAMPLED[self.library](self, data, draws, seed)


def _cut(value: Any, kept: Bool[np.ndarray, " rows"]) -> Any:
    is_rows = isinstance(value, np.ndarray) and value.ndim > 0 and len(value) == len(kept)
    if not is_rows and isinstance(value, int) and value == len(kept):
        return int(kept.sum())
    return value[kept] if is_rows else value


# --- NumPyro


def _numpyro_mcmc(case: Case, data: Data, draws: int, seed: int) -> Any:
    from numpyro.infer import MCMC, NUTS

    options = dict(case.sampler)
    around = options.pop("around", lambda kernel: kernel)
    mcmc = MCMC(
        around(NUTS(case.build, **options)),
        num_warmup=1000,
        num_samples=draws,
        num_chains=4,
        chain_method="sequential" if "around" in case.sampler else "vectorized",  # HMCECS cannot be vectorised
        progress_bar=False,
    )
    mcmc.run(jax.random.key(seed), **data)
    return mcmc


def _fit_numpyro(case: Case) -> tuple[Any, pe.Draws]:
    return pe.from_numpyro(_numpyro_mcmc(case, case.data, case.draws, FIT_SEED), **case.bridge)


def _sample_numpyro(case: Case, data: Data, draws: int, seed: int) -> Samples:
    found = _numpyro_mcmc(case, data, draws, seed).get_samples(group_by_chain=True)
    return {name: np.asarray(values) for name, values in found.items()}


# --- PyMC


def _pymc_idata(case: Case, data: Data, draws: int, seed: int) -> tuple[Any, Any]:
    import pymc as pm

    model = case.build(**data)
    vectorized = {"nuts_sampler": "numpyro", "nuts_sampler_kwargs": {"chain_method": "vectorized"}}
    with model:
        idata = pm.sample(
            draws,
            **{"tune": 1000, "chains": 4, "random_seed": seed, "progressbar": False, **vectorized, **case.sampler},
        )
    return model, idata


def _fit_pymc(case: Case) -> tuple[Any, pe.Draws]:
    return pe.from_pymc(*_pymc_idata(case, case.data, case.draws, FIT_SEED), **case.bridge)


def _sample_pymc(case: Case, data: Data, draws: int, seed: int) -> Samples:
    posterior = _pymc_idata(case, data, draws, seed)[1].posterior
    return {str(name): each.transpose("chain", "draw", ...).values for name, each in posterior.data_vars.items()}


# --- Stan


def _stan_fit(case: Case, data: Data, draws: int, seed: int) -> Any:
    import stan

    posterior = stan.build(case.build, data=dict(data), random_seed=seed)
    return posterior, posterior.sample(num_chains=4, num_samples=draws, num_warmup=1000, **case.sampler)


def _fit_stan(case: Case) -> tuple[Any, pe.Draws]:
    _, fit = _stan_fit(case, case.data, case.draws, FIT_SEED)
    return pe.from_stan(case.build, dict(case.data), fit, **case.bridge)


def _sample_stan(case: Case, data: Data, draws: int, seed: int) -> Samples:
    _, fit = _stan_fit(case, data, draws, seed)
    samples = {}
    for name, dims in zip(fit.param_names, fit.dims, strict=True):
        values = np.asarray(fit[name]).reshape(*dims, -1, fit.num_chains)
        samples[name] = np.moveaxis(values, (-1, -2), (0, 1))
    return samples


FITTED: dict[str, Callable[[Case], tuple[Any, pe.Draws]]] = {
    "numpyro": _fit_numpyro,
    "pymc": _fit_pymc,
    "stan": _fit_stan,
}
SAMPLED: dict[str, Callable[[Case, Data, int, int], Samples]] = {
    "numpyro": _sample_numpyro,
    "pymc": _sample_pymc,
    "stan": _sample_stan,
}
