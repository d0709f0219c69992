"""Models, and the three functions that everything else hangs on (`posterase.model.densities` makes them).

A model and a change, which removes rows S′ from its data S, give three functions of *unconstrained* parameters θ, each
a log density up to a constant, with the Jacobians of the model's transforms included:

    source(θ)    = log p(θ) + log p(S | θ)
    target(θ)    = log p(θ) + log p(S − S′ | θ)
    log_ratio(θ) = target(θ) − source(θ)          = −Σ log p(z | θ) over z in S′, where rows are independent given θ

Signs are fixed here and nowhere else: log densities are to be increased, never potentials to be decreased.

Two kinds of model make them. `Model` has one likelihood value per row and sums rows. `MaskedModel` is for what does not
factorise over rows (a Gaussian process with its function integrated out, a time series): its log density takes a mask
of the rows that are present.

Rows keep their position for ever. A change does not cut the arrays: `without` overwrites the removed rows with a copy
of a kept one and marks them absent. So row ids of later requests mean what they meant in the first, nothing of the
removed rows stays in the model of the target, `target` is just `source` of another model, and no array changes its
shape, so that nothing is compiled again for the next request.

Precision: log densities are summed in float64 wherever jax has 64-bit numbers switched on, and data are cast to the
precision of θ block by block. `posterase.numerics.densities` uses this to evaluate weights in float64 whatever the
precision of the draws.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from posterase.data.checks import row_ids
from posterase.data.parameters import check_known, parameter_names
from posterase.data.streams import raises_read_errors
from posterase.draws.draws import Draws
from posterase.errors import OutsideSupportError
from posterase.model.change import SMALLEST_BUCKET, Change, bucket_of
from posterase.model.checks import in_support
from posterase.model.transforms import Transform, real
from posterase.runtime.checks import check_int, check_type, once
from posterase.runtime.closures import holds_data
from posterase.runtime.compilation_cache import suspend_cache
from posterase.runtime.precision import (
    all_digits,
    as_jax,
    cast_floats,
    in_float64,
    is_known,
    numpy_as_jax,
    widest_float,
)

SPARE_SAMPLES = 8
"""At how many draws `check_additivity` looks at the most, where the density is not finite at the first ones."""

FACTORISATION = 64
"""What factorising a matrix holds, its derivatives included, as a multiple of its size. It keeps batches of
factorisations small, which matters on a CPU (`posterase.numerics.densities.MOST_SIDE_BY_SIDE` says why)."""

M = TypeVar("M", bound="AbstractModel")


class OwnSample(NamedTuple):
    """Draws that a model's own sampler made."""

    params: PyTree
    """Leaves `(chain, draw, …)`."""
    divergences: int
    gradients: int


