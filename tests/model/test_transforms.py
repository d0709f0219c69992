"""Transforms: round trips, Jacobians against automatic differentiation, supports."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays

import posterase as pe
from posterase.errors import InvalidOptionError

SCALAR = {
    "real": pe.real,
    "positive": pe.positive,
    "greater_than": pe.greater_than(-3.5),
    "less_than": pe.less_than(2.0),
    "unit_interval": pe.unit_interval,
    "interval": pe.interval(-1.0, 4.0),
}
JOINT = {"ordered": pe.ordered, "simplex": pe.simplex}
VECTORS = arrays(np.float64, 3, elements=st.floats(-4, 4))


@pytest.mark.parametrize("transform", [*SCALAR.values(), *JOINT.values()], ids=[*SCALAR, *JOINT])
@given(u=VECTORS)
@settings(max_examples=25, deadline=None)
def test_round_trip_support_and_jacobian(transform, u):
    with jax.enable_x64(True):
        x = transform.forward(jnp.asarray(u))
        assert np.all(transform.contains(np.asarray(x)[None, None]))
        np.testing.assert_allclose(transform.inverse(x), u, atol=1e-9)
        # A simplex has one element less than it shows: its Jacobian is that of the free ones.
        jacobian = jax.jacfwd(transform.forward)(jnp.asarray(u))[: len(u)]
        _, expected = np.linalg.slogdet(np.asarray(jacobian))
        np.testing.assert_allclose(transform.log_det_jacobian(jnp.asarray(u)), expected, atol=1e-9)


@pytest.mark.parametrize("transform", SCALAR.values(), ids=SCALAR)
def test_scalars_and_batches(transform, x64):
    u = jnp.array([[-1.0, 0.5], [2.0, -0.3]])
    one_by_one = sum(transform.log_det_jacobian(value) for value in u.ravel())
    np.testing.assert_allclose(transform.log_det_jacobian(u), one_by_one, rtol=1e-12)
    np.testing.assert_allclose(transform.forward(u)[0, 1], transform.forward(u[0, 1]))


@pytest.mark.parametrize("transform", JOINT.values(), ids=JOINT)
def test_joint_transforms_on_batches(transform, x64):
    u = jax.random.normal(jax.random.key(0), (4, 3))
    x = transform.forward(u)
    np.testing.assert_allclose(x[2], transform.forward(u[2]), rtol=1e-12)
    np.testing.assert_allclose(transform.inverse(x), u, atol=1e-12)
    one_by_one = sum(transform.log_det_jacobian(row) for row in u)
    np.testing.assert_allclose(transform.log_det_jacobian(u), one_by_one, rtol=1e-12)


def test_middle_of_the_simplex_is_zero():
    np.testing.assert_allclose(pe.simplex.forward(jnp.zeros(3)), np.full(4, 0.25), rtol=1e-6)


@pytest.mark.parametrize(
    ("transform", "outside"),
    [
        (pe.positive, 0.0),
        (pe.unit_interval, 1.0),
        (pe.interval(-1.0, 4.0), 4.5),
        (pe.less_than(2.0), 2.0),
        (pe.ordered, [1.0, 1.0]),
        (pe.simplex, [0.5, 0.6]),
        (pe.simplex, [1.1, -0.1]),
        (pe.real, np.nan),
    ],
)
def test_outside_the_support(transform, outside):
    assert not np.all(transform.contains(np.asarray(outside)[None, None]))


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, 1.0), (0.0, np.inf), (np.nan, 1.0)])
def test_impossible_bounds(bounds):
    with pytest.raises(InvalidOptionError, match="bounds"):
        pe.interval(*bounds)
