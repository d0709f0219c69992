"""`posterase bench posteriors`: removals from reference draws of real posteriors, against refits.

Each posterior comes through the NumPyro bridge with its reference draws (the hierarchy, which has none, with draws of
its own). Three kinds of rows are removed: one in ten at random; the one in twenty whose log-likelihood varies most over
the draws, which the posterior leans on most; a group that belongs together. The target are two long NUTS refits of the
kept rows: NumPyro's own, of the data without the rows; where rows have parameters of their own, or share arguments
(eight schools, the Gaussian process), our NUTS on the model that they were taken out of. An error is the mean of those
against each refit; the floor is the error of one refit against the other. Wrong is what is farther from the refits, in
means or log standard deviations, than they are from each other and than twice what chance explains, or what a
classifier tells apart by three standard errors more than it does the refits. Seconds are of the second run: `erase` and
our NUTS compile nothing then, NumPyro's NUTS compiles anew each time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpyro.infer import MCMC, NUTS

from posterase.assess.moments import moment_errors
from posterase.assess.two_sample import two_sample
from posterase.bridges.numpyro import from_numpyro
from posterase.bridges.programs import BridgedModel
from posterase.draws import Draws
from posterase.erase import Erasure, erase
from posterase.errors import ImproperPosteriorError
from posterase.experiments.posteriors import POSTERIORS, Posterior, arguments, reference_draws
from posterase.sampling.mixing import mixing
from posterase.sampling.nuts import nuts

CHAINS, DRAWS, WARMUP = 4, 2500, 1000
"""Of a refit."""

INFLUENCE_DRAWS = 500

SURE = 3.0
"""Standard errors by which an accuracy may be above the floor's by chance."""


class Cell(NamedTuple):
    """One removal from one posterior."""

    posterior: str
    removed: str
    verdict: str
    """The rung that was accepted, or why none was."""
    pareto_k: str = ""
    epsilon: str = ""
    mean: str = ""
    log_sd: str = ""
    accuracy: str = ""
    evaluations: str = ""
    seconds: str = ""
    outcome: str = ""
    """at the floor, refused, or wrong."""


class Fit(NamedTuple):
    """A posterior with the draws that rows are removed from."""

    posterior: Posterior
    data: dict[str, Any]
    model: BridgedModel
    draws: Draws
    rhat: float
    """Of these draws and NumPyro's own together."""


def run(folder: str | os.PathLike[str], report: Callable[[str, int, int], None]) -> tuple[list[Cell], list[Fit]]:
    """All cells, in float64: reference draws are, and a Gaussian process in float32 has no Cholesky factor."""
    for posterior in POSTERIORS:  # before any work
        arguments(posterior, folder)
    cells: list[Cell] = []
    fits = []
    with jax.enable_x64(True):
        for posterior in POSTERIORS:
            report(posterior.name, len(cells), 3 * len(POSTERIORS))
            fits.append(fit(posterior, folder))
            for told, rows in requests(fits[-1]).items():
                report(f"{posterior.name}, {told}", len(cells), 3 * len(POSTERIORS))
                cells.append(measure(fits[-1], told, rows))
    return cells, fits


def fit(posterior: Posterior, folder: str | os.PathLike[str]) -> Fit:
    """The posterior through the bridge, and whether its draws agree with NumPyro's own."""
    data = arguments(posterior, folder)
    own = sampled(posterior, data)
    if not posterior.data:
        model, draws = from_numpyro(own, shared=posterior.shared)
        return Fit(posterior, data, model, draws, max(mixing(draws)[0].values()))
    given = reference_draws(posterior, folder)
    model, draws = from_numpyro(posterior.model, draws=given, shared=posterior.shared, **data)
    return Fit(posterior, data, model, draws, agreement(draws, own))


def sampled(posterior: Posterior, data: dict[str, Any], draws: int = 1000, seed: int = 0) -> Any:
    """NumPyro's own draws."""
    kernel = NUTS(posterior.model, target_accept_prob=0.95)
    mcmc = MCMC(
        kernel,
        num_warmup=WARMUP,
        num_samples=draws,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(seed), **data)
    return mcmc


