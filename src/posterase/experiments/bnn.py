"""The paper's Bayesian neural networks (Section 5.2, Appendix D): thousands of rows of one class are erased.

A network is trained on another data set, then by SG-MCMC on all rows S, without noise at first. Rows S′ of one class
are erased, 64 at a time, in several ways, and each is compared with networks that were trained on the kept rows from
the same pre-trained start. Chains are repeats: each has a pre-trained start of its own, and all run side by side.

    retrain                 the recipe on the kept rows: what every method is to reach
    floor                   the same with another seed of the sampler: how far apart two such are
    origin                  nothing done
    fine-tuning             1,000 steps of the sampler on the kept rows a request; the paper calls it IS
    paper                   its Algorithm 1 along the live chain
    steps alone             the sampler's steps that the paper's method takes in between, without its shift
    importance sampling     draws of the chain weighted by one over the removed rows' likelihood
    corrected               `CorrectedContinuation`, all rows in one request
    rewound                 ours: back a part of the way to the start, then on (`Rewind`); likewise

Step sizes are 0.01/N while there is no noise, then 0.01 · t^−0.5005 / N with t counted from the first step with noise;
N is the number of rows trained on, so that retraining has N′ there.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree, Shaped, UInt8

from posterase.draws.draws import Draws
from posterase.errors import InvalidOptionError, NonFiniteResultError
from posterase.experiments import datasets, networks
from posterase.experiments.clock import Clock, Report, named
from posterase.experiments.recipes import SamplerName, sampler_of
from posterase.experiments.stages import Stage, Stages
from posterase.methods.live_influence_shift import LiveInfluenceShift
from posterase.methods.reweight import Reweight
from posterase.methods.unconverged.corrected_continuation import CorrectedContinuation
from posterase.methods.unconverged.rewind import Rewind
from posterase.methods.unconverged.rounds import RoundsMethod
from posterase.model.change import Change
from posterase.model.factorised import Model
from posterase.sampling.sample import sample, start_chains
from posterase.sampling.sampler import NoiseFreePhase, Sampler, State
from posterase.sampling.schedules import PolynomialSteps
from posterase.sampling.sgld import SGLD

METHODS = (
    "retrain",
    "floor",
    "origin",
    "fine-tuning",
    "paper",
    "steps alone",
    "importance sampling",
    "corrected",
    "rewound",
)
PIECE = {"cpu": 100}
"""Steps between two reports of progress, by backend; a thousand on others, which would wait for the host each time."""
PANELS = 4
"""Looks at the case study's images while rows are removed: before, after a third, two thirds and all."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Every number of one block; the defaults are the paper's for Fashion-MNIST."""

    dataset: str = "fashion-mnist"
    sampler: SamplerName = "sgld"
    removed: int = 4000
    removed_class: int = 0
    seed: int = 0
    chains: int = 5
    retrainings: int = 2
    """Trainings on the kept rows from every pre-trained start: the target, and others for the floor."""
    rows: int | None = None
    """Training rows that are used, as many of each class, and as many for pre-training. None: all."""
    test_rows: int | None = None
    network: Literal["lenet", "cifar", "digits"] = "lenet"
    precision: networks.Precision = "float32"
    prior_sd: float = 0.1
    batch: int = 128
    pretraining: str | None = "mnist"
    pretraining_steps: int = 2000
    pretraining_rate: float = 0.1
    pretraining_prior: bool = False
    """Whether the prior is there while pre-training; the paper's pre-trained networks are not Bayesian."""
    steps: int = 10_000
    noise_free_steps: int = 1000
    rate: float = 0.01
    decay: float = 0.5005
    momentum: float = 0.9
    """Of pre-training and of the phase without noise."""
    friction: float = 0.9
    request_rows: int = 64
    order: int = 64
    scale: float = 0.05
    hvp_batch: int = 128
    diverged_above: float = 10.0
    """A request's shift is refused for a chain where the series' last term exceeds its first so many times."""
    fine_tuning_steps: int = 1000
    draws: int = 100
    """Consecutive states of a chain, for ε̂ and importance sampling."""
    budget: float = 0.05
    """Of corrected and rewound continuation, in gradients, as a share of one retraining."""
    corrected_rate: float = 0.02
    corrected_momentum: float = 0.9
    corrected_drift: float = 0.7
    """Share of the chains' drift that is taken off."""
    rewound: float = 0.7
    """Share of the way back to the pre-trained start; the rate is such that steps write for as long as was rewound."""
    rewound_momentum: float = 0.9
    case_study: tuple[int, ...] = ()
    """Test images whose class probabilities are shown while rows are removed."""

    @property
    def title(self) -> str:
        """In words, for people."""
        words = f"{TITLES[self.dataset]} + {self.sampler.upper()}, {self.removed:,} rows removed"
        return f"{words}, {self.variant}" if self.variant else words

    @property
    def variant(self) -> str:
        """What is not as the data set's own experiment has it, of what can be asked for; empty: nothing."""
        base, own = PAPER[self.dataset][0], []
        if self.pretraining != base.pretraining:
            own.append(f"pre-trained on {self.pretraining}" if self.pretraining else "not pre-trained")
        if self.rows is None and self.precision != base.precision:
            own.append(f"products in {self.precision}")
        return ", ".join(own)

    @property
    def name(self) -> str:
        """For files."""
        name = f"{self.dataset}-{self.sampler}-{self.removed}"
        return f"{name}-{self.variant.replace(', ', '-').replace(' ', '-')}" if self.variant else name


