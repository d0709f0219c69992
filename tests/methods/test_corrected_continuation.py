"""Chains that have not converged, continued and rewound, against closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest

import posterase as pe
from posterase.errors import DrawsShapeError, InvalidOptionError
from posterase.methods.unconverged.corrected_continuation import CorrectedContinuation
from posterase.methods.unconverged.rewind import Rewind
from tests.oracles import LinearRegression

KNOWN = LinearRegression.make(rows=60, d=3)
ROWS = [int(row) for row in np.argsort(-KNOWN.X[:, 2])[:8]]  # no random sample: the others would not do without them
KEPT = np.setdiff1d(np.arange(60), ROWS)
STARTS = np.array([[[3.0, -2.0, 1.0]], [[-1.0, 4.0, 0.5]]])
"""Two chains, far from the mode: nothing here is a draw of a posterior."""


LEFT = len(KEPT) / 60
SHORT = CorrectedContinuation(steps=50, batch=16, round_steps=25, control_rows=40, tolerance=None)


def push(start, share=1.0):
    """∇kept − share · (N′/N) ∇full at a point: what moves a chain that stands there."""
    X, y = KNOWN.X[ROWS], KNOWN.y[ROWS]
    on_removed = X.T @ (y - X @ start) / KNOWN.noise**2
    on_kept = KNOWN.precision(KEPT) @ (KNOWN.mean(KEPT) - start)
    return on_kept - share * LEFT * (on_kept + on_removed)


def top(start, share=1.0):
    """Where it is zero."""
    return start + np.linalg.solve(KNOWN.precision(KEPT), push(start, share))


def erased(method, starts=STARTS, key=0):
    model = KNOWN.model()
    return method(key, model, pe.Draws({"beta": starts}), model.change(remove=ROWS))


@pytest.mark.parametrize("share", [1.0, pytest.param(0.6, marks=pytest.mark.slow), 0.0])
def test_it_ends_where_only_the_removal_pushes(share, x64):
    """At the top of kept(θ) − share · (N′/N) ∇full(θ₀)·θ, H of the kept rows; with nothing taken off, the kept mode."""
    result = erased(CorrectedContinuation(steps=3000, rate=0.02, batch=32, corrected=share, tolerance=None))
    for start, end in zip(STARTS[:, 0], np.asarray(result.draws.params["beta"])[:, 0], strict=True):
        way = np.linalg.norm(top(start, share) - start)
        np.testing.assert_allclose(end, top(start, share), atol=0.03 * way)
        for other in {1.0, 0.6, 0.0} - {share}:
            assert np.linalg.norm(end - top(start, other)) > 0.1 * way
        assert np.linalg.norm(end - start) > 0.5 * way
    assert result.diagnostics.flaw.cause == "not measured"


def test_it_follows_a_recipe_that_was_cut_short(x64):
    """Two flows of one recipe, stopped early, with and without the rows: the corrected one goes from end to end.

    Rates are over the number of rows, as the recipes' are. Without the factor N′/N, or without any correction, the same
    time leads elsewhere, and not moving at all is no answer either.
    """
    known = LinearRegression.make(rows=400, d=3, seed=3)
    rows = np.argsort(-known.X[:, 0])[:60]  # no random sample: their change moves the mode
    kept = np.setdiff1d(np.arange(400), rows)
    begin = np.array([4.0, -4.0, 4.0])

    def flow(some, time):
        precision, mode = known.precision(some) / len(some), known.mean(some)
        values, vectors = np.linalg.eigh(precision)
        return mode + vectors @ (np.exp(-values * time) * (vectors.T @ (begin - mode)))

    time, steps, rate = 0.3, 1000, 0.0006
    original, refit = flow(np.arange(400), time), flow(kept, time)
    values, vectors = np.linalg.eigh(known.precision(kept))
    on_kept, on_all = (known.precision(some) @ (known.mean(some) - original) for some in (kept, np.arange(400)))

    def frozen(share):
        """The flow N′ θ̇ = ∇kept(θ) − share · ∇full(θ₀), after the same time."""
        gone = (1 - np.exp(-values * time / len(kept))) / values
        return original + vectors @ (gone * (vectors.T @ (on_kept - share * on_all)))

    model, draws = known.model(), pe.Draws({"beta": original[None, None]})
    method = CorrectedContinuation(steps=steps, rate=rate, momentum=0.0, batch=340, tolerance=None)
    end = np.asarray(method(0, model, draws, model.change(remove=rows)).draws.params["beta"])[0, 0]
    untouched = np.linalg.norm(original - refit)
    np.testing.assert_allclose(end, frozen(len(kept) / 400), atol=0.05 * untouched)
    right, unscaled, none = (np.linalg.norm(frozen(share) - refit) for share in (len(kept) / 400, 1.0, 0.0))
    assert right < 0.5 * untouched
    assert right < 0.5 * min(unscaled, none)


def test_a_short_time_moves_it_along_the_push(x64):
    """Stopped early it has gone T times the push: directions of small curvature go no farther than the recipe goes."""
    result = erased(
        CorrectedContinuation(steps=4000, rate=1e-7, momentum=0.0, batch=50, round_steps=400, tolerance=None)
    )
    time = 1e-7 / len(KEPT) * np.sum(0.5 * (1 + np.cos(np.pi * np.arange(4000) / 4000)))
    for start, end in zip(STARTS[:, 0], np.asarray(result.draws.params["beta"])[:, 0], strict=True):
        moved, expected = (end - start) / time, push(start)
        np.testing.assert_allclose(moved, expected, atol=0.05 * np.linalg.norm(expected))


@pytest.mark.slow
def test_it_stops_by_itself(x64):
    impatient = erased(CorrectedContinuation(steps=20_000, rate=0.02, batch=32, tolerance=0.01)).details
    assert impatient.settled.all()
    assert (impatient.steps < 5000).all()
    assert (impatient.rise > 0).all()
    spent = erased(CorrectedContinuation(steps=100, rate=0.02, batch=32, tolerance=None)).details
    assert not spent.settled.any()
    assert (spent.steps + 25 * spent.refused == 100).all()


def test_steps_that_lead_nowhere_are_refused_and_never_returned():
    """A step size beyond all reason: every round is taken back, the chain stands where it stood, and it is said."""
    wild = erased(CorrectedContinuation(steps=100, rate=1e4, batch=32))
    np.testing.assert_array_equal(wild.draws.params["beta"], STARTS.astype(np.float32))
    assert (wild.details.refused == 4).all()
    assert wild.diagnostics.flaw.cause == "stuck"
    assert "smaller rate" in wild.diagnostics.flaw.advice


@pytest.mark.slow
def test_a_rate_that_is_too_large_is_halved_until_it_works(x64):
    result = erased(CorrectedContinuation(steps=3000, rate=1.0, batch=32, tolerance=None))
    assert (result.details.refused > 0).all()
    for start, end in zip(STARTS[:, 0], np.asarray(result.draws.params["beta"])[:, 0], strict=True):
        np.testing.assert_allclose(end, top(start), atol=0.1 * np.linalg.norm(top(start) - start))


@pytest.mark.slow
@pytest.mark.slow
def test_chains_do_not_know_of_each_other_and_keys_decide():
    method = SHORT
    both, again, swapped = erased(method), erased(method), erased(method, STARTS[[0, 0]])
    np.testing.assert_array_equal(both.draws.params["beta"], again.draws.params["beta"])
    np.testing.assert_array_equal(both.draws.params["beta"][0], swapped.draws.params["beta"][0])
    other = erased(method, key=1)
    assert not np.array_equal(both.draws.params["beta"], other.draws.params["beta"])


def test_a_loss_below_zero_is_a_loss_too():
    """Log densities above zero: what counts is how far the loss has risen, not what many times."""
    rng = np.random.default_rng(0)
    y = rng.normal(scale=0.05, size=80)
    model = pe.Model(
        lambda p: -0.5 * p["mu"] ** 2,
        lambda p, data: -0.5 * ((data["y"] - p["mu"]) / 0.05) ** 2 - jnp.log(0.05),
        {"y": y},
    )
    draws = pe.Draws({"mu": np.full((1, 1), y.mean())})
    erased = CorrectedContinuation(steps=50, rate=1e-4, batch=16)(
        0, model, draws, model.change(remove=[int(y.argmax())])
    )
    assert erased.details.loss[0, 0] < 0
    assert erased.details.refused.sum() == 0


@pytest.mark.slow
def test_control_rows_are_no_more_than_there_are():
    cost = erased(CorrectedContinuation(steps=25, batch=16, control_rows=512, tolerance=None)).diagnostics.cost
    assert cost.densities == pytest.approx(2 * 2)  # two chains, looked at before and after, all kept rows


@pytest.mark.slow
def test_parameters_of_two_precisions_keep_them(x64):
    """Then chains do not run as vectors; they go where those go."""
    known = LinearRegression.make(rows=60, d=2)
    model = pe.Model(
        lambda p: -0.125 * (p["a"] ** 2 + p["b"].astype(p["a"].dtype) ** 2),
        lambda p, data: -0.5 * ((data["y"] - data["X"][:, 0] * p["a"] - data["X"][:, 1] * p["b"]) / 0.8) ** 2,
        {"X": known.X, "y": known.y},
    )
    starts = np.ones((2, 1))
    mixed = pe.Draws({"a": jnp.asarray(starts, jnp.float64), "b": jnp.asarray(starts, jnp.float32)})
    same = pe.Draws({"a": jnp.asarray(starts, jnp.float64), "b": jnp.asarray(starts, jnp.float64)})
    ends = [SHORT(0, model, draws, model.change(remove=ROWS)).draws.params for draws in (mixed, same)]
    assert ends[0]["b"].dtype == jnp.float32
    for name in ("a", "b"):
        np.testing.assert_allclose(ends[0][name], ends[1][name], rtol=1e-4)


def test_its_cost_is_counted():
    """Two gradients of a batch a step, one pass over the removed rows, and looks at the control rows."""
    cost = erased(SHORT).diagnostics.cost
    chains, rounds = 2, 2
    gradients = chains * (rounds * 25 * 2 * 16 + len(ROWS) + 40) / len(KEPT)
    assert cost.gradients == pytest.approx(gradients)
    assert cost.densities == pytest.approx(chains * (rounds + 1) * 40 / len(KEPT))
    assert cost.sequential == 50


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 0},
        {"rate": 0.0},
        {"momentum": 1.0},
        {"tolerance": -1.0},
        {"loss_limit": 0.0},
        {"batch": 0},
        {"corrected": 1.5},
    ],
    ids=str,
)
def test_options_are_checked(options):
    with pytest.raises(InvalidOptionError):
        CorrectedContinuation(**{"steps": 10, **options})


def test_it_needs_rows_that_factorise():
    masked = pe.MaskedModel(lambda p, data, present: -0.5 * jnp.sum(present * (data - p) ** 2), np.arange(9.0))
    with pytest.raises(InvalidOptionError):
        CorrectedContinuation(steps=10, batch=2)(0, masked, pe.Draws(np.zeros((1, 2))), masked.change(remove=[0]))


# --- Rewind


BEGUN = {"beta": np.array([[5.0, -5.0, 5.0], [-4.0, 6.0, -2.0]])}


def flow(some, begin, time, known=KNOWN):
    """Of the recipe, its rates over the number of rows: θ̇ = ∇log p(θ, some) / len(some)."""
    values, vectors = np.linalg.eigh(known.precision(some) / len(some))
    mode = known.mean(some)
    return mode + vectors @ (np.exp(-values * time) * (vectors.T @ (begin - mode)))


@pytest.mark.parametrize("share", [1.0, pytest.param(0.4, marks=pytest.mark.slow)])
def test_rewind_goes_back_by_its_share_and_writes_for_as_long(share, x64):
    """A flow of the kept rows from the point that was rewound to, for the same share of the recipe's time; all of the
    way back, that is the refit itself."""
    time = 0.2
    ends = np.stack([flow(np.arange(60), begin, time) for begin in BEGUN["beta"]])[:, None]
    method = Rewind.in_time(1000, initial=BEGUN, share=share, time=time, momentum=0.5, batch=len(KEPT), control_rows=40)
    found = np.asarray(erased(method, ends).draws.params["beta"])[:, 0]
    for begin, end, got in zip(BEGUN["beta"], ends[:, 0], found, strict=True):
        refit = flow(KEPT, begin, time)
        expected = flow(KEPT, end + share * (begin - end), share * time)
        moved = np.linalg.norm(end - refit)
        np.testing.assert_allclose(got, expected, atol=0.1 * moved)
        if share == 1:
            np.testing.assert_allclose(got, refit, atol=0.1 * moved)


def test_rewind_takes_back_what_kept_rows_do_not_see(x64):
    """A coefficient that only removed rows have: the kept rows are flat there. Rewound by a half, half of what they
    wrote is gone; going on without it, corrected or not, leaves it all."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=60), np.zeros(60)])
    X[ROWS, 1] = 1.0
    model = pe.Model(
        lambda p: 0.0 * p["beta"].sum(),
        lambda p, data: -0.5 * (data["y"] - data["X"] @ p["beta"]) ** 2,
        {"X": X, "y": X @ np.array([1.0, 2.0])},
    )
    starts, ends = np.zeros((1, 2)), np.array([[[0.8, 1.0]]])
    draws, change = pe.Draws({"beta": ends}), model.change(remove=ROWS)
    method = Rewind(50, initial={"beta": starts}, share=0.5, batch=16, control_rows=40)
    assert method(0, model, draws, change).draws.params["beta"][0, 0, 1] == 0.5
    on = CorrectedContinuation(50, batch=16, control_rows=40, corrected=0.0)(0, model, draws, change)
    assert on.draws.params["beta"][0, 0, 1] == 1.0


