"""`posterase bench posteriors`: erasures from reference draws of real posteriors, through every bridge, against refits.

Each posterior is written in NumPyro, PyMC and Stan, and comes through the bridge of each with its reference draws (the
hierarchy, which has none, with NumPyro's). Three kinds of rows are removed: one in ten at random; the one in twenty
whose log-likelihood varies most over the draws, which the posterior leans on most; a group that belongs together. The
target are two long NUTS refits of the kept rows: NumPyro's, of the data without the rows; where rows have parameters of
their own, or share arguments (eight schools, the Gaussian process), our NUTS on the model that they were taken out of.
An error is the mean of those against each refit; the floor is the error of one refit against the other. Wrong is what
is farther from the refits, in means or log standard deviations, than they are from each other and than twice what
chance explains, or what a classifier tells apart by three standard errors more than it does the refits. A refusal is
right where what the last method made is wrong by the same measure, or is worth fewer effective draws than the policy
asks for (which is said), or where there is no posterior: the refits' chains disagree, or spread twenty times as far as
the draws did.

Seconds of `erase` are of the second run, which compiles nothing. A refit is one by the library's own sampler, as many
draws, on the cut data: NumPyro and PyMC compile for it, since the data have another shape; Stan's program is compiled.
"""

from __future__ import annotations

import collections
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

from posterase.bridges.numpyro.from_numpyro import from_numpyro
from posterase.bridges.pymc.from_pymc import from_pymc
from posterase.bridges.shared.traced_model import BridgedModel
from posterase.bridges.stan.data import as_arrays
from posterase.bridges.stan.from_stan import from_stan
from posterase.draws.draws import Draws
from posterase.errors import ImproperPosteriorError
from posterase.experiments.posteriors import POSTERIORS, Posterior, arguments, reference_draws
from posterase.experiments.posteriors_stan import PROGRAMS
from posterase.ladder.erase import erase
from posterase.ladder.result import Result
from posterase.metrics.moments import moment_errors
from posterase.metrics.two_sample import two_sample
from posterase.model.base import AbstractModel
from posterase.sampling.mixing import mixing
from posterase.sampling.nuts import nuts

CHAINS, DRAWS, WARMUP = 4, 2500, 1000
"""Of a refit."""

INFLUENCE_DRAWS = 500

SURE = 3.0
"""Standard errors by which an accuracy may be above the floor's by chance."""


SPREAD, DISAGREE = 20.0, 1.1
"""Refits that spread so many times as far as the draws, or whose R̂ is above this: there is no posterior."""

BRIDGES = ("NumPyro", "PyMC", "Stan")

RIGHTLY, TOO_FEW, THOUGH_RIGHT = "refused, rightly", "refused: too few effective draws", "**refused, though right**"
"""What a refusal may be."""


class Cell(NamedTuple):
    """One erasure from one posterior, through one bridge."""

    posterior: str
    removed: str
    bridge: str
    verdict: str
    """The method that was accepted, or why none was."""
    pareto_k: str = ""
    epsilon: str = ""
    mean: str = ""
    log_sd: str = ""
    accuracy: str = ""
    evaluations: str = ""
    seconds: str = ""
    outcome: str = ""
    """at the floor, refused, or wrong."""
    speed: float | None = None
    """How many times faster than a refit; of what was accepted."""


class Bridged(NamedTuple):
    """A posterior through one bridge."""

    model: AbstractModel
    draws: Draws
    refit: Callable[[Int[np.ndarray, " kept"]], Any]
    """By the library's own sampler, of these rows."""


class Fit(NamedTuple):
    """A posterior with the draws that rows are removed from."""

    posterior: Posterior
    data: dict[str, Any]
    bridged: dict[str, Bridged]
    rhat: float
    """Of these draws and NumPyro's own together."""

    @property
    def model(self) -> BridgedModel:
        """NumPyro's."""
        model = self.bridged["NumPyro"].model
        assert isinstance(model, BridgedModel)
        return model

    @property
    def draws(self) -> Draws:
        """NumPyro's."""
        return self.bridged["NumPyro"].draws


