"""One compilation a model, not one a request: counted by how often the user's functions are traced."""

import jax
import numpy as np
import pytest

import posterase as pe

METHODS = {
    "Reweight": lambda n: pe.Reweight(),
    "InfluenceShift": lambda n: pe.InfluenceShift(),
    "InfluenceShift, CG": lambda n: pe.InfluenceShift(solver=pe.CG(rtol=1e-4)),
    "InfluenceShift, Neumann with a scale that follows the rows": lambda n: pe.InfluenceShift(
        hessian="full", solver=pe.Neumann(order=8, scale=1 / n)
    ),
    "Transport": lambda n: pe.Transport(refinements=0, split=False),
    "Rejuvenate": lambda n: pe.Rejuvenate(start=pe.Transport(refinements=0, split=False)),
}


def counting_model():
    """Counts how often the likelihood is traced."""
    traces = []

    def log_likelihood(p, data):
        traces.append(data["y"].shape)
        return -0.5 * (data["y"] - p["mu"]) ** 2

    y = np.random.default_rng(0).normal(size=200)
    return pe.Model(lambda p: -0.5 * p["mu"] ** 2, log_likelihood, {"y": y}), traces


def compilations(run) -> int:
    """How many programs XLA is given to compile."""
    count = [0]

    def listener(event: str, duration: float, **_: object) -> None:
        count[0] += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        run()
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    return count[0]


QUICK_OR_SLOW = [
    pytest.param(e, id=name, marks=[pytest.mark.slow] if name == "Rejuvenate" else []) for name, e in METHODS.items()
]


@pytest.mark.parametrize("method", QUICK_OR_SLOW)
def test_requests_of_one_bucket_share_a_compilation(method):
    model, traces = counting_model()
    draws = pe.Draws({"mu": np.random.default_rng(1).normal(size=(2, 100))})
    method(200)(0, model, draws, model.change(remove=range(17)))
    before = len(traces)

    def more_requests() -> None:
        for size in (18, 25, 32):
            method(200 - size)(0, model, draws, model.change(remove=range(size)))

    assert compilations(more_requests) == 0
    assert len(traces) == before


@pytest.mark.parametrize("method", QUICK_OR_SLOW)
def test_the_next_request_on_the_kept_model_shares_it_too(method):
    model, _ = counting_model()
    draws = pe.Draws({"mu": np.random.default_rng(1).normal(size=(2, 100))})
    first = model.change(remove=range(20))
    method(200)(0, model, draws, first)
    far = np.argsort(np.asarray(model.data["y"]))[-20:]  # Transport looks at the curvature once more where it moves far
    method(200)(0, model, draws, model.change(remove=far))
    kept = model.without(first)

    def next_request() -> None:
        method(180)(0, kept, draws, kept.change(remove=range(50, 80)))

    assert compilations(next_request) == 0


def test_another_bucket_compiles_and_the_counter_sees_it():
    """The counter's own twin: were it blind, the tests above could not fail."""
    model, _ = counting_model()
    draws = pe.Draws({"mu": np.random.default_rng(1).normal(size=(2, 100))})
    pe.Reweight()(0, model, draws, model.change(remove=range(17)))
    assert compilations(lambda: pe.Reweight()(0, model, draws, model.change(remove=range(33)))) > 0


@pytest.mark.parametrize(("rows", "bucket"), [(1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (100, 128)])
def test_buckets(rows, bucket):
    model, _ = counting_model()
    change = model.change(remove=range(rows))
    assert change.padded_ids.shape == (bucket,)
    assert change.n_rows == rows
