"""The first answer of a cold process, through each bridge, beside a cold refit by the same library.

Each run is a process of its own, with JAX's compilation cache off (the default) and those of PyTensor and PyStan empty.
Both begin when the library that made the fit has been imported. The erasure imports posterase and ends with the
container without the removed rows; the refit builds the model of the kept rows and ends with its draws. Later answers
are of the same process: the next request on the same draws.

    python -m benchmarks first_answers
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Ratio, write_whole

REPEATS = 5
MOST = 0.6
"""The share of a cold refit that a first answer may take."""

ROWS, GROUPS, PER_GROUP = 240, 24, 10
PERSON = 17


def data_of(example: str) -> dict[str, np.ndarray]:
    """The README's example: a mean and a spread. A hierarchy: groups with intercepts of their own, and a slope."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(GROUPS), PER_GROUP)
    x = rng.normal(size=ROWS)
    if example == "readme":
        return {"y": rng.normal(size=100)}
    return {"x": x, "group": group, "y": 0.5 * rng.normal(size=GROUPS)[group] + 0.7 * x + rng.normal(size=ROWS)}


def rows_of(example: str, request: int) -> list[int]:
    """The rows of one person in the example, or of another for the next request."""
    return [[3, 17, 42], [5]][request] if example == "readme" else [10 * (PERSON + request) + i for i in range(3)]


def without(data: dict[str, np.ndarray], rows: list[int]) -> dict[str, np.ndarray]:
    """The kept rows."""
    return {name: np.delete(values, rows) for name, values in data.items()}


# --- the fits


def numpyro_fit(example: str, data: dict[str, np.ndarray] | None) -> tuple[Any, Any]:
    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    def readme(y: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0, 10))
        sigma = numpyro.sample("sigma", dist.Exponential(1))
        with numpyro.plate("row", len(y)):
            numpyro.sample("y", dist.Normal(mu, sigma), obs=y)

    def hierarchy(x: Any, group: Any, y: Any) -> None:
        mean = numpyro.sample("mean", dist.Normal(0, 5))
        spread = numpyro.sample("spread", dist.HalfNormal(1))
        slope = numpyro.sample("slope", dist.Normal(0, 2))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("group", GROUPS):
            effect = numpyro.sample("effect", dist.Normal(0, 1))
        with numpyro.plate("row", len(y)):
            numpyro.sample("y", dist.Normal(mean + spread * effect[group] + slope * x, sigma), obs=y)

    model = readme if example == "readme" else hierarchy
    mcmc = MCMC(
        NUTS(model), num_warmup=1000, num_samples=1000, num_chains=4, chain_method="vectorized", progress_bar=False
    )
    if data is not None:
        mcmc.run(jax.random.key(0), **data)
    return model, mcmc


def pymc_model(example: str, data: dict[str, np.ndarray]) -> Any:
    import pymc as pm

    with pm.Model(coords={"group": np.arange(GROUPS)}) as model:
        if example == "readme":
            mu, sigma = pm.Normal("mu", 0, 10), pm.Exponential("sigma", 1)
            pm.Normal("y", mu, sigma, observed=data["y"])
        else:
            mean, spread, slope = pm.Normal("mean", 0, 5), pm.HalfNormal("spread", 1), pm.Normal("slope", 0, 2)
            effect = pm.Normal("effect", 0, 1, dims="group")
            x = pm.Data("x", data["x"])
            location = mean + spread * effect[data["group"]] + slope * x
            pm.Normal("y", location, pm.HalfNormal("sigma", 1), observed=data["y"])
    return model


STAN = {
    "readme": """
data { int<lower=0> N; vector[N] y; }
parameters { real mu; real<lower=0> sigma; }
model { mu ~ normal(0, 10); sigma ~ exponential(1); y ~ normal(mu, sigma); }
""",
    "hierarchy": """
data { int<lower=0> N; int<lower=1> J; vector[N] x; array[N] int<lower=1, upper=J> group; vector[N] y; }
parameters { real mean_; real<lower=0> spread; real slope; real<lower=0> sigma; vector[J] effect; }
model {
  mean_ ~ normal(0, 5); spread ~ normal(0, 1); slope ~ normal(0, 2); sigma ~ normal(0, 1); effect ~ normal(0, 1);
  y ~ normal(mean_ + spread * effect[group] + slope * x, sigma);
}
""",
}


def stan_data(example: str, data: dict[str, np.ndarray]) -> dict[str, Any]:
    counted: dict[str, Any] = {"N": len(data["y"]), **data}
    return counted if example == "readme" else {**counted, "J": GROUPS, "group": data["group"] + 1}


def refit_numpyro(example: str, data: dict[str, np.ndarray]) -> Any:
    return numpyro_fit(example, data)[1].get_samples(group_by_chain=True)


def refit_pymc(example: str, data: dict[str, np.ndarray]) -> Any:
    import pymc as pm

    with pymc_model(example, data):
        return pm.sample(progressbar=False, random_seed=1)


def refit_stan(example: str, data: dict[str, np.ndarray]) -> Any:
    import stan

    posterior = stan.build(STAN[example], data=stan_data(example, data), random_seed=1)
    return posterior.sample(num_chains=4, num_samples=1000)


