"""posterase beside R loo and iwmm, arviz-stats, BlackJAX's SMC and pyDVL, on the same posteriors, in one run.

Target: three NUTS refits pooled. Two more refits, by NumPyro and BlackJAX, are the floor; at the floor is what is
at most twice as far from the target as the farther of them, in means and in spreads. Errors are root mean squares over
parameters: of means in posterior standard deviations, with what chance explains; of log standard deviations.
"Seconds" are the median of three later calls, "first" is the first call; neither starts a process, and `erase` comes
last and finds programs compiled by its methods. All start from the same 4,000 draws.

- **R loo** is handed a request as one observation, whose log-likelihood is the sum over the removed rows: `loo` gives
  weights, `loo_moment_match` moved draws and weights, both with their defaults. **iwmm** gets both log densities
  (`moment_match` of a matrix). Densities are written in R, over all draws at once; they are shown to be ours.
- **arviz-stats**: `loo` and `loo_moment_match`, handed the same, as in [Against peers](peers.md).
- **BlackJAX**: `adaptive_tempered_smc` from the full posterior's draws to the kept posterior, ESS 0.5, and one step
  more at the end, since it moves before it weighs. HMC with the draws' covariance, a quarter of a period long, and the
  step size whose acceptance is nearest to 0.8. It is tuned in its favour: of 1, 3 and 10 moves a stage the fewest
  that reach the floor. The tuning is not timed.
- **pyDVL** answers another question: by how much the mode moves. Its answer is measured against the mode found anew,
  and, as a shift of all draws, like the others.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

import posterase as pe
from benchmarks import peers as against
from benchmarks.peer_models import PEERS, Peers, apart, kept_rows, named
from benchmarks.peers import Row
from benchmarks.problems import Problem, breast_cancer, radon_hierarchy
from benchmarks.sides_page import UNTOUCHED, Found, Mode, at_the_floor, keep
from posterase.experiments.machine import machine
from posterase.model.densities import LogDensity
from posterase.numerics.densities import constrained, evaluate
from posterase.numerics.densities import unconstrained as raveled

REQUESTS = {
    breast_cancer: ("1 row", "57 rows of one class"),
    radon_hierarchy: ("a county", "30 counties"),
}
HERE = Path(__file__).parent
PYDVL = "PYDVL_PYTHON"
"""Names the Python of the environment that has pyDVL, whose NumPy is older than ours."""
MOVES = (1, 3, 10)
STEP_SIZES = (0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0)
ACCEPTANCE = 0.8


def run() -> Iterator[str]:
    found = Found(machine(), versions(), [], [], [])
    for make, requests in REQUESTS.items():
        problem, peers = make(), PEERS[make().name]()
        draws = pe.nuts(0, problem.model, problem.initial, against.DRAWS, warmup=against.WARMUP).draws
        few = pe.Draws(jax.tree.map(lambda leaf: leaf[:, ::250], draws.params))
        for request in requests:
            removed = np.asarray(problem.requests[request])
            assert max(apart(problem, peers, few, removed).values()) < against.AGREED
            for row in compared(Case(problem, peers, draws, request, removed), found):
                found.rows.append(row)
                yield against.line(row)
    skipped, told = sorted(set(found.skipped)), list(dict.fromkeys(found.versions))
    keep(dataclasses.replace(found, skipped=skipped, versions=told), __doc__ or "")
    yield from map(str, found.modes)
    yield from skipped


def versions() -> list[str]:
    import arviz_stats
    import blackjax

    return [f"arviz-stats {arviz_stats.__version__}", f"BlackJAX {blackjax.__version__}"]


class Case(NamedTuple):
    """One request to one posterior."""

    problem: Problem
    peers: Peers
    draws: pe.Draws
    request: str
    removed: np.ndarray


def compared(case: Case, found: Found) -> Iterator[Row]:
    problem, peers, draws, request, removed = case
    kept = problem.model.without(problem.model.change(remove=removed))
    refits = [
        pe.nuts(seed, kept, problem.initial, against.DRAWS, warmup=against.WARMUP).draws.params for seed in (1, 2, 3)
    ]
    target = pe.Draws(jax.tree.map(lambda *leaves: np.concatenate(leaves), *refits))

    def measured(name: str, kind: str, method: against.Method) -> Row:
        return against.measured(problem.name, request, name, kind, method, target)

    def judged(name: str, moved: pe.Draws, times: tuple[float, float], says: str) -> Row:
        return against.judged(problem.name, request, name, "reuse", moved, target, (*times, 0.0), says)

    yield against.judged(problem.name, request, UNTOUCHED, "none", draws, target, (0.0, 0.0, 0.0), "")
    floor = [
        measured("NUTS by NumPyro", "refit", against.numpyro_refit(problem, peers, removed)),
        measured("NUTS by BlackJAX", "refit", against.blackjax_refit(problem, peers, removed)),
    ]
    yield from floor
    for name, moved, times, says in in_r(case, found):
        yield judged(name, moved, times, says)
    yield measured("weights by arviz-stats", "reuse", against.arviz(problem, draws, removed, moved=False))
    yield measured("moment matching by arviz-stats", "reuse", against.arviz(problem, draws, removed, moved=True))
    yield tuned_smc(case, measured, floor)
    for name, moved, times, says in by_pydvl(case, target, found):
        yield judged(name, moved, times, says)
    for name, method in OURS.items():
        yield measured(name, "ours", against.by_method(problem, draws, removed, method))
    yield measured("erase", "ours", against.whole(problem, draws, removed))


OURS = {
    "Reweight": pe.Reweight(),
    "InfluenceShift, the paper's": pe.InfluenceShift(samples=100, hessian="full"),
    "InfluenceShift": pe.InfluenceShift(samples=100),
    "Transport": pe.Transport(),
    "Rejuvenate": pe.Rejuvenate(),
}


# --- BlackJAX's SMC


def tuned_smc(case: Case, measured: Callable[[str, str, against.Method], Row], floor: list[Row]) -> Row:
    step_size = tuned_step_size(case)
    for moves in MOVES:
        row = measured("SMC by BlackJAX", "reuse", blackjax_smc(case, moves, step_size))
        if at_the_floor(row, floor):
            break
    return row


class Tempering(NamedTuple):
    """From the full posterior, at 0, to the kept one, at 1."""

    full: Callable[[PyTree], Float[Array, ""]]
    minus_removed: Callable[[PyTree], Float[Array, ""]]
    particles: PyTree
    covariance: Float[np.ndarray, "d d"]


def tempering(case: Case) -> Tempering:
    problem, peers, draws, _, removed = case
    rows = kept_rows(problem, np.array([], int))
    gone, none = ({name: values[ids] for name, values in rows.items()} for ids in (removed, removed[:0]))
    of_gone, of_none = peers.density(gone), peers.density(none)
    thetas, _ = raveled(problem.model, draws)
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), named(draws.params))
    particles = {name: jnp.log(leaf) if name in peers.positive else jnp.asarray(leaf) for name, leaf in flat.items()}
    covariance = np.atleast_2d(np.cov(thetas.T))
    return Tempering(peers.density(rows), lambda at: of_none(at) - of_gone(at), particles, covariance)


def length(step_size: float) -> int:
    """Leapfrog steps of a quarter of a period, where all scales are one."""
    return int(np.ceil(np.pi / 2 / step_size))


def tuned_step_size(case: Case) -> float:
    """Of one move of all draws at the full posterior, which they are draws of."""
    import blackjax

    at = tempering(case)
    keys = jax.random.split(jax.random.key(0), against.DRAWS)
    some = jax.tree.map(lambda leaf: leaf[: len(keys)], at.particles)

    @jax.jit
    def acceptance(step_size: Float[Array, ""], steps: Array) -> Float[Array, ""]:
        kernel = blackjax.hmc(at.full, step_size, jnp.asarray(at.covariance), steps)
        return jax.vmap(lambda key, start: kernel.step(key, kernel.init(start))[1].acceptance_rate)(keys, some).mean()

    return min(STEP_SIZES, key=lambda size: abs(float(acceptance(jnp.float32(size), length(size))) - ACCEPTANCE))


def blackjax_smc(case: Case, moves: int, step_size: float) -> against.Method:
    import blackjax
    from blackjax.smc import extend_params, resampling

    at = tempering(case)
    kernel = blackjax.hmc.build_kernel()
    settings = {
        "step_size": step_size,
        "inverse_mass_matrix": jnp.asarray(at.covariance, jnp.float32),
        "num_integration_steps": length(step_size),
    }
    smc = blackjax.adaptive_tempered_smc(
        at.full,
        at.minus_removed,
        kernel,
        blackjax.hmc.init,
        extend_params(settings),
        resampling.systematic,
        target_ess=0.5,
        num_mcmc_steps=moves,
    )
    step = jax.jit(smc.step)
    draws, peers = case.draws, case.peers

    def method(seed: int) -> tuple[pe.Draws, str]:
        key, state, stages = jax.random.key(seed), smc.init(at.particles), 0
        # Past 1 a step resamples by the last weights and moves there.
        last = False
        while not last:
            last = float(state.tempering_param) >= 1
            state, info = step(jax.random.fold_in(key, stages), state)
            stages += 1
        moved = jax.device_get(state.particles)
        params = {
            name: (np.exp(leaf) if name in peers.positive else leaf).reshape(
                draws.n_chains, draws.n_draws, *leaf.shape[1:]
            )
            for name, leaf in moved.items()
        }
        accepted = float(info.update_info.acceptance_rate.mean())
        says = f"{stages} steps of {moves} move(s), acceptance {accepted:.2f}"
        return against.as_draws(case.problem, params), says

    return method


# --- R and pyDVL, by processes of their own, on files

Moved = tuple[str, pe.Draws, tuple[float, float], str]
IN_R = {
    "loo_weights": "weights by R loo",
    "loo_moments": "moment matching by R loo",
    "iwmm": "moment matching by iwmm",
}


def write(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Each array as doubles in a file, and all shapes in one."""
    with (folder / "shapes.csv").open("w") as file:
        sheet = csv.writer(file)
        sheet.writerow(("name", "rows", "columns"))
        for name, array in arrays.items():
            wide = np.asarray(array, float).reshape(len(array), -1)
            wide.tofile(folder / name)
            sheet.writerow((name, *wide.shape))


