"""posterase against what else there is, on the same posteriors, in one run: errors and seconds.

Target: three NUTS refits pooled. Every refit of a peer is a further one: its error is the floor, which no method can
beat but by luck; at the floor is what is no farther than the farthest of them, or than twice what chance explains of a
refit. Errors are root mean squares over parameters: of means in posterior standard deviations, with what chance
explains; of log standard deviations. "First" is the first call in this process, whatever it compiles. "Seconds" are of
later calls, with other keys, the median of three (of fewer, where they are long), less what XLA compiled in them once
more, which is "again": NumPyro compiles its loop for every run. `erase` comes after its methods and finds most of its
programs compiled by them: its own first call from a new process is in [Time to the first answer](compilation.md).
Programs that an earlier process kept are not used. All have 4 chains of 1,000 draws and their own default of warm-up
steps: 1,000, nutpie 400. Before anything is timed, the log densities of the peers' models are shown to be ours up to a
constant.

arviz-stats leaves out single observations for cross-validation. A request is handed to it as one observation, whose
log-likelihood is the sum over the removed rows: `loo` then gives importance weights, `loo_moment_match` weights of
draws moved by an affine map. It does not return the moved draws; they are taken from the calls of the density that it
is given (`split=False`), by the weights that belong to them. Where k̂ is good already it moves nothing.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float, PyTree

import posterase as pe
from benchmarks.harness import write_whole
from benchmarks.peer_models import PEERS, Peers, apart, kept_rows, named
from benchmarks.problems import CHAINS, Problem, breast_cancer, radon_hierarchy
from posterase.experiments.machine import machine
from posterase.metrics import moment_errors, two_sample
from posterase.model.densities import LogDensity, LogRatio
from posterase.numerics.densities import constrained, evaluate, evaluate_at
from posterase.numerics.densities import unconstrained as raveled
from posterase.runtime.files import written_whole

WARMUP, DRAWS = 1000, 1000
NUTPIE_WARMUP = 400
REQUESTS = {breast_cancer: ("1 row", "57 rows of one class"), radon_hierarchy: ("a county",)}
REPEATS, ENOUGH = 3, 4.0
"""Later calls, and after how many seconds there are no more."""
AGREED = 1e-6
"""How far log densities may be apart, in nats, after the constant is taken out."""
ROOT = Path(__file__).parent.parent / "docs"


@dataclasses.dataclass(frozen=True)
class Row:
    """One method on one request."""

    posterior: str
    request: str
    method: str
    kind: str
    mean_error: float
    chance: float
    sd_error: float
    accuracy: float
    """Of a classifier that tells the draws from the target's; a half: it cannot."""
    first: float
    seconds: float
    again: float
    """What was compiled once more in the second call, in seconds."""
    says: str


Method = Callable[[int], tuple[pe.Draws, str]]
"""Draws with this seed, and what the method says of them."""


def run() -> Iterator[str]:
    rows: list[Row] = []
    agreed = []
    for make, requests in REQUESTS.items():
        problem, peers = make(), PEERS[make().name]()
        draws = pe.nuts(0, problem.model, problem.initial, DRAWS, warmup=WARMUP).draws
        few = pe.Draws(jax.tree.map(lambda leaf: leaf[:, ::250], draws.params))
        for request in requests:
            removed = problem.requests[request]
            found = apart(problem, peers, few, removed)
            assert max(found.values()) < AGREED, found
            agreed.append(max(found.values()))
            for row in compared(problem, peers, draws, request, removed):
                rows.append(row)
                yield line(row)
    said = f"Log densities of the peers' models and ours are at most {max(agreed):.0e} nats apart."
    write_whole(ROOT / "results" / "peers.md", page(rows, said))
    kept = {"machine": machine(), "rows": [dataclasses.asdict(row) for row in rows]}
    write_whole(ROOT / "results" / "peers.json", json.dumps(kept, indent=1) + "\n")
    plot(rows, ROOT / "figures" / "peers.svg")
    yield said