TITLES = {"fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "digits": "digits"}

PAPER: dict[str, tuple[Settings, tuple[int, int]]] = {
    "fashion-mnist": (Settings(), (4000, 6000)),
    "cifar10": (
        Settings(
            dataset="cifar10",
            network="cifar",
            pretraining="cifar100",
            pretraining_steps=10_000,
            steps=20_000,
            noise_free_steps=5000,
            scale=0.08,
            precision="bfloat16",
            rewound=0.4,
            case_study=(4217, 6872, 7349, 492),
        ),
        (3000, 5000),
    ),
    "digits": (
        Settings(
            dataset="digits",
            network="digits",
            pretraining=None,
            prior_sd=0.3,
            rate=0.03,
            steps=1000,
            noise_free_steps=500,
            batch=64,
            hvp_batch=64,
            request_rows=16,
            order=16,
            fine_tuning_steps=50,
            draws=30,
            budget=0.5,
            corrected_rate=0.03,
            rewound=0.5,
            case_study=(0, 1, 2, 3),
        ),
        (130, 143),
    ),
}
"""Each data set's settings, and the two numbers of rows that are removed."""


def blocks(dataset: str, *, quick: bool = False, **changes: Any) -> list[Settings]:
    """The four blocks of a data set: two samplers, two sizes. `quick`: a tenth of everything."""
    base, sizes = PAPER[dataset]
    base = dataclasses.replace(base, **changes)
    made = [dataclasses.replace(base, sampler=sampler, removed=size) for sampler in ("sgld", "sghmc") for size in sizes]
    return [dataclasses.replace(a_tenth(each), **changes) for each in made] if quick else made


def a_tenth(settings: Settings) -> Settings:
    """A tenth of rows, steps and removed rows, for a look on a CPU; figures differ from the paper's then."""
    rows = {"cifar10": 5000}.get(settings.dataset, 6000)
    return dataclasses.replace(
        settings,
        rows=rows,
        test_rows=1000,
        removed=settings.removed // 10,
        pretraining_steps=settings.pretraining_steps // 10,
        steps=settings.steps // 10,
        noise_free_steps=settings.noise_free_steps // 10,
        fine_tuning_steps=settings.fine_tuning_steps // 10,
        draws=30,
        precision="float32",
        case_study=tuple(image % 1000 for image in settings.case_study),
    )


class Problem(NamedTuple):
    """Data, network and removed rows of a block."""

    settings: Settings
    network: networks.Network
    model: Model
    """Of all rows."""
    kept: Model
    test: dict[str, Array]
    removed: Int[np.ndarray, " removed"]
    """Ids in the order in which they are asked to be removed."""
    requests: list[Int[np.ndarray, " rows"]]
    classes: tuple[str, ...]


class Arm(NamedTuple):
    """Chains after a method, with what to go on with."""

    state: State
    model: Model
    sampler: Sampler
    notes: dict[str, Any]
    """Seconds and what else the method says, as JSON has it."""


# --- data


def make_network(settings: Settings, classes: int = 10) -> networks.Network:
    """The data set's network."""
    makers = {"lenet": networks.lenet, "cifar": networks.cifar_network, "digits": networks.digits_network}
    return makers[settings.network](classes, precision=settings.precision)


def prepare(settings: Settings, folder: Path | None = None) -> Problem:
    """Load the data and choose the rows that are removed."""
    loaded = datasets.load(settings.dataset, folder)
    assert loaded.test is not None
    network = make_network(settings)
    size = network.image[0]
    train = as_rows(loaded.train, settings.rows, size)
    model = Model(networks.NormalPrior(settings.prior_sd), networks.LogLikelihood(network), train)
    of_class = np.flatnonzero(np.asarray(train["y"]) == settings.removed_class)
    if not 0 < settings.removed <= len(of_class):
        raise InvalidOptionError(
            f"{settings.removed} rows of class {settings.removed_class} are to be removed, of {len(of_class)}.",
            "remove one at least, and no more than there are.",
        )
    chosen = np.random.default_rng(settings.seed).permutation(of_class)[: settings.removed]
    change = model.change(remove=chosen)
    requests = np.split(chosen, range(settings.request_rows, len(chosen), settings.request_rows))
    test = {name: jnp.asarray(leaf) for name, leaf in as_rows(loaded.test, settings.test_rows, size).items()}
    return Problem(settings, network, model, model.without(change), test, chosen, requests, loaded.classes)


def as_rows(images: datasets.Images, rows: int | None, size: int) -> dict[str, Shaped[np.ndarray, "rows ..."]]:
    """Images and classes as a model's data; of `rows` of them, the first of each class, as many of each."""
    some = np.arange(len(images.y))
    if rows is not None:
        classes = np.unique(images.y)
        some = np.sort(np.concatenate([np.flatnonzero(images.y == each)[: rows // len(classes)] for each in classes]))
    return {"x": datasets.resized(images.x[some], size), "y": images.y[some].astype(np.int32)}


# --- the recipe


def make_sampler(settings: Settings, n_rows: int) -> Sampler:
    """The paper's sampler, for so many rows."""
    schedule = PolynomialSteps(settings.rate / n_rows, 0.0, settings.decay)
    climb = NoiseFreePhase(settings.noise_free_steps, settings.rate / n_rows, settings.momentum)
    return sampler_of(settings.sampler, schedule, batch=settings.batch, friction=settings.friction, noise_free=climb)


def advance(model: Model, sampler: Sampler, state: State, steps: int, report: Callable[[int, int], None]) -> State:
    """So many steps of every chain; of the states in between none is kept."""
    done, most = 0, PIECE.get(jax.default_backend(), 1000)
    while done < steps:
        piece = min(most, steps - done)
        state = sample(model, sampler, state, 1, thin=piece).state
        jax.block_until_ready(state.theta)
        done += piece
        report(done, steps)
    return state


@eqx.filter_jit
def initial_weights(network: networks.Network, key: Key[Array, ""], chains: int) -> PyTree:
    """Of every chain, before anything is learnt."""
    return jax.vmap(network.init)(jax.random.split(key, chains))


def pretrain(settings: Settings, folder: Path | None, report: Report) -> PyTree:
    """Starts of all chains: networks trained on another data set, each from its own initial weights."""
    for_init, for_steps, for_last = jax.random.split(jax.random.fold_in(jax.random.key(settings.seed), 0), 3)
    fresh = initial_weights(make_network(settings), for_last, settings.chains)
    if settings.pretraining is None:
        return fresh
    loaded = datasets.load(settings.pretraining, folder, test=False)
    classes = int(loaded.train.y.max()) + 1
    network = make_network(settings, classes)
    train = as_rows(loaded.train, settings.rows, network.image[0])
    prior = networks.NormalPrior(settings.prior_sd if settings.pretraining_prior else float("inf"))
    model = Model(prior, networks.LogLikelihood(network), train)
    climb = NoiseFreePhase(settings.pretraining_steps, settings.pretraining_rate / model.n_rows, settings.momentum)
    sampler = SGLD(PolynomialSteps(1.0 / model.n_rows), batch=settings.batch, noise_free=climb)
    initial = initial_weights(network, for_init, settings.chains)
    state = start_chains(for_steps, model, sampler, initial)
    trained = advance(model, sampler, state, settings.pretraining_steps, named(report, "pre-training")).theta
    if classes == 10:
        return trained
    last = network.last_layer  # another number of classes: this layer is new
    return {**trained, last: fresh[last]}


def train(problem: Problem, model: Model, initial: PyTree, seed: int, clock: Clock) -> Arm:
    """The whole recipe on a model's rows."""
    settings = problem.settings
    sampler = make_sampler(settings, model.n_rows)
    key = jax.random.fold_in(jax.random.key(settings.seed), seed)
    state = advance(model, sampler, start_chains(key, model, sampler, initial), settings.steps, clock)
    return Arm(state, model, sampler, {"seconds": settings.steps * clock.seconds()})


# --- the methods


def fine_tune(problem: Problem, origin: Arm, clock: Clock) -> Arm:
    """The paper's baseline: at each request, steps of the sampler on the rows that are left."""
    settings, (state, model, sampler, _) = problem.settings, origin
    for done, rows in enumerate(problem.requests, 1):
        before = model.n_rows
        model = model.without(model.change(remove=rows))
        sampler = sampler.rescaled(before / model.n_rows)
        state = advance(model, sampler, state, settings.fine_tuning_steps, lambda *_: None)
        clock(done, len(problem.requests))
    return Arm(state, model, sampler, {"seconds": clock.seconds(), "requests": len(problem.requests)})


def paper(problem: Problem, origin: Arm, clock: Clock, *, shift: bool) -> Arm:
    """The paper's method along the live chain, or the sampler's steps in it alone."""
    settings = problem.settings
    erase = LiveInfluenceShift(
        order=settings.order,
        scale=settings.scale,
        batch=settings.hvp_batch,
        along="full",
        rescale_steps=True,
        shift=shift,
        diverged_above=settings.diverged_above,
    )
    state, model, sampler, _ = origin
    total, panels, refused, terms, done = len(problem.requests), [_looks(problem, state)], 0, [], 0
    gone = [0]
    for part in np.array_split(np.arange(total), PANELS - 1):
        asked = [problem.requests[at] for at in part]
        if asked:
            erased = erase(model, sampler, state, asked, report=lambda d, _: clock(done + d, total))  # noqa: B023
            assert isinstance(erased.model, Model)
            state, model, sampler = erased.state, erased.model, erased.sampler
            terms.append(erased.last_term)
            refused += int(erased.refused.sum())
            done += len(asked)
            gone.append(sum(map(len, problem.requests[:done])))
            panels.append(_looks(problem, state))
    last = np.concatenate(terms)
    notes = {
        "seconds": clock.seconds(),
        "requests": total,
        "last_term": _last_terms(last) if shift else None,
        "refused_shifts": refused,
        "panels": np.stack(panels, axis=1).tolist(),
        "panel_removed": gone,
    }
    return Arm(state, model, sampler, notes)


def _last_terms(values: Float[np.ndarray, "requests chains"]) -> dict[str, Any]:
    """Of the series' last terms over their first, those that are numbers; and how many are not."""
    finite = values[np.isfinite(values)]
    return {
        "median": float(np.median(finite)) if finite.size else None,
        "largest": float(finite.max()) if finite.size else None,
        "not_finite": int(values.size - finite.size),
    }


def continue_on(problem: Problem, origin: Arm, method: RoundsMethod) -> Arm:
    """Corrected or rewound continuation, all rows in one request."""
    settings = problem.settings
    draws = Draws(jax.tree.map(lambda leaf: leaf[:, None], origin.state.theta))
    key = jax.random.fold_in(jax.random.key(settings.seed), 99)
    change = problem.model.change(remove=problem.removed)

    def run() -> tuple[Any, float]:
        begun = time.perf_counter()
        erased = method(key, problem.model, draws, change)
        jax.block_until_ready(jax.tree.leaves(erased.draws.params))
        return erased, time.perf_counter() - begun

    run()  # compiles
    erased, seconds = run()
    told = erased.details
    steps, batch = settings.steps, settings.batch
    retraining = settings.chains * steps * batch / problem.kept.n_rows
    notes = {
        "seconds": seconds,
        "requests": 1,
        "steps": told.steps.tolist(),
        "refused_rounds": told.refused.tolist(),
        "settled": told.settled.tolist(),
        "share_of_retraining": erased.diagnostics.cost.evaluations / retraining,
    }
    if settings.case_study:
        gone = sorted({share * len(problem.removed) // (PANELS - 1) for share in range(PANELS)})
        panels = [_looks(problem, origin.state)]
        for rows in gone[1:-1]:
            part = method(key, problem.model, draws, _first(change, rows)).draws
            panels.append(_looks(problem, origin.state._replace(theta=_only(part))))
        panels.append(_looks(problem, origin.state._replace(theta=_only(erased.draws))))
        notes |= {"panels": np.stack(panels, axis=1).tolist(), "panel_removed": gone}
    return _after(problem, origin.state._replace(theta=_only(erased.draws)), notes)


def _first(change: Change, rows: int) -> Change:
    """The first rows of a change, padded to the size of all, so that nothing is compiled for them."""
    counted = jnp.arange(len(change.padded_ids)) < rows
    return Change(padded_ids=jnp.where(counted, change.padded_ids, change.padded_ids[0]), counted=counted)


def corrected_method(settings: Settings) -> CorrectedContinuation:
    """Within the budget."""
    method = CorrectedContinuation(
        steps=1,
        rate=settings.corrected_rate,
        momentum=settings.corrected_momentum,
        corrected=settings.corrected_drift,
        batch=settings.batch,
    )
    return dataclasses.replace(method, steps=steps_within(settings, method))


def rewinding_method(settings: Settings, starts: PyTree) -> Rewind:
    """Within the budget; what the noise adds to the recipe's time is left out, it is a fiftieth."""
    time = settings.noise_free_steps * settings.rate / (1 - settings.momentum)
    options = {"initial": starts, "batch": settings.batch}
    steps = steps_within(settings, Rewind(1, **options))
    return Rewind.in_time(steps, share=settings.rewound, time=time, momentum=settings.rewound_momentum, **options)


def steps_within(settings: Settings, method: RoundsMethod) -> int:
    """Whole rounds; passes over removed and control rows come out of it too, a value at a third of a gradient."""
    before, looks = method.extra_cost(settings.removed, method.control_rows)
    budget = settings.budget * settings.steps * settings.batch - before - looks / 3
    a_round = method.gradients_a_step * method.round_steps * settings.batch + method.control_rows / 3
    return max(1, int(budget / a_round)) * method.round_steps


def importance_sample(problem: Problem, origin: Arm) -> Arm:
    """True importance sampling: consecutive states of each chain, one drawn by the weights of `Reweight`."""
    settings = problem.settings
    sampled = sample(origin.model, origin.sampler, origin.state, settings.draws)
    change = problem.model.change(remove=problem.removed)
    begun = time.perf_counter()
    picked, places, k_hats, sizes = [], [], [], []
    for chain in range(settings.chains):
        own = Draws(jax.tree.map(lambda leaf: leaf[chain : chain + 1], sampled.draws.params))  # noqa: B023
        erased = Reweight()(0, problem.model, own, change)
        weights = np.asarray(erased.draws.weights, float).ravel()
        at = np.random.default_rng([settings.seed, chain]).choice(len(weights), p=weights / weights.sum())
        picked.append(jax.tree.map(lambda leaf: leaf[chain, at], sampled.draws.params))  # noqa: B023
        places.append(at + 1)
        k_hats.append(erased.diagnostics.pareto_k)
        sizes.append(float(1 / np.sum((weights / weights.sum()) ** 2)))
    theta = jax.tree.map(lambda *leaves: jnp.stack(leaves), *picked)
    notes = {"seconds": time.perf_counter() - begun, "requests": 1, "k_hat": k_hats, "ess": sizes}
    # A state that was drawn goes on from its own step: its noise is spent.
    return _after(problem, origin.state._replace(theta=theta, step=origin.state.step + jnp.asarray(places)), notes)


def _only(draws: Draws) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[:, 0], draws.params)


def _after(problem: Problem, state: State, notes: dict[str, Any]) -> Arm:
    """Chains that go on sampling the kept rows; what their sampler carries beside theta is made anew."""
    sampler = make_sampler(problem.settings, problem.kept.n_rows)
    return Arm(jax.vmap(sampler.renew)(state), problem.kept, sampler, notes)


def _looks(problem: Problem, state: State) -> Float[np.ndarray, "images classes"]:
    """Mean class probabilities of the case study's images, over chains."""
    if not problem.settings.case_study:
        return np.zeros((0, len(problem.classes)))
    images = problem.test["x"][jnp.asarray(problem.settings.case_study)]
    return np.asarray(probabilities(problem.network, state.theta, images)).mean(axis=0)


@eqx.filter_jit
def probabilities(
    network: networks.Network, thetas: PyTree, x: UInt8[Array, "rows height width channels"]
) -> Float[Array, "chains rows classes"]:
    """Class probabilities of every chain, in blocks of rows."""
    network = network.precisely()
    size = min(len(x), 1000)
    blocks = jnp.pad(x, ((0, -len(x) % size), (0, 0), (0, 0), (0, 0))).reshape(-1, size, *x.shape[1:])
    each = jax.vmap(lambda theta, block: jax.nn.softmax(network.logits(theta, block)), (0, None))
    with jax.default_matmul_precision("float32"):
        out = jax.lax.map(lambda block: each(thetas, block), blocks)  # (blocks, chains, size, classes)
    return jnp.moveaxis(out, 1, 0).reshape(out.shape[1], -1, out.shape[-1])[:, : len(x)]


# --- a block


class Block(NamedTuple):
    """Everything a block ran, in memory."""

    problem: Problem
    arms: dict[str, Arm]
    """`retrain`, further retrainings as `retrain 2` …, and the methods."""
    failed: dict[str, str]
    """Methods that gave no network at all, and why."""


def run(
    settings: Settings,
    *,
    data: Path | None = None,
    stages: Stages | None = None,
    methods: Sequence[str] = METHODS,
    report: Report = lambda *_: None,
) -> Block:
    """Run one block; finished stages are read from where they were kept."""
    unknown = sorted(set(methods) - set(METHODS))
    if unknown:
        raise InvalidOptionError(f"there is no method {unknown[0]!r}.", f"use some of: {', '.join(METHODS)}.")
    problem = prepare(settings, data)
    kept_stages = stages or Stages(None)
    initial = kept_stages.tree(
        "pre-trained",
        depends_on(settings, "pre-trained"),
        lambda: pretrain(settings, data, report),
        lambda: initial_weights(problem.network, jax.random.key(0), settings.chains),
    )

    def stage(name: str, group: dict[str, Any], model: Model, sampler: Sampler, make: Callable[[], Arm]) -> Arm:
        def made() -> Stage:
            arm = make()
            return Stage(arm.state, {**arm.notes, "step_scale": _step_scale(arm.sampler)})

        found = kept_stages.state(name, group, made, lambda: start_chains(0, model, sampler, initial))
        factor = found.notes["step_scale"] / _step_scale(sampler)
        return Arm(found.state, model, sampler.rescaled(factor), found.notes)

    full, kept = problem.model, problem.kept
    of_all, of_kept = (make_sampler(settings, model.n_rows) for model in (full, kept))

    def training(model: Model, seed: int, title: str) -> Arm:
        return train(problem, model, initial, seed, Clock(named(report, title)))

    origin = stage("origin", depends_on(settings, "origin"), full, of_all, lambda: training(full, 1, "training"))
    arms = {"origin": origin}
    for at in range(settings.retrainings if "floor" in methods else 1):
        name = _retraining(at)
        after = depends_on(settings, "retrain")
        arms[name] = stage(name, after, kept, of_kept, lambda: training(kept, 2 + at, name))  # noqa: B023
    makers: dict[str, Callable[[], Arm]] = {
        "fine-tuning": lambda: fine_tune(problem, origin, Clock(named(report, "fine-tuning"))),
        "paper": lambda: paper(problem, origin, Clock(named(report, "the paper's method")), shift=True),
        "steps alone": lambda: paper(problem, origin, Clock(named(report, "its steps alone")), shift=False),
        "importance sampling": lambda: importance_sample(problem, origin),
        "corrected": lambda: continue_on(problem, origin, corrected_method(settings)),
        "rewound": lambda: continue_on(problem, origin, rewinding_method(settings, initial)),
    }
    failed = {}
    for name, make in makers.items():
        if name in methods:
            try:
                arms[name] = stage(name, depends_on(settings, name), kept, of_kept, make)
            except NonFiniteResultError as error:
                failed[name] = error.problem
    return Block(problem, arms, failed)


class Job(NamedTuple):
    """One stage of a block, for a list of what will run."""

    stage: str
    depends_on: dict[str, Any]
    """The settings that it depends on: stages that share them are run once."""
    gradients: float
    """Of a batch, for every chain; a product with the Hessian counts two and a half."""


def jobs(settings: Settings) -> list[Job]:
    """What a block runs, with what it costs."""
    after = functools.partial(depends_on, settings)
    requests = -(-settings.removed // settings.request_rows)
    steps, series = settings.steps, 1 + 2.5
    listed = [
        Job(
            "pre-trained",
            depends_on(settings, "pre-trained"),
            settings.pretraining_steps if settings.pretraining else 0,
        ),
        Job("origin", depends_on(settings, "origin"), steps),
        *(Job(_retraining(at), after("retrain"), steps) for at in range(settings.retrainings)),
        Job("fine-tuning", after("fine-tuning"), requests * settings.fine_tuning_steps),
        Job("paper", after("paper"), requests * (1 + settings.order * series)),
        Job("steps alone", after("steps alone"), requests * (1 + settings.order)),
        Job(
            "importance sampling",
            after("importance sampling"),
            settings.draws * (1 + settings.removed / settings.batch),
        ),
        Job("corrected", after("corrected"), settings.budget * steps),
        Job("rewound", after("rewound"), settings.budget * steps),
    ]
    return [job for job in listed if job.gradients > 0]


def seconds_a_gradient(settings: Settings) -> float:
    """Measured here and now: a batch's gradient for all chains side by side, on random images."""
    network = make_network(settings)
    rng = np.random.default_rng(0)
    shape = (2 * settings.batch, *network.image)
    images = {"x": rng.integers(0, 256, shape, dtype=np.uint8), "y": rng.integers(0, 10, shape[0]).astype(np.int32)}
    model = Model(networks.NormalPrior(settings.prior_sd), networks.LogLikelihood(network), images)
    sampler = make_sampler(settings, model.n_rows)
    initial = initial_weights(network, jax.random.key(0), settings.chains)
    state = start_chains(0, model, sampler, initial)
    clock = Clock(lambda *_: None)
    for done in (10, 20, 30):
        state = sample(model, sampler, state, 1, thin=10).state
        jax.block_until_ready(state.theta)
        clock(done, 30)
    return clock.seconds()


def case_study_images(problem: Problem) -> UInt8[np.ndarray, "images height width channels"]:
    """The test images whose probabilities are followed."""
    return np.asarray(problem.test["x"])[list(problem.settings.case_study)]


def _retraining(at: int) -> str:
    return "retrain" if at == 0 else f"retrain {at + 1}"


def _step_scale(sampler: Sampler) -> float:
    assert isinstance(sampler.schedule, PolynomialSteps)
    return float(sampler.schedule.a)


PRETRAINED = ("dataset", "seed", "chains", "rows", "network", "precision", "batch", "momentum", "pretraining*")
TRAINED = (*PRETRAINED, "prior_sd", "sampler", "steps", "noise_free_steps", "rate", "decay", "friction")
RETRAINED = (*TRAINED, "removed", "removed_class")
LIVE = (*RETRAINED, "request_rows", "order", "scale", "hvp_batch", "diverged_above", "case_study", "test_rows")
DEPENDS_ON = {
    "pre-trained": PRETRAINED,
    "origin": TRAINED,
    "retrain": RETRAINED,
    "fine-tuning": (*RETRAINED, "request_rows", "fine_tuning_steps"),
    "paper": LIVE,
    "steps alone": LIVE,
    "importance sampling": (*RETRAINED, "draws"),
    "corrected": (*RETRAINED, "budget", "corrected*", "case_study", "test_rows"),
    "rewound": (*RETRAINED, "budget", "rewound*", "case_study", "test_rows"),
}
"""The settings that each stage's networks depend on; those whose names begin so, where there is a star."""


def depends_on(settings: Settings, stage: str) -> dict[str, Any]:
    """The settings that a stage depends on: others may change, and the finished stage still holds."""
    patterns = DEPENDS_ON[stage] + (("prior_sd",) if settings.pretraining_prior else ())
    everything = dataclasses.asdict(settings)
    return {name: value for name, value in everything.items() if any(fnmatch(name, each) for each in patterns)}