def agreement(draws: Draws, mcmc: Any) -> float:
    """The largest R̂ of these draws and an MCMC object's, as chains of the same length together."""
    own = mcmc.get_samples(group_by_chain=True)
    length = next(iter(own.values())).shape[1]

    def together(name: str, leaf: Array) -> Array:
        whole = leaf.reshape(-1, *leaf.shape[2:])
        chains = whole[: len(whole) // length * length].reshape(-1, length, *leaf.shape[2:])
        return jnp.concatenate([chains, own[name]])

    return max(mixing(Draws({name: together(name, leaf) for name, leaf in draws.params.items()}))[0].values())


def requests(fitted: Fit) -> dict[str, Int[np.ndarray, " removed"]]:
    """Three kinds of rows to remove, in words."""
    n = fitted.model.n_rows
    mixed = np.random.default_rng(0).permutation(n)
    weight = row_variances(fitted.model, fitted.draws)
    tenth, twentieth = max(1, n // 10), max(1, n // 20)
    group = fitted.posterior.group(fitted.data)
    return {
        f"{_rows(tenth)} at random": np.sort(mixed[:tenth]),
        f"the {_rows(twentieth)} with most influence": np.sort(np.argsort(weight)[-twentieth:]),
        f"{fitted.posterior.told} ({_rows(len(group))})": group,
    }


def row_variances(model: BridgedModel, draws: Draws) -> Float[np.ndarray, " rows"]:
    """The variance over draws of every row's log-likelihood: how much the posterior leans on it."""
    flat = draws.flat()
    step = max(1, draws.n_chains * draws.n_draws // INFLUENCE_DRAWS)
    return np.asarray(_row_variances(model, jax.tree.map(lambda leaf: leaf[::step], flat)))


@eqx.filter_jit
def _row_variances(model: BridgedModel, flat: dict[str, Array]) -> Float[Array, " rows"]:
    def add(sums: tuple[Array, Array], one: dict[str, Array]) -> tuple[tuple[Array, Array], None]:
        values = jnp.concatenate(model.program.densities(one, model.leaves(one))[1])
        return (sums[0] + values, sums[1] + values**2), None

    n = jax.tree.leaves(flat)[0].shape[0]
    zero = jnp.zeros(len(model.present))
    (total, squares), _ = jax.lax.scan(add, (zero, zero), flat)
    return squares / n - (total / n) ** 2


def measure(fitted: Fit, told: str, rows: Int[np.ndarray, " removed"]) -> Cell:
    """One removal, against two refits."""
    model, draws = fitted.model, fitted.draws
    name = fitted.posterior.name
    try:
        result = erase(model, draws, rows, progress=False)
    except ImproperPosteriorError as error:
        return Cell(name, told, f"refused: {error.problem}", outcome="refused")
    if not result.verdict.accepted:
        return Cell(name, told, f"refused: {result.verdict.reason}", outcome="refused")
    start = time.perf_counter()
    result = erase(model, draws, rows, progress=False)
    seconds = time.perf_counter() - start
    refits, refit_seconds = refit(fitted, rows, result)
    return _cell(name, told, result, refits, (seconds, refit_seconds))


def refit(fitted: Fit, rows: Int[np.ndarray, " removed"], result: Erasure) -> tuple[list[Draws], float]:
    """Two refits, and the seconds of the second: NumPyro's own of the data without the rows.

    Where rows have parameters of their own the model of fewer rows is one of fewer parameters: there it is our NUTS on
    the model that rows were taken out of.
    """
    model = fitted.model
    kept = np.setdiff1d(np.arange(model.n_rows), rows)
    own_parameters = bool(model.program.row_latents or model.held)
    places = np.linspace(0, result.draws.n_chains * result.draws.n_draws - 1, CHAINS).astype(int)
    initial = jax.tree.map(lambda leaf: leaf[places], result.draws.flat())
    made = []
    seconds = 0.0
    for seed in (1, 2):
        start = time.perf_counter()
        if own_parameters:
            made.append(nuts(seed, model.without(model.removal(rows)), initial, DRAWS, warmup=WARMUP).draws)
        else:
            cut = {name: values[kept] for name, values in fitted.data.items()}
            own = sampled(fitted.posterior, cut, DRAWS, seed).get_samples(group_by_chain=True)
            made.append(Draws({name: own[name] for name in model.program.latents}))
        seconds = time.perf_counter() - start
    return made, seconds


def _cell(name: str, told: str, result: Erasure, refits: Sequence[Draws], seconds: tuple[float, float]) -> Cell:
    found = [moment_errors(result.draws, each) for each in refits]
    floor = moment_errors(*refits)
    mean, log_sd = (float(np.mean([getattr(each, what) for each in found])) for what in ("mean", "log_sd"))
    told_apart = [two_sample(seed, result.draws, each) for seed, each in enumerate(refits)]
    floor_apart = two_sample(0, *refits)
    accuracy, error = (float(np.mean([getattr(e, what) for e in told_apart])) for what in ("accuracy", "error"))
    chance = float(np.mean([each.chance for each in found]))
    limits = max(floor.mean, 2 * chance), max(floor.log_sd, 2 * chance), floor_apart.accuracy + SURE * error
    wrong = any(value > limit for value, limit in zip((mean, log_sd, accuracy), limits, strict=True))
    verdict = result.verdict
    spent = sum(rung.evidence.cost.evaluations for rung in result.rungs if rung.evidence is not None)
    return Cell(
        name,
        told,
        verdict.rung,
        "–" if verdict.pareto_k is None else f"{verdict.pareto_k:.2f}",
        "not measured" if verdict.epsilon is None else f"{verdict.epsilon.value:.4f} ± {verdict.epsilon.error:.4f}",
        f"{mean:.3f} ({floor.mean:.3f}, {chance:.3f})",
        f"{log_sd:.3f} ({floor.log_sd:.3f})",
        f"{accuracy:.3f} ({floor_apart.accuracy:.3f}) ± {error:.3f}",
        f"{spent:,.0f}",
        f"{seconds[0]:.2f} ({seconds[1]:.2f})",
        "**wrong**" if wrong else "at the floor",
    )


HEAD = (
    "posterior",
    "removed",
    "accepted by",
    "k̂",
    "ε",
    "error of means (floor, chance)",
    "of log sd (floor)",
    "two-sample (floor)",
    "evaluations",
    "seconds (a refit)",
    "",
)


def lines(cells: Sequence[Cell]) -> Iterator[str]:
    """A Markdown table."""
    yield f"| {' | '.join(HEAD)} |"
    yield "|---" * len(HEAD) + "|"
    for cell in cells:
        yield f"| {' | '.join(cell)} |"


def summary(cells: Sequence[Cell], fits: Sequence[Fit]) -> str:
    """What the table says."""
    counts = {what: sum(cell.outcome == what for cell in cells) for what in ("at the floor", "refused", "**wrong**")}
    worst = max(fits, key=lambda each: each.rhat)
    return (
        f"Of {len(cells)} removals {counts['at the floor']} were accepted and are at the floor, {counts['refused']} "
        f"were refused, {counts['**wrong**']} were accepted and are wrong. R̂ of reference and own draws together is "
        f"{worst.rhat:.4f} at most ({worst.posterior.name})."
    )


def _rows(n: int) -> str:
    return f"{n} row{'s' if n != 1 else ''}"