class AbstractModel(eqx.Module):
    """What methods know of a model: parameters, rows, and log densities of unconstrained parameters."""

    has_density: ClassVar[bool] = True
    """Whether its density can be evaluated: else there are only log-likelihoods stored with the draws."""
    rows_factorise: ClassVar[bool] = True
    """Whether a row has a likelihood of its own, given the parameters."""
    gradients_are_expensive: ClassVar[bool] = False
    """Whether gradients come from outside compiled code, so that a refit costs less than many moves."""
    check_every_change: ClassVar[bool] = False
    """Whether every change is checked to leave kept rows alone: for what nobody wrote with rows in mind."""

    data: eqx.AbstractVar[PyTree]
    present: eqx.AbstractVar[Bool[Array, " rows"]]
    transforms: eqx.AbstractVar[dict[str, Transform]]

    @abc.abstractmethod
    def log_joint(self, params: PyTree) -> Float[Array, ""]:
        """log p(θ) + log p(present rows | θ), at parameters on their own (constrained) scale."""

    @abc.abstractmethod
    def log_ratio(self, params: PyTree, change: Change) -> Float[Array, ""]:
        """log p(S_new | θ) − log p(S | θ), at parameters on their own (constrained) scale."""

    def log_rows(self, params: PyTree, rows: Int[Array, " some"]) -> Float[Array, " some"]:
        """log p(S | θ) − log p(S − z | θ) for each of these rows z by itself: its own log-likelihood, where rows are
        independent given θ; else its density given all others.
        """
        one = jnp.ones(1, bool)
        return jax.lax.map(lambda row: -self.log_ratio(params, Change(padded_ids=row[None], counted=one)), rows)

    def stored_log_ratio(self, draws: Draws, change: Change) -> Float[np.ndarray, "chain draw"]:
        """The log ratio at these draws, where it was stored with them (`has_density` is False)."""
        raise NotImplementedError

    def at_draws(self: M, places: Int[np.ndarray, "chain draw"], draws: Draws) -> M:
        """The model for a selection of its draws: another one only where values are stored with the draws."""
        return self

    @abc.abstractmethod
    def elements(self, rows: int) -> int:
        """How many numbers of `rows` rows are in memory at once when they are evaluated."""

    @abc.abstractmethod
    def _without(self: M, left: Bool[Array, " rows"]) -> M:
        """The model of the rows that are left, with nothing of the others in it."""

    @abc.abstractmethod
    def _check_functions(self, params: PyTree) -> None:
        """Check shapes of what the model's functions return at such parameters, without computing anything."""

    @abc.abstractmethod
    def _check_additive(self, params: PyTree, change: Change) -> None:
        """Raise `NotFactorisedError` where source + log_ratio ≠ target at these parameters of one draw."""

    # --- rows

    @property
    def n_rows(self) -> int:
        """How many rows are present."""
        return int(np.count_nonzero(np.asarray(self.present)))

    @property
    def row_ids(self) -> Int[np.ndarray, " present"]:
        """Ids of the rows that are present: their positions in the data the first model was made with."""
        return np.flatnonzero(np.asarray(self.present))

    def sampled(
        self,
        seed: int,
        initial: PyTree,
        draws: int,
        warmup: int,
        covariance: Float[np.ndarray, "d d"] | None = None,
        target_acceptance: float = 0.8,
    ) -> OwnSample | None:
        """Draws by the model's own sampler, a chain from each initial point; None: it has none.

        With the `covariance` of raveled unconstrained parameters as its metric, only the step size is adapted.
        """
        return None

    def change(self, remove: ArrayLike | Sequence[int]) -> Change:
        """Make a `Change` that removes rows: ids, or a mask over all rows. They are checked here."""
        ids = row_ids(remove, np.asarray(self.present))
        bucket = bucket_of(len(ids))
        padded = np.full(bucket, ids[0], dtype=np.int32)
        padded[: len(ids)] = ids
        return Change(padded_ids=as_jax(padded), counted=as_jax(np.arange(bucket) < len(ids)))

    @raises_read_errors
    def without(self: M, change: Change) -> M:
        """The model of the kept rows. Nothing of the removed rows is left in it.

        It is a copy of the data. While one is in use, asking for it again gives the same one.
        """
        check_type(change, Change, "change", "make one: model.change(remove=[3, 17]).")
        known = _in_use.find(self, change)
        if known is None:
            known = self._without(_absent(self.present, change.padded_ids))
            _in_use.keep(self, change, known)
        return known

    def spread(self: M) -> M:
        """The model with its rows on the devices of the mesh that is set, some on each or all on all of them.

        Rows keep their ids: what is filled in to cut them evenly comes last, and is absent.
        """
        return self

    # --- parameters

    def constrain(self, theta: PyTree) -> PyTree:
        """Parameters on their own scale from unconstrained ones."""
        return self._transformed(lambda transform, leaf: transform.forward(leaf), theta)

    def unconstrain(self, params: PyTree) -> PyTree:
        """Unconstrained parameters from those on their own scale."""
        return self._transformed(lambda transform, leaf: transform.inverse(leaf), params)

    def log_det_jacobian(self, theta: PyTree) -> Float[Array, ""]:
        """log |d params / d theta|, summed over all parameters."""
        terms = self._transformed(lambda transform, leaf: transform.log_det_jacobian(leaf), theta)
        return sum(jax.tree.leaves(terms), start=jnp.zeros(()))

    @all_digits()
    def log_density(self, theta: PyTree) -> Float[Array, ""]:
        """log p(θ) + log p(present rows | θ), at unconstrained parameters, Jacobian included."""
        return self.log_joint(self.constrain(theta)) + self.log_det_jacobian(theta)

    @all_digits()
    def log_density_ratio(self, theta: PyTree, change: Change) -> Float[Array, ""]:
        """log p(S_new | θ) − log p(S | θ), at unconstrained parameters."""
        return self.log_ratio(self.constrain(theta), change)

    # --- checks

    def check(self, draws: Draws) -> None:
        """Check that draws fit this model, before any work starts.

        Names of transforms, supports, and what the model's functions return; only the supports need values.
        """
        names = draws.names
        check_known(self.transforms, names, "transforms")
        for name, leaf in zip(names, jax.tree.leaves(draws.params), strict=True):
            if name in self.transforms:
                in_support(name, np.asarray(leaf), self.transforms[name])
        self.check_functions(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), draws.params))

    def check_functions(self, params: PyTree) -> None:
        """Check what the model's functions return at parameters of such shapes; once for each kind of model.

        It must come before anything of the model is compiled: functions that hold arrays of their own suspend the
        compilation cache, so that no row of theirs is written to disk.
        """
        leaves, structure = jax.tree.flatten((self, params))
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)

        def check() -> bool:
            self._check_functions(params)
            return self._holds_data(params)

        if once((structure, shapes, widest_float()), check):
            suspend_cache()

    def _holds_data(self, params: PyTree) -> bool:
        """Whether the model's functions use data that are neither its leaves nor parameters."""
        bucket = np.zeros(SMALLEST_BUCKET, np.int32)
        change = Change(padded_ids=as_jax(bucket), counted=as_jax(bucket, bool))
        return holds_data(_densities_and_slopes, self, params, change)

    def _check_example(self, params: PyTree) -> None:
        check_known(self.transforms, parameter_names(params), "transforms")
        self.check_functions(_shapes(params))

    @raises_read_errors
    def check_additivity(self, draws: Draws, change: Change, *, samples: int = 3) -> None:
        """Check on a few draws that source + log_ratio = target; raise `NotFactorisedError` where it is not.

        This catches likelihoods whose rows look at each other (a mean over the data, the row before) and masked
        densities that ignore their mask. It is cheap: a few passes over the data for each of a few draws.
        """
        check_int("samples", samples, 1, draws.n_chains * draws.n_draws)
        self.check(draws)
        last = draws.n_chains * draws.n_draws - 1
        # Others too where the density is not finite: there is nothing to compare there.
        places = dict.fromkeys(int(at) for count in (samples, SPARE_SAMPLES) for at in np.linspace(0, last, count))
        checked, failed = 0, None
        for at in places:
            try:
                self._check_additive(draws.at(at), change)
                checked += 1
            except OutsideSupportError as error:
                failed = error
            if checked == samples:
                return
        if not checked and failed is not None:
            raise failed

    def _transformed(self, apply: Callable[[Transform, Array], Any], params: PyTree) -> PyTree:
        leaves, structure = jax.tree.flatten(params)
        names = parameter_names(params)
        return jax.tree.unflatten(
            structure, [apply(self.transforms.get(name, real), leaf) for name, leaf in zip(names, leaves, strict=True)]
        )