def compared(problem: Problem, peers: Peers, draws: pe.Draws, request: str, removed: np.ndarray) -> Iterator[Row]:
    model = problem.model
    kept = model.without(model.change(remove=removed))
    refits = [pe.nuts(seed, kept, problem.initial, DRAWS, warmup=WARMUP).draws for seed in (1, 2, 3)]
    target = pe.Draws(jax.tree.map(lambda *leaves: np.concatenate(leaves), *(each.params for each in refits)))
    methods: dict[str, tuple[str, Method]] = {
        "NUTS by NumPyro": ("refit", numpyro_refit(problem, peers, removed)),
        "NUTS by BlackJAX": ("refit", blackjax_refit(problem, peers, removed)),
    }
    if importlib.util.find_spec("nutpie"):
        methods["NUTS by nutpie"] = "refit", nutpie_refit(problem, peers, removed)
    methods |= {
        "importance weights by arviz-stats": ("reuse", arviz(problem, draws, removed, moved=False)),
        "moment matching by arviz-stats": ("reuse", arviz(problem, draws, removed, moved=True)),
        "Reweight (PSIS alone)": ("ours", by_method(problem, draws, removed, pe.Reweight())),
        "InfluenceShift": ("ours", by_method(problem, draws, removed, pe.InfluenceShift(samples=100))),
        "Transport": ("ours", by_method(problem, draws, removed, pe.Transport())),
        "Rejuvenate": ("ours", by_method(problem, draws, removed, pe.Rejuvenate())),
        "erase": ("ours", whole(problem, draws, removed)),
    }
    for name, (kind, method) in methods.items():
        yield measured(problem.name, request, name, kind, method, target)


def measured(posterior: str, request: str, name: str, kind: str, method: Method, target: pe.Draws) -> Row:
    """A method's errors against the target, and the seconds of its first and of later calls."""
    started = time.perf_counter()
    method(10)
    first = time.perf_counter() - started
    seconds: list[float] = []
    compiled: list[float] = []
    while len(seconds) < REPEATS and sum(seconds) < ENOUGH:
        between = time.perf_counter()
        with compiling() as again:
            found, says = method(11 + len(seconds))
        seconds.append(time.perf_counter() - between - sum(again))
        compiled.append(sum(again))
    times = first, float(np.median(seconds)), float(np.median(compiled))
    return judged(posterior, request, name, kind, found, target, times, says)


def judged(
    posterior: str,
    request: str,
    name: str,
    kind: str,
    found: pe.Draws,
    target: pe.Draws,
    times: tuple[float, float, float],
    says: str,
) -> Row:
    """Draws against the target, beside the seconds that they took."""
    errors = moment_errors(found, target)
    accuracy = two_sample(0, found, target).accuracy
    return Row(posterior, request, name, kind, errors.mean, errors.mean_chance, errors.log_sd, accuracy, *times, says)


@contextmanager
def compiling() -> Iterator[list[float]]:
    """Seconds of every compilation by XLA in here."""
    found: list[float] = []

    def heard(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)


# --- new fits


def numpyro_refit(problem: Problem, peers: Peers, removed: np.ndarray) -> Method:
    from numpyro.infer import MCMC, NUTS

    rows = kept_rows(problem, removed)
    options: dict[str, Any] = {"num_chains": CHAINS, "chain_method": "vectorized", "progress_bar": False}
    mcmc = MCMC(NUTS(peers.numpyro), num_warmup=WARMUP, num_samples=DRAWS, jit_model_args=True, **options)

    def method(seed: int) -> tuple[pe.Draws, str]:
        mcmc.run(jax.random.key(seed), **rows)
        return as_draws(problem, jax.device_get(mcmc.get_samples(group_by_chain=True))), ""

    return method


