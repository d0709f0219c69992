"""Corrected continuation of chains that have not converged, against closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest

import posterase as pe
from posterase.erasers.unfinished import ContinueUnfinished
from posterase.errors import BatchError, InvalidOptionError
from tests.oracles import LinearRegression

KNOWN = LinearRegression.make(rows=60, d=3)
ROWS = [0, 7, 21, 33, 50]
KEPT = np.setdiff1d(np.arange(60), ROWS)
STARTS = np.array([[[3.0, -2.0, 1.0]], [[-1.0, 4.0, 0.5]]])
"""Two chains, far from the mode: nothing here is a draw of a posterior."""


def pushed(theta):
    """∇ removed: what the removed rows pull at."""
    X, y = KNOWN.X[ROWS], KNOWN.y[ROWS]
    return X.T @ (y - X @ theta) / KNOWN.noise**2


def erased(eraser, starts=STARTS, key=0):
    model = KNOWN.model()
    return eraser(key, model, pe.Draws({"beta": starts}), model.removal(ROWS))


def test_it_ends_where_only_the_removal_pushes(x64):
    """The top of kept(θ) − ∇full(θ₀)·θ is θ₀ − H⁻¹∇removed(θ₀), H of the kept rows; the kept mode is elsewhere."""
    result = erased(ContinueUnfinished(steps=3000, rate=0.02, batch=32, tolerance=None))
    for start, end in zip(STARTS[:, 0], np.asarray(result.draws.params["beta"])[:, 0], strict=True):
        shift = -np.linalg.solve(KNOWN.precision(KEPT), pushed(start))
        np.testing.assert_allclose(end, start + shift, atol=0.03 * np.linalg.norm(shift))
        twice, untouched, mode = start + 2 * shift, start, KNOWN.mean(KEPT)
        for broken in (twice, untouched, mode):
            assert np.linalg.norm(end - broken) > 0.5 * np.linalg.norm(shift)
    assert "not measured" in result.result.reason
    assert result.evidence.flaw


def test_a_short_time_moves_it_along_the_push(x64):
    """Stopped early it has gone −T ∇removed(θ₀): directions of small curvature go no farther than the recipe goes."""
    result = erased(ContinueUnfinished(steps=10, rate=1e-5, momentum=0.0, batch=8, every=10, tolerance=None))
    time = 1e-5 / len(KEPT) * np.sum(0.5 * (1 + np.cos(np.pi * np.arange(10) / 10)))
    for start, end in zip(STARTS[:, 0], np.asarray(result.draws.params["beta"])[:, 0], strict=True):
        np.testing.assert_allclose((end - start) / time, -pushed(start), rtol=1e-3)


def test_what_is_left_of_the_drift_trains_on(x64):
    """With a share c taken off it climbs to θ₀ + H⁻¹(∇kept(θ₀) − c ∇full(θ₀)); with none, to the kept mode."""
    for share in (0.0, 0.6):
        result = erased(ContinueUnfinished(steps=4000, rate=0.02, batch=55, corrected=share, tolerance=None))
        for start, end in zip(STARTS[:, 0], np.asarray(result.draws.params["beta"])[:, 0], strict=True):
            on_kept = KNOWN.precision(KEPT) @ (KNOWN.mean(KEPT) - start)
            top = start + np.linalg.solve(KNOWN.precision(KEPT), on_kept - share * (on_kept + pushed(start)))
            np.testing.assert_allclose(end, top, atol=0.03 * np.linalg.norm(top - start))


def test_it_stops_by_itself(x64):
    impatient = erased(ContinueUnfinished(steps=20_000, rate=0.02, batch=32, tolerance=0.01)).diagnostics
    assert impatient.settled.all()
    assert (impatient.steps < 5000).all()
    assert (impatient.rise > 0).all()
    spent = erased(ContinueUnfinished(steps=100, rate=0.02, batch=32, tolerance=None)).diagnostics
    assert not spent.settled.any()
    assert (spent.steps == 100).all()


def test_steps_that_lead_nowhere_are_refused_and_never_returned():
    """A step size beyond all reason: every round is taken back, the chain stands where it stood, and it is said."""
    wild = erased(ContinueUnfinished(steps=100, rate=1e4, batch=32))
    np.testing.assert_array_equal(wild.draws.params["beta"], STARTS.astype(np.float32))
    assert (wild.diagnostics.refused == 4).all()
    assert not wild.result.passed
    assert "refused" in wild.result.reason
    assert "smaller rate" in wild.result.advice


def test_a_rate_that_is_too_large_is_halved_until_it_works(x64):
    result = erased(ContinueUnfinished(steps=3000, rate=1.0, batch=32, tolerance=None))
    assert (result.diagnostics.refused > 0).all()
    for start, end in zip(STARTS[:, 0], np.asarray(result.draws.params["beta"])[:, 0], strict=True):
        shift = -np.linalg.solve(KNOWN.precision(KEPT), pushed(start))
        np.testing.assert_allclose(end, start + shift, atol=0.1 * np.linalg.norm(shift))


def test_chains_do_not_know_of_each_other_and_keys_decide():
    eraser = ContinueUnfinished(steps=50, batch=16)
    both, again, first = erased(eraser), erased(eraser), erased(eraser, STARTS[:1])
    np.testing.assert_array_equal(both.draws.params["beta"], again.draws.params["beta"])
    np.testing.assert_allclose(both.draws.params["beta"][:1], first.draws.params["beta"], rtol=1e-5)
    other = erased(eraser, key=1)
    assert not np.array_equal(both.draws.params["beta"], other.draws.params["beta"])


def test_its_cost_is_counted():
    """Two gradients of a batch a step, one pass over the removed rows, and looks at the control rows."""
    cost = erased(ContinueUnfinished(steps=50, batch=16, every=25, control=40, tolerance=None)).evidence.cost
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
        {"loss_limit": 1.0},
        {"batch": 0},
        {"corrected": 1.5},
    ],
    ids=str,
)
def test_options_are_checked(options):
    with pytest.raises(InvalidOptionError):
        ContinueUnfinished(**{"steps": 10, **options})


def test_it_needs_rows_that_factorise():
    masked = pe.MaskedModel(lambda p, data, present: -0.5 * jnp.sum(present * (data - p) ** 2), np.arange(9.0))
    with pytest.raises(BatchError):
        ContinueUnfinished(steps=10, batch=2)(0, masked, pe.Draws(np.zeros((1, 2))), masked.removal([0]))