REFITS: dict[str, Callable[[str, dict[str, np.ndarray]], Any]] = {
    "numpyro": refit_numpyro,
    "pymc": refit_pymc,
    "stan": refit_stan,
}


def bridge(library: str, example: str, draws: Any) -> tuple[Any, Any]:
    """What the user writes: the model and the draws as they are."""
    import posterase as pe

    data: dict[str, Any] = data_of(example)
    if library == "numpyro":
        return pe.from_numpyro(numpyro_fit(example, None)[0], draws=draws, **data)
    if library == "pymc":
        return pe.from_pymc(pymc_model(example, data), draws)
    return pe.from_stan(STAN[example], stan_data(example, data), draws)


# --- in a process of their own


def child(library: str, example: str, what: str, draws: Path) -> None:
    """Import the library, then time a refit or the answers to two requests; print seconds as JSON."""
    import importlib
    import time

    importlib.import_module({"numpyro": "numpyro.infer", "pymc": "pymc", "stan": "stan"}[library])
    started = time.perf_counter()
    laps = {}
    if what == "refit":
        REFITS[library](example, without(data_of(example), rows_of(example, 0)))
    else:
        import posterase as pe

        laps["import"] = time.perf_counter() - started
        model, source = bridge(library, example, draws)
        laps["bridge"] = time.perf_counter() - started - sum(laps.values())
        result = pe.erase(model, source, rows=rows_of(example, 0), progress=False)
        laps["erase"] = time.perf_counter() - started - sum(laps.values())
        result.to_arviz()
        laps["to_arviz"] = time.perf_counter() - started - sum(laps.values())
        assert result.verdict.accepted, result.verdict
    laps["first"] = time.perf_counter() - started
    if what == "erase":
        started = time.perf_counter()
        pe.erase(model, source, rows=rows_of(example, 1), progress=False).to_arviz()
        laps["later"] = time.perf_counter() - started
    print(json.dumps(laps))


def fit_once(library: str, example: str, target: Path) -> None:
    """The draws that the user has, by ArviZ's schema."""
    import arviz_base

    data = data_of(example)
    if library == "pymc":
        REFITS[library](example, data).to_netcdf(target)
        return
    if library == "numpyro":
        tree = arviz_base.from_numpyro(numpyro_fit(example, data)[1])
    else:
        fit = refit_stan(example, data)
        names = {
            name: np.moveaxis(np.asarray(fit[name]).reshape(*dims, -1, 4), (-1, -2), (0, 1))
            for name, dims in zip(fit.param_names, fit.dims, strict=True)
        }
        tree = arviz_base.from_dict({"posterior": names})
    tree.to_netcdf(target)


def spawn(*arguments: str) -> dict[str, float]:
    """Run this module in a process without JAX's compilation cache, and with empty ones of PyTensor and PyStan."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "XDG_CACHE_HOME": folder,
            "PYTENSOR_FLAGS": f"base_compiledir={folder}/pytensor",
            "NUMBA_CACHE_DIR": f"{folder}/numba",
        }
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.first_answers", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return {} if arguments[0] == "fit" else json.loads(done.stdout.splitlines()[-1])  # PyStan prints, too


TARGET = Path(__file__).parent.parent / "docs" / "results" / "first-answers.md"
HEAD = (
    "| fit by | model | first answer (import, bridge, erase, `to_arviz`) | cold refit | ratio | later answer |\n"
    "|---|---|---|---|---|---|"
)
PARTS = ("import", "bridge", "erase", "to_arviz")


def run(libraries: tuple[str, ...] = ("numpyro", "pymc", "stan"), repeats: int = REPEATS) -> Iterator[Ratio]:
    """First answers against cold refits, and later answers against first ones."""
    from posterase.experiments.machine import machine  # not in the processes that are timed

    lines = [HEAD]
    with tempfile.TemporaryDirectory() as folder:
        for library in libraries:
            for example in ("readme", "hierarchy"):
                draws = f"{folder}/{library}-{example}.nc"
                spawn("fit", library, example, draws)
                pairs = [[spawn(what, library, example, draws) for what in ("erase", "refit")] for _ in range(repeats)]
                median = {name: float(np.median([erased[name] for erased, _ in pairs])) for name in pairs[0][0]}
                refit = float(np.median([refitted["first"] for _, refitted in pairs]))
                first, later = median["first"], median["later"]
                lines.append(
                    f"| {library} | {example} | {first:.1f} s ({', '.join(f'{median[name]:.1f}' for name in PARTS)}) "
                    f"| {refit:.1f} s | {first / refit:.2f} | {later:.2f} s |"
                )
                yield Ratio(f"{library}, {example}: first answer / cold refit", first, refit)
                yield Ratio(f"{library}, {example}: later answer / first answer", later, first)
    intro = f"# First answers\n\nFrom `python -m benchmarks first_answers`: {machine()}. Medians of {repeats} runs."
    intro += f" Wanted: at most {MOST} of a refit."
    notes = (__doc__ or "").replace("\n\n    python -m benchmarks first_answers\n", "").strip()
    write_whole(TARGET, "\n\n".join([intro, notes, "\n".join(lines)]) + "\n")


if __name__ == "__main__":
    task, of, named, file = sys.argv[1:5]
    if task == "fit":
        fit_once(of, named, Path(file))
    else:
        child(of, named, task, Path(file))
