"""Checks of a model: its transforms, the shapes that its functions return, and that rows add up to the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PyTree

from posterase.errors import InvalidTypeError, ModelError, NotFactorisedError, OutsideSupportError
from posterase.model.transforms import Ordered, Simplex, Transform
from posterase.runtime.checks import first_bad


def transforms_of(transforms: Mapping[str, Transform] | None) -> dict[str, Transform]:
    """`transforms` as a dict of transforms by parameter name."""
    if transforms is not None and not isinstance(transforms, Mapping):
        raise InvalidTypeError(
            f"transforms is a {type(transforms).__name__}.", "pass a dict by parameter name: {'sigma': pe.positive}."
        )
    for name, transform in (transforms or {}).items():
        if not isinstance(transform, Transform):
            raise InvalidTypeError(
                f"transforms[{name!r}] is {transform!r}, which is not a transform.",
                "use pe.positive, pe.unit_interval, pe.interval(low, high), pe.ordered, pe.simplex, or your own "
                "subclass of pe.Transform.",
            )
    return dict(transforms or {})


def returns_scalar(name: str, function: Callable[..., Any], *args: PyTree) -> None:
    """The function returns one real number."""
    shape = _traced(name, function, *args)
    if shape.shape != () or not jnp.issubdtype(shape.dtype, jnp.floating):
        raise ModelError(
            f"{name} returns an array of {shape.dtype} with shape {shape.shape}.",
            "it must return one real number; sum over the parameter's elements (jnp.sum).",
        )


def returns_rows(function: Callable[..., Any], params: PyTree, data: PyTree, rows: int) -> None:
    """The log-likelihood returns one real number a row, for any number of rows."""
    shape = _traced(f"log_likelihood (on {rows} rows)", function, params, data)
    if shape.shape == ():
        raise ModelError(
            "log_likelihood returns a single number.",
            "return one value a row, without summing; if rows are not independent, use pe.MaskedModel.",
        )
    if shape.shape != (rows,) or not jnp.issubdtype(shape.dtype, jnp.floating):
        raise ModelError(
            f"log_likelihood returns an array of {shape.dtype} with shape {shape.shape} for {rows} rows.",
            f"it must return real numbers of shape ({rows},): one a row, summed over all other axes.",
        )


def _traced(name: str, function: Callable[..., Any], *args: PyTree) -> jax.ShapeDtypeStruct:
    try:
        shape = jax.eval_shape(function, *args)
    except Exception as error:
        shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", args)
        raise ModelError(
            f"{name} cannot be called on {', '.join(map(str, shapes))}: {type(error).__name__}: {error}",
            "write it in jax.numpy, for the parameters of one draw, for any number of rows, and use nothing of the "
            "data but the argument.",
        ) from error
    if not hasattr(shape, "shape"):
        raise ModelError(f"{name} returns {shape!r}.", "return an array.")
    return shape


def in_support(name: str, values: Float[np.ndarray, "chain draw ..."], transform: Transform) -> None:
    """All draws of a parameter lie inside its transform's support."""
    if isinstance(transform, (Ordered, Simplex)) and (values.ndim < 3 or values.shape[-1] < 2):
        raise OutsideSupportError(
            f"{name} must be {transform.describe()}, and has the shape {values.shape[2:]}.",
            "such a parameter is a vector of at least two elements.",
        )
    bad = first_bad(~transform.contains(values))
    if bad is not None:
        chain, draw = bad[:2]
        raise OutsideSupportError(
            f"{name} must be {transform.describe()}, and is {values[chain, draw]} in chain {chain}, draw {draw}.",
            "give draws on the parameter's own scale (not its log), and check that the transform is the right one.",
        )


def same_likelihoods(
    rows: Int[np.ndarray, " rows"],
    together: Float[np.ndarray, " rows"],
    alone: Float[np.ndarray, " rows"],
    what: str,
) -> None:
    """The likelihoods of rows do not depend on which other rows they are evaluated with.

    Infinite values are compared too, and NaN: whether draws may have them, other checks decide.
    """
    finite = np.where(np.isfinite(together), together, 0)
    tolerance = 1e4 * np.finfo(together.dtype).eps * (1 + np.abs(finite))
    bad = first_bad(~np.isclose(together, alone, rtol=0, atol=tolerance, equal_nan=True))
    if bad is not None:
        at = bad[0]
        raise NotFactorisedError(
            f"the log-likelihood of row {rows[at]} is {together[at]:.6g} among all rows and {alone[at]:.6g} among "
            f"the {what} rows alone: rows depend on each other.",
            "a row's value may depend on its own row of data only. Move what is computed from all rows (means, "
            "neighbours, counts) out of the function, or use pe.MaskedModel.",
        )


def has_density(value: float, what: str) -> None:
    """A log density at a draw is a number."""
    if not np.isfinite(value):
        raise OutsideSupportError(
            f"the {what} is infinite or NaN at every draw that was looked at.",
            "pass the model and the data of the fit, and draws on the parameters' own scale. Draws of the posterior "
            "have a finite log density: check log_prior and log_likelihood there.",
        )


def same_sums(difference: float, removed: float, tolerance: float) -> None:
    """Check that source − target is the log-likelihood of the removed rows, up to rounding."""
    has_density(difference, "log density of all rows, or of the kept rows,")
    has_density(removed, "log-likelihood of the removed rows")
    if not abs(difference - removed) <= tolerance:
        raise NotFactorisedError(
            f"source − target is {difference:.9g}, and the log-likelihood of the removed rows is {removed:.9g}.",
            "a row's value may depend on its own row of data only. Move what is computed from several rows (means, "
            "neighbours, groups) out of the function, or use pe.MaskedModel.",
        )