def blackjax_refit(problem: Problem, peers: Peers, removed: np.ndarray) -> Method:
    import blackjax

    density = peers.density(kept_rows(problem, removed))
    initial = {
        name: jnp.log(leaf) if name in peers.positive else jnp.asarray(leaf)
        for name, leaf in named(problem.initial).items()
    }

    def chain(key: Any, start: PyTree) -> PyTree:
        for_warmup, for_draws = jax.random.split(key)
        (state, settings), _ = blackjax.window_adaptation(blackjax.nuts, density).run(for_warmup, start, WARMUP)
        step = blackjax.nuts(density, **settings).step

        def one(state: Any, key: Any) -> tuple[Any, PyTree]:
            state, _ = step(key, state)
            return state, state.position

        return jax.lax.scan(one, state, jax.random.split(for_draws, DRAWS))[1]

    chains = jax.jit(jax.vmap(chain))

    def method(seed: int) -> tuple[pe.Draws, str]:
        found = jax.device_get(chains(jax.random.split(jax.random.key(seed), CHAINS), initial))
        return as_draws(problem, {n: np.exp(x) if n in peers.positive else x for n, x in found.items()}), ""

    return method


def nutpie_refit(problem: Problem, peers: Peers, removed: np.ndarray) -> Method:
    import nutpie

    compiled: list[Any] = []

    def method(seed: int) -> tuple[pe.Draws, str]:
        if not compiled:  # counted in the first call, as the others' compilations are
            compiled.append(nutpie.compile_pymc_model(peers.pymc(kept_rows(problem, removed))))
        found = nutpie.sample(
            compiled[0], draws=DRAWS, tune=NUTPIE_WARMUP, chains=CHAINS, seed=seed, progress_bar=False
        )
        return as_draws(problem, {name: found.posterior[name].values for name in named(problem.initial)}), ""

    return method


def as_draws(problem: Problem, found: dict[str, Any]) -> pe.Draws:
    """By the names, and in the precision, of our own."""
    params = {name: np.asarray(found[name], np.float32) for name in named(problem.initial)}
    return pe.Draws(params if isinstance(problem.initial, dict) else params["p"])


# --- the old draws, by arviz-stats


def arviz(problem: Problem, draws: pe.Draws, removed: np.ndarray, *, moved: bool) -> Method:
    import arviz_stats

    model, change = problem.model, problem.model.change(remove=removed)
    full, log_ratio = LogDensity(model), LogRatio(model, change)
    place: list[int] = []

    def method(seed: int) -> tuple[pe.Draws, str]:
        thetas, like = raveled(model, draws)
        upars = xr.DataArray(thetas.reshape(draws.n_chains, draws.n_draws, -1), dims=("chain", "draw", "parameter"))
        likelihood = xr.DataArray(-evaluate(log_ratio, draws)[..., None], dims=("chain", "draw", "request"))
        groups = {
            "posterior": xr.Dataset({"theta": upars}),
            "log_likelihood": xr.Dataset({"removed": likelihood}),
        }
        tree = xr.DataTree.from_dict(groups)
        tried: list[np.ndarray] = []

        def values(density: Any, at: xr.DataArray) -> xr.DataArray:
            points = at.transpose("chain", "draw", "parameter").values
            found = evaluate_at(density, points.reshape(-1, points.shape[-1]), like)
            return xr.DataArray(found.reshape(points.shape[:2]), dims=("chain", "draw"))

        def log_prob(at: xr.DataArray) -> xr.DataArray:
            tried.append(at.transpose("chain", "draw", "parameter").values)
            return values(full, at)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it warns of is in the table: k̂
            found = arviz_stats.loo(tree, pointwise=True)
            if moved:
                found = arviz_stats.loo_moment_match(
                    tree,
                    found,
                    log_prob,
                    lambda at, _: -values(log_ratio, at),
                    upars=upars,
                    split=False,
                    pointwise=True,
                )
        weights = found.log_weights.isel(request=0).transpose("chain", "draw").values
        if moved and not place:  # the same in every call, so that only the first waits for it
            place.append(_belonging(weights, tried, full, log_ratio, like))
        places = tried[place[0]] if moved else upars.values
        params = constrained(model, places.reshape(-1, places.shape[-1]), like, draws)
        says = f"k̂ {float(found.pareto_k[0]):.2f}"
        return pe.Draws(params, weights.astype(np.float32)), says

    return method