def arrays_of(case: Case) -> dict[str, np.ndarray]:
    thetas, _ = raveled(case.problem.model, case.draws)
    shape = case.draws.n_draws, case.draws.n_chains
    rows = kept_rows(case.problem, np.array([], int))
    return {"draws": thetas, "removed": case.removed, "log_likelihood": np.zeros(shape), **rows}


def columns(case: Case) -> list[str]:
    """The parameter that each unconstrained number belongs to."""
    first = {name: leaf[0, 0] for name, leaf in named(case.draws.params).items()}
    return [name for name in sorted(first) for _ in range(np.size(first[name]))]


@functools.cache
def has_r() -> bool:
    tried = ["Rscript", "-e", "stopifnot(requireNamespace('loo'))"]
    return shutil.which("Rscript") is not None and not subprocess.run(tried, capture_output=True).returncode


def in_r(case: Case, found: Found) -> Iterator[Moved]:
    if not has_r():
        found.skipped.append("R loo and iwmm: no Rscript with the package loo was found")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, arrays_of(case))
        (folder / "columns.txt").write_text("\n".join(columns(case)) + "\n")
        subprocess.run(["Rscript", HERE / "sides_loo.R", folder, str(against.REPEATS)], check=True, capture_output=True)
        found.versions.append((folder / "versions.txt").read_text().strip())
        check_density(case, np.fromfile(folder / "kept"))
        with (folder / "found.csv").open() as file:
            lines = list(csv.DictReader(file))
        for line in lines:
            places = np.fromfile(folder / f"{line['name']}.draws").reshape(-1, len(columns(case)))
            weights = np.fromfile(folder / f"{line['name']}.log_weights")
            times = float(line["first"]), float(line["seconds"])
            yield IN_R[line["name"]], placed(case, places, weights), times, f"k̂ {float(line['k']):.2f}"
        if "iwmm" not in [line["name"] for line in lines]:
            found.skipped.append("iwmm: the R package is not installed")