class Done(NamedTuple):
    """All cells of a posterior."""

    posterior: str
    rhat: float
    """Of its draws and NumPyro's own together."""
    cells: list[Cell]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {**self._asdict(), "cells": [cell._asdict() for cell in self.cells]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Done:
        """From plain JSON."""
        return cls(values["posterior"], values["rhat"], [Cell(**cell) for cell in values["cells"]])


def run(
    folder: str | os.PathLike[str],
    report: Callable[[str, int, int], None],
    bridges: Sequence[str] = BRIDGES,
    *,
    done: Sequence[Done] = (),
    keep: Callable[[list[Done]], None] = lambda _: None,
) -> list[Done]:
    """All cells, in float64: reference draws are, and a Gaussian process in float32 has no Cholesky factor.

    Posteriors of `done` are not run again; whenever one is finished all of them are handed to `keep`.
    """
    for posterior in POSTERIORS:  # before any work
        arguments(posterior, folder)
    known = {each.posterior: each for each in done}
    found: list[Done] = []
    total = 3 * len(POSTERIORS)
    with jax.enable_x64(True):
        for posterior in POSTERIORS:
            if posterior.name not in known:
                report(posterior.name, 3 * len(found), total)
                fitted = fit(posterior, folder, bridges)
                cells: list[Cell] = []
                for number, (told, rows) in enumerate(requests(fitted).items()):
                    report(f"{posterior.name}, {told}", 3 * len(found) + number, total)
                    cells += measure(fitted, told, rows)
                    jax.clear_caches()  # every refit compiles; past some thousand programs XLA's CPU is out of memory
                known[posterior.name] = Done(posterior.name, fitted.rhat, cells)
            found.append(known[posterior.name])
            keep(found)
    return found


def fit(posterior: Posterior, folder: str | os.PathLike[str], bridges: Sequence[str] = BRIDGES) -> Fit:
    """The posterior through the bridges, and whether its draws agree with NumPyro's own."""
    data = arguments(posterior, folder)
    own = sampled(posterior, data)
    given = reference_draws(posterior, folder) if posterior.data else own.get_samples(group_by_chain=True)
    makers = {"NumPyro": _numpyro, "PyMC": _pymc, "Stan": _stan}
    bridged = {name: makers[name](posterior, data, given) for name in dict.fromkeys(("NumPyro", *bridges))}
    draws = bridged["NumPyro"].draws
    return Fit(posterior, data, bridged, agreement(draws, own) if posterior.data else max(mixing(draws)[0].values()))


def _numpyro(posterior: Posterior, data: dict[str, Any], given: dict[str, Any]) -> Bridged:
    model, draws = from_numpyro(posterior.model, draws=given, shared=posterior.shared, **data)
    return Bridged(model, draws, lambda kept: sampled(posterior, _cut(data, kept), DRAWS, 2))


def _pymc(posterior: Posterior, data: dict[str, Any], given: dict[str, Any]) -> Bridged:
    import pymc as pm

    from posterase.experiments.posteriors_pymc import MODELS

    build = MODELS[posterior.name]
    model, draws = from_pymc(build(**data), Draws(given).to_arviz(), shared=posterior.shared)

    def refit(kept: Int[np.ndarray, " kept"]) -> Any:
        options = {"chains": CHAINS, "cores": CHAINS, "progressbar": False, "random_seed": 2, "mp_ctx": "forkserver"}
        with build(**_cut(data, kept)):
            return pm.sample(DRAWS, tune=WARMUP, target_accept=0.95, compute_convergence_checks=False, **options)

    return Bridged(model, draws, refit)


def _stan(posterior: Posterior, data: dict[str, Any], given: dict[str, Any]) -> Bridged:
    written = PROGRAMS[posterior.name]
    own = written.data(data)
    model, draws = from_stan(written.program, own, given, subset=written.subset, n_rows="N")
    first = jax.tree.map(lambda leaf: np.asarray(leaf[0, 0], float), draws.params)

    def refit(kept: Int[np.ndarray, " kept"]) -> Any:
        cut = model.host.cut(as_arrays(own), kept)
        return model.host.program.sample(cut, 2, [first] * CHAINS, DRAWS, WARMUP)

    return Bridged(model, draws, refit)


def _cut(data: dict[str, Any], kept: Int[np.ndarray, " kept"]) -> dict[str, Any]:
    return {name: values[kept] for name, values in data.items()}


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


def measure(fitted: Fit, told: str, rows: Int[np.ndarray, " removed"]) -> list[Cell]:
    """One erasure through every bridge, against two refits."""
    name, kept = fitted.posterior.name, np.setdiff1d(np.arange(fitted.model.n_rows), rows)
    refits: list[Draws] | None = None
    cells = []
    for bridge, (model, draws, own_refit) in fitted.bridged.items():
        said, result = "", None
        try:
            result = erase(model, draws, rows, progress=False)
            said = result.verdict.reason
        except ImproperPosteriorError as error:
            said = error.problem
        refits = refit(fitted, rows, kept) if refits is None else refits
        if result is None or not result.verdict.accepted:
            outcome = _judged(result, refits, draws)
            cells.append(Cell(name, told, bridge, f"refused: {said}", outcome=outcome))
            continue
        start = time.perf_counter()
        result = erase(model, draws, rows, progress=False)
        middle = time.perf_counter()
        own_refit(kept)
        cells.append(_cell(name, told, bridge, result, refits, (middle - start, time.perf_counter() - middle)))
    return cells


def refit(fitted: Fit, rows: Int[np.ndarray, " removed"], kept: Int[np.ndarray, " kept"]) -> list[Draws]:
    """Two refits: NumPyro's of the data without the rows.

    Where rows have parameters of their own the model of fewer rows is one of fewer parameters: there it is our NUTS on
    the model that rows were taken out of.
    """
    model, draws = fitted.model, fitted.draws
    if model.program.row_latents or model.held:
        places = np.linspace(0, draws.n_chains * draws.n_draws - 1, CHAINS).astype(int)
        initial = jax.tree.map(lambda leaf: leaf[places], draws.flat())
        without = model.without(model.change(remove=rows))
        return [nuts(seed, without, initial, DRAWS, warmup=WARMUP).draws for seed in (1, 2)]
    made = [sampled(fitted.posterior, _cut(fitted.data, kept), DRAWS, seed) for seed in (1, 2)]
    found = [each.get_samples(group_by_chain=True) for each in made]
    return [Draws({name: each[name] for name in model.program.latents}) for each in found]


class Apart(NamedTuple):
    """How far draws are from refits."""

    mean: float
    log_sd: float
    accuracy: float
    error: float
    """Of the accuracy."""
    chance: float
    floor: tuple[float, float, float]
    wrong: bool


def apart(draws: Draws, refits: Sequence[Draws]) -> Apart:
    """Errors of moments, and whether a classifier tells draws from refits, each beside its floor."""
    found = [moment_errors(draws, each) for each in refits]
    floor = moment_errors(*refits)
    mean, log_sd = (float(np.mean([getattr(each, what) for each in found])) for what in ("mean", "log_sd"))
    told_apart = [two_sample(seed, draws, each) for seed, each in enumerate(refits)]
    floor_apart = two_sample(0, *refits)
    accuracy, error = (float(np.mean([getattr(e, what) for e in told_apart])) for what in ("accuracy", "error"))
    chance = float(np.mean([each.mean_chance for each in found]))
    limits = max(floor.mean, 2 * chance), max(floor.log_sd, 2 * chance), floor_apart.accuracy + SURE * error
    wrong = any(value > limit for value, limit in zip((mean, log_sd, accuracy), limits, strict=True))
    return Apart(mean, log_sd, accuracy, error, chance, (floor.mean, floor.log_sd, floor_apart.accuracy), wrong)


def _judged(result: Result | None, refits: Sequence[Draws], before: Draws) -> str:
    """Whether a refusal is right."""
    if max(mixing(refits[0])[0].values()) > DISAGREE:
        return RIGHTLY
    for name, leaf in refits[0].params.items():
        if np.any(leaf.std(axis=(0, 1)) > SPREAD * before.params[name].std(axis=(0, 1))):
            return RIGHTLY
    made = [outcome.erased for outcome in result.outcomes if outcome.erased is not None] if result is not None else []
    if made and apart(made[-1].draws, refits).wrong:
        return RIGHTLY
    if result is not None and made and made[-1].diagnostics.least_ess < result.policy.least_ess:
        return TOO_FEW
    return THOUGH_RIGHT


def _cell(
    name: str, told: str, bridge: str, result: Result, refits: Sequence[Draws], seconds: tuple[float, float]
) -> Cell:
    found, verdict = apart(result.draws, refits), result.verdict
    spent = sum(outcome.cost.evaluations for outcome in result.outcomes)
    floor = [f"{each:.3f}" for each in found.floor]
    return Cell(
        name,
        told,
        bridge,
        verdict.method,
        "–" if verdict.pareto_k is None else f"{verdict.pareto_k:.2f}",
        "not measured" if verdict.epsilon is None else f"{verdict.epsilon.value:.4f} ± {verdict.epsilon.error:.4f}",
        f"{found.mean:.3f} ({floor[0]}, {found.chance:.3f})",
        f"{found.log_sd:.3f} ({floor[1]})",
        f"{found.accuracy:.3f} ({floor[2]}) ± {found.error:.3f}",
        f"{spent:,.0f}",
        f"{seconds[0]:.2f} ({seconds[1]:.2f})",
        "**wrong**" if found.wrong else "at the floor",
        seconds[1] / seconds[0],
    )


HEAD = (
    "posterior",
    "removed",
    "bridge",
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


def lines(done: Sequence[Done]) -> Iterator[str]:
    """A Markdown table."""
    yield f"| {' | '.join(HEAD)} |"
    yield "|---" * len(HEAD) + "|"
    for cell in (cell for each in done for cell in each.cells):
        yield f"| {' | '.join(cell[:-1])} |"


def summary(done: Sequence[Done]) -> str:
    """What the table says."""
    cells = [cell for each in done for cell in each.cells]
    counts = collections.Counter(cell.outcome for cell in cells)
    worst = max(done, key=lambda each: each.rhat)
    said = (
        f"Of {len(cells)} erasures {counts['at the floor']} were accepted and are at the floor, {counts['**wrong**']} "
        f"were accepted and are wrong; {counts[RIGHTLY]} were refused rightly, {counts[TOO_FEW]} because too few "
        f"effective draws were left, {counts[THOUGH_RIGHT]} though what was made is right. R̂ of reference and "
        f"NumPyro's draws together is {worst.rhat:.4f} at most ({worst.posterior})."
    )
    speeds = {bridge: [c.speed for c in cells if c.bridge == bridge and c.speed] for bridge in BRIDGES}
    everything = [each for found in speeds.values() for each in found]
    if not everything:
        return said
    each = ", ".join(f"{bridge} {np.median(found):.0f}" for bridge, found in speeds.items() if found)
    return f"{said} In the median an erasure is {np.median(everything):.0f} times faster than a refit ({each})."


def _rows(n: int) -> str:
    return f"{n} row{'s' if n != 1 else ''}"