class _InUse:
    """Kept models that somebody holds, by the very model and change that they were made from.

    The checks, the methods and the result of one request all ask for the kept model, a copy of the data; one serves
    all. Nothing is kept alive by being in here.
    """

    def __init__(self) -> None:
        self._made: list[tuple[weakref.ref[Any], weakref.ref[Any], weakref.ref[Any]]] = []

    def find(self, model: M, change: Change) -> M | None:
        for of, without, kept in self._made:
            if of() is model and without() is change:
                return kept()
        return None

    def keep(self, model: AbstractModel, change: Change, kept: AbstractModel) -> None:
        if not is_known(*jax.tree.leaves((model, change, kept))):
            return  # inside compiled code, where it is no array but a step of a program
        self._made = [each for each in self._made if all(part() is not None for part in each)]
        self._made.append((weakref.ref(model), weakref.ref(change), weakref.ref(kept)))


_in_use = _InUse()


def _densities_and_slopes(model: AbstractModel, params: PyTree, change: Change) -> PyTree:
    """All that methods compile of a model: with derivatives, since a function may have rules of its own for them."""

    def densities(theta: PyTree) -> Float[Array, ""]:
        return model.log_density(theta) + model.log_density_ratio(theta, change)

    return jax.value_and_grad(densities)(model.unconstrain(params))


def with_rows(model: M, data: PyTree, present: Bool[Array, " rows"]) -> M:
    """The model with other data, and other rows present."""
    return eqx.tree_at(lambda each: (each.data, each.present), model, (data, present))


def coupled_elements(rows: int) -> int:
    """How many numbers are in memory where rows are coupled: mostly a matrix of them (a Gaussian process, say)."""
    return FACTORISATION * rows**2


@jax.jit
def _absent(present: Bool[Array, " rows"], rows: Int[Array, "..."]) -> Bool[Array, " rows"]:
    """The mask without these rows. (Compiled as a whole: each operation alone would be a program.)"""
    return present.at[rows].set(False)


def as_node(function: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function as part of a tree's structure, so that models go through jax.jit; callable modules stay."""
    check_type(function, Callable, "a model's function", "pass a function of the parameters.")
    return function if isinstance(function, eqx.Module) else jax.tree_util.Partial(numpy_as_jax(function))


def evaluate_precisely(function: Callable[..., Array], *args: PyTree) -> tuple[Array, float]:
    """A function's value in float64 where it can be had, and the rounding unit of what it was computed in."""

    def call(wide: bool) -> Array:
        return _called(function, args, wide)

    value, wide = in_float64(call, "the model's function")
    return value, float(np.finfo(np.float64 if wide else np.float32).eps)


@eqx.filter_jit
def _called(function: Callable[..., Array], args: tuple[PyTree, ...], wide: bool) -> Array:
    """Compiled as a whole: operation by operation, each would be compiled by itself."""
    return function(*(cast_floats(args, jnp.float64) if wide else args))


def _shapes(params: PyTree) -> PyTree:
    """Shapes of an example of one draw's parameters; plain numbers count as real."""

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        dtype = getattr(leaf, "dtype", widest_float())
        return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.canonicalize_dtype(dtype))

    return jax.tree.map(shape, params)