def _belonging(
    weights: Float[np.ndarray, "chain draw"],
    tried: list[np.ndarray],
    full: LogDensity,
    log_ratio: LogRatio,
    like: PyTree,
) -> int:
    """Of the draws that the density was asked about, which the weights belong to."""
    before = evaluate_at(full, tried[0].reshape(-1, tried[0].shape[-1]), like)
    log_weights = weights.ravel()
    light = log_weights < np.median(log_weights)  # which smoothing leaves as they were, up to a constant

    def off(points: np.ndarray) -> float:
        flat = points.reshape(-1, points.shape[-1])
        raw = evaluate_at(full, flat, like) + evaluate_at(log_ratio, flat, like) - before
        return float(np.ptp((raw - log_weights)[light]))

    apart_by = [off(points) for points in tried]
    assert min(apart_by) < AGREED, apart_by
    return int(np.argmin(apart_by))


# --- ours


def by_method(problem: Problem, draws: pe.Draws, removed: np.ndarray, eraser: pe.Method) -> Method:
    change = problem.model.change(remove=removed)

    def method(seed: int) -> tuple[pe.Draws, str]:
        found = eraser(seed, problem.model, draws, change)
        jax.block_until_ready(found.draws.params)
        return found.draws, pe.Policy(ess=0.0).brief(found)

    return method


def whole(problem: Problem, draws: pe.Draws, removed: np.ndarray) -> Method:
    def method(seed: int) -> tuple[pe.Draws, str]:
        found = pe.erase(problem.model, draws, removed, random_seed=seed, policy=pe.Policy(refit=True))
        jax.block_until_ready(found.draws.params)
        return found.draws, str(found.verdict).splitlines()[0]

    return method


# --- what came out

HEAD = (
    "| posterior | removed | method | error of means (by chance) | of log sd | two-sample | seconds | again | first "
    "| says |\n|---|---|---|---|---|---|---|---|---|---|"
)


def line(row: Row) -> str:
    errors = f"{row.mean_error:.3f} ({row.chance:.3f}) | {row.sd_error:.3f} | {row.accuracy:.3f}"
    times = f"{row.seconds:.3g} | {f'{row.again:.2g}' if row.again > 0.01 else ''} | {row.first:.3g}"
    return f"| {row.posterior} | {row.request} | {row.method} | {errors} | {times} | {row.says} |"


def page(rows: list[Row], said: str) -> str:
    intro = f"# Against peers\n\nFrom `python -m benchmarks peers`: {machine()}.\n\n{__doc__}"
    figure = "![Seconds against error of means, one panel a request](../figures/peers.svg)"
    parts = [intro, said, "", figure, "", summary(rows), "", BETTER, "", HEAD, *map(line, rows)]
    return "\n".join(parts) + "\n"


BETTER = """What peers do better: a refit needs no old draws, and no diagnostics that may refuse them; what it costs
does not grow with what is removed. nutpie needs fewer warm-up steps, runs a chain a core, and compiles by Numba, sooner
than XLA does. `loo` of arviz-stats needs stored log-likelihoods alone, as our `Reweight` does, and is as exact. What
none of them does: choose between these by their diagnostics, and say how far to trust the draws that come out."""