def placed(case: Case, places: np.ndarray, log_weights: np.ndarray) -> pe.Draws:
    model, draws = case.problem.model, case.draws
    _, like = raveled(model, draws)
    params = constrained(model, places, like, draws)
    return pe.Draws(params, log_weights.reshape(draws.n_chains, draws.n_draws).astype(np.float32))


def check_density(case: Case, theirs: np.ndarray) -> None:
    """What R computes is our kept density, up to a constant."""
    model = case.problem.model
    ours = evaluate(LogDensity(model.without(model.change(remove=case.removed))), case.draws).ravel()
    off = theirs - ours
    assert np.ptp(off) < against.AGREED, np.ptp(off)


def by_pydvl(case: Case, target: pe.Draws, found: Found) -> Iterator[Moved]:
    if "y" not in case.problem.model.data:
        return  # written for the logistic regression alone
    python = os.environ.get(PYDVL)
    if not python:
        found.skipped.append(f"pyDVL: {PYDVL} does not name a Python that has it")
        return
    rows = kept_rows(case.problem, np.array([], int))
    mode, new_mode = mode_of(rows), mode_of(kept_rows(case.problem, case.removed))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, arrays_of(case) | {"mode": mode})
        command = [python, str(HERE / "sides_pydvl.py"), name, str(against.REPEATS)]
        subprocess.run(command, check=True, capture_output=True)
        change, (first, seconds) = np.fromfile(folder / "change"), np.fromfile(folder / "seconds")
        found.versions.append((folder / "versions.txt").read_text().strip())
    spread = np.asarray(target.params).std(axis=(0, 1))
    needed, off = (np.sqrt(np.mean((each / spread) ** 2)) for each in (new_mode - mode, mode + change - new_mode))
    found.modes.append(Mode(case.request, float(needed), float(off), seconds))
    moved = pe.Draws((np.asarray(case.draws.params) + change).astype(np.float32))
    yield "draws shifted by pyDVL's answer", moved, (first, seconds), ""


def mode_of(rows: dict[str, np.ndarray]) -> np.ndarray:
    """Of the logistic regression with a standard normal prior, by Newton's method."""
    x, y = rows["x"].astype(float), rows["y"].astype(float)
    mode = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-x @ mode))
        step = np.linalg.solve((x.T * (p * (1 - p))) @ x + np.eye(len(mode)), x.T @ (y - p) - mode)
        mode = mode + step
    assert np.abs(step).max() < 1e-10, step
    return mode