@pytest.mark.parametrize("options", [{}, {"round_steps": 60}], ids=str)
@pytest.mark.parametrize("steps", [10, 26, 100])
def test_rewind_writes_for_as_long_as_it_rewound_in_whole_rounds(steps, options):
    method = Rewind.in_time(steps, initial=BEGUN, share=0.4, time=7.0, **options)
    assert method.round_steps == options.get("round_steps", 25)
    run = -(-steps // method.round_steps) * method.round_steps
    assert method.rate * run / 2 / (1 - method.momentum) == pytest.approx(0.4 * 7.0)
    with pytest.raises(InvalidOptionError):
        Rewind.in_time(0, initial=BEGUN, share=0.4, time=7.0)


def test_starts_take_the_precision_of_the_draws(x64):
    starts = {"beta": BEGUN["beta"].astype(np.float32)}
    result = erased(Rewind(25, initial=starts, share=0.2, batch=16, control_rows=40))
    assert result.draws.params["beta"].dtype == np.float64


def test_rewind_counts_one_gradient_a_step_and_sees_no_removed_row():
    result = erased(Rewind(50, initial=BEGUN, share=0.2, batch=16, control_rows=40))
    assert result.diagnostics.cost.gradients == pytest.approx(2 * 50 * 16 / len(KEPT))
    assert result.diagnostics.cost.densities == pytest.approx(2 * (2 + 2) * 40 / len(KEPT))
    assert result.diagnostics.flaw.cause == "not measured"


def test_a_budget_that_does_not_bring_the_kept_rows_back_is_told():
    short = erased(
        Rewind(25, initial=BEGUN, share=1.0, rate=1e-6, batch=16, control_rows=40),
        KNOWN.mean(KEPT)[None, None].repeat(2, 0),
    )
    assert short.diagnostics.flaw.cause == "stuck"
    assert "more steps" in short.diagnostics.flaw.advice


@pytest.mark.parametrize(
    ("starts", "error"),
    [
        ({"beta": np.zeros((3, 3))}, DrawsShapeError),
        ({"beta": np.zeros((2, 4))}, DrawsShapeError),
        ({"gamma": np.zeros((2, 3))}, DrawsShapeError),
        ({"beta": np.zeros(())}, DrawsShapeError),
    ],
    ids=["chains", "shape", "names", "no chains"],
)
def test_starts_are_checked(starts, error):
    with pytest.raises(error):
        erased(Rewind(25, initial=starts, batch=16))


@pytest.mark.parametrize("options", [{"share": 1.5}, {"rate": 0.0}, {"steps": 0}], ids=str)
def test_options_of_rewind_are_checked(options):
    with pytest.raises(InvalidOptionError):
        Rewind(**{"steps": 10, "initial": BEGUN, **options})
    with pytest.raises(InvalidOptionError):
        Rewind.in_time(10, initial=BEGUN, share=0.0, time=1.0)