def summary(rows: list[Row]) -> str:
    """Who was fastest at the floor, and what that is beside `erase`."""
    lines = []
    for key in dict.fromkeys((row.posterior, row.request) for row in rows):
        here = [row for row in rows if (row.posterior, row.request) == key]
        refits = [row for row in here if row.kind == "refit"]
        floor = max(max(row.mean_error, 2 * row.chance) for row in refits)
        reached = [row for row in here if row.mean_error <= floor]
        missed = [row.method for row in here if row not in reached]
        order = ", ".join(f"{row.method} {row.seconds:.2g} s" for row in sorted(reached, key=lambda row: row.seconds))
        own = next(row for row in here if row.method == "erase")
        fastest = min(refits, key=lambda row: row.seconds)
        ratio = fastest.seconds / own.seconds
        beside = f"`erase` took {own.seconds:.2g} s, the fastest refit ({fastest.method}) {ratio:.3g} times that"
        left = f" Farther from the target: {', '.join(missed)}." if missed else ""
        better = [row for row in reached if row.kind != "ours" and row.seconds < own.seconds]
        told = ", ".join(f"{row.method} ({row.seconds / own.seconds:.2g} times its seconds)" for row in better)
        faster = f" Of the peers at the floor, faster than `erase`: {told or 'none'}."
        lines.append(f"- {key[0]}, {key[1]}: at the floor, fastest first: {order}. {beside}.{left}{faster}")
    return "\n".join(lines)


def plot(rows: list[Row], target: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "peers", "font.size": 9, "svg.fonttype": "none"})
    keys = list(dict.fromkeys((row.posterior, row.request) for row in rows))
    figure, axes = plt.subplots(
        1, len(keys), figsize=(4.2 * len(keys), 4.4), sharex=True, sharey=True, layout="constrained"
    )
    colours = {"refit": "#0072b2", "reuse": "#d55e00", "ours": "#009e73"}
    for axis, key in zip(np.atleast_1d(axes), keys, strict=True):
        here = [row for row in rows if (row.posterior, row.request) == key]
        floor = max(max(row.mean_error, 2 * row.chance) for row in here if row.kind == "refit")
        axis.axhspan(0, floor, color="#0072b2", alpha=0.08, lw=0)
        places = _places([row.mean_error for row in here], [row.seconds for row in here])
        for number, (row, place) in enumerate(zip(here, places, strict=True), 1):
            at = row.seconds, row.mean_error
            axis.plot(*at, "o", color=colours[row.kind], ms=6, mec="white", mew=0.5)
            axis.annotate(str(number), at, xytext=place, textcoords="offset points", va="center", ha="center")
        axis.set(xscale="log", yscale="log", title=f"{key[0]}: {key[1]}", xlabel="seconds, compiled")
        axis.margins(0.08, 0.12)
        axis.grid(alpha=0.25, which="major")
        axis.spines[["top", "right"]].set_visible(False)
    first = np.atleast_1d(axes)[0]
    first.set_ylabel("error of means, posterior sd")
    names = [row.method for row in rows if (row.posterior, row.request) == keys[0]]
    kinds = [row.kind for row in rows if (row.posterior, row.request) == keys[0]]
    handles = [plt.Line2D([], [], marker="o", ls="", color=colours[kind]) for kind in kinds]
    labels = [f"{number}  {name}" for number, name in enumerate(names, 1)]
    handles.append(plt.Rectangle((0, 0), 1, 1, color="#0072b2", alpha=0.08, lw=0))
    labels.append("the floor: refits, and chance")
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    with written_whole(target) as beside:
        figure.savefig(beside, metadata={"Date": None})
    plt.close(figure)


def _places(errors: list[float], seconds: list[float]) -> list[tuple[float, float]]:
    """Where labels are, in points from their dots: above, and below where the neighbour to the left has it above."""
    places = [(0.0, 9.0)] * len(errors)
    order = np.argsort(seconds)
    for before, at in itertools.pairwise(order):
        near = abs(np.log(errors[at] / errors[before])) < 0.35 and np.log(seconds[at] / seconds[before]) < 0.6
        places[at] = (0.0, -places[before][1]) if near else (0.0, 9.0)
    return places
