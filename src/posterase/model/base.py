"""Models, and the three functions that everything else hangs on (`posterase.model.densities` makes them).

A model and a removal of rows S′ from its data S give three functions of *unconstrained* parameters θ, each a log
density up to a constant, with the Jacobians of the model's transforms included:

    full(θ)    = log p(θ) + log p(S | θ)
    kept(θ)    = log p(θ) + log p(S − S′ | θ)
    removed(θ) = full(θ) − kept(θ)                = Σ log p(z | θ) over z in S′, where rows are independent given θ

Signs are fixed here and nowhere else: all three are log densities, to be added, never potentials to be subtracted.

Two kinds of model make them. `Model` has one likelihood value a row and sums rows. `MaskedModel` is for what does not
factorise over rows (a Gaussian process with its function integrated out, a time series): its log density takes a mask
of the rows that are present.

Rows keep their position for ever. A removal does not cut the arrays: `without` overwrites the removed rows with a copy
of a kept one and marks them absent. So row ids of later requests mean what they meant in the first, nothing of the
removed rows stays in the kept model, `kept` is just `full` of another model, and no array changes its shape, so that
nothing is compiled again for the next request.

Precision: log densities are summed in float64 wherever jax has 64-bit numbers switched on, and data are cast to the
precision of θ block by block. `posterase.numerics.densities` uses this to evaluate weights in float64 whatever the
precision of the draws.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from posterase.data.checks import row_ids, rows_of
from posterase.data.parameters import check_known, parameter_names
from posterase.data.row_sums import Blocks, Spread, Term, sum_rows
from posterase.data.streams import Counted, Stream, data_of, raises_read_errors, shapes_of, taken
from posterase.draws.draws import Draws
from posterase.errors import DataError, MeshError, NoDensityError, NotFactorisedError
from posterase.model.checks import (
    has_density,
    in_support,
    returns_rows,
    returns_scalar,
    same_likelihoods,
    same_sums,
    transforms_of,
)
from posterase.model.removal import SMALLEST_BUCKET, Removal, bucket_of
from posterase.model.transforms import Transform, real
from posterase.runtime import sharding
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

BLOCK_ELEMENTS = 2**20
"""Rows of up to this many numbers are evaluated in one block; more of them in several, so that a pass over the data
needs little memory."""

CUT_ELEMENTS, DEVICE_CUT_ELEMENTS = 2**18, 2**22
"""Several blocks have about this many numbers each. On a CPU, as many as stay in its cache while a batch of draws is
evaluated on them; on other devices more, since every block is a step that they wait for."""

SPARE_SAMPLES = 8
"""At how many draws `check_additivity` looks at the most, where the density is not finite at the first ones."""

CHECKED_ROWS = 1000
"""How many kept rows, and removed ones, `check_additivity` looks at."""

MASK_FILLERS = 8
"""How many kept rows `check_additivity` puts in the place of the removed ones of a masked model."""

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
    """What erasers know of a model: parameters, rows, and log densities of unconstrained parameters."""

    rows_factorise: ClassVar[bool] = True
    """Whether a row has a likelihood of its own, given the parameters."""
    gradients_are_dear: ClassVar[bool] = False
    """Whether gradients come from outside compiled code, so that a refit costs less than many moves."""
    checked_each_time: ClassVar[bool] = False
    """Whether every removal is checked to leave kept rows alone: for what nobody wrote with rows in mind."""

    data: eqx.AbstractVar[PyTree]
    present: eqx.AbstractVar[Bool[Array, " rows"]]
    transforms: eqx.AbstractVar[dict[str, Transform]]

    @abc.abstractmethod
    def log_joint(self, params: PyTree) -> Float[Array, ""]:
        """log p(θ) + log p(present rows | θ), at parameters on their own (constrained) scale."""

    @abc.abstractmethod
    def log_removed(self, params: PyTree, removal: Removal) -> Float[Array, ""]:
        """log p(S | θ) − log p(S − S′ | θ), at parameters on their own (constrained) scale."""

    def log_rows(self, params: PyTree, rows: Int[Array, " some"]) -> Float[Array, " some"]:
        """log p(S | θ) − log p(S − z | θ) for each of these rows z by itself: its own log-likelihood, where rows are
        independent given θ; else its density given all others.
        """
        one = jnp.ones(1, bool)
        return jax.lax.map(lambda row: self.log_removed(params, Removal(padded_ids=row[None], counted=one)), rows)

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
    def _check_additive(self, params: PyTree, removal: Removal) -> None:
        """Raise `NotFactorisedError` where full − kept ≠ removed at these parameters of one draw."""

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

    def removal(self, rows: ArrayLike | Sequence[int]) -> Removal:
        """Check the rows of a request (ids, or a mask over all rows) and make a `Removal` of them."""
        ids = row_ids(rows, np.asarray(self.present))
        bucket = bucket_of(len(ids))
        padded = np.full(bucket, ids[0], dtype=np.int32)
        padded[: len(ids)] = ids
        return Removal(padded_ids=as_jax(padded), counted=as_jax(np.arange(bucket) < len(ids)))

    @raises_read_errors
    def without(self: M, removal: Removal) -> M:
        """The model of the kept rows. Nothing of the removed rows is left in it.

        It is a copy of the data. While one is in use, asking for it again gives the same one.
        """
        check_type(removal, Removal, "removal", "make one: model.removal([3, 17]).")
        known = _in_use.find(self, removal)
        if known is None:
            known = self._without(_absent(self.present, removal.padded_ids))
            _in_use.keep(self, removal, known)
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
    def log_removed_density(self, theta: PyTree, removal: Removal) -> Float[Array, ""]:
        """log p(S | θ) − log p(S − S′ | θ), at unconstrained parameters."""
        return self.log_removed(self.constrain(theta), removal)

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
        removal = Removal(padded_ids=as_jax(bucket), counted=as_jax(bucket, bool))
        return holds_data(_densities_and_slopes, self, params, removal)

    def _check_example(self, params: PyTree) -> None:
        check_known(self.transforms, parameter_names(params), "transforms")
        self.check_functions(_shapes(params))

    @raises_read_errors
    def check_additivity(self, draws: Draws, removal: Removal, *, samples: int = 3) -> None:
        """Check on a few draws that full − kept = removed; raise `NotFactorisedError` where it is not.

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
                self._check_additive(draws.at(at), removal)
                checked += 1
            except NoDensityError as error:
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


class Model(AbstractModel):
    """A model whose rows are independent given the parameters.

    Parameters
    ----------
    log_prior
        `log_prior(params)` → the log density of the prior, one number, up to a constant.
    log_likelihood
        `log_likelihood(params, data)` → one value a row of `data`. It is called on any number of rows and may use
        nothing of the data but its argument.
    data
        A tree of arrays (a dict, say) that share their leading axis: the rows. Or a `pe.stream` of them, where they
        are larger than memory.
    transforms
        For constrained parameters, by name: `{"sigma": pe.positive}`. Densities are given on the parameters' own
        scale; the Jacobians are added here.
    params
        An example of the parameters of one draw (values do not matter), to check the functions at once. Without it
        they are checked when the model first meets draws.

    Examples
    --------
    >>> import jax.numpy as jnp, posterase as pe
    >>> model = pe.Model(
    ...     log_prior=lambda p: -0.5 * p["mu"] ** 2,
    ...     log_likelihood=lambda p, data: -0.5 * (data["y"] - p["mu"]) ** 2,
    ...     data={"y": jnp.array([0.3, -1.2, 0.8])},
    ... )
    >>> model.removal([1])
    Removal of 1 row: 1
    """

    log_prior: Callable[[PyTree], Float[Array, ""]]
    log_likelihood: Callable[[PyTree, PyTree], Float[Array, " rows"]]
    data: PyTree
    present: Bool[Array, " rows"]
    transforms: dict[str, Transform]

    def __init__(
        self,
        log_prior: Callable[[PyTree], Float[Array, ""]],
        log_likelihood: Callable[[PyTree, PyTree], Float[Array, " rows"]],
        data: PyTree,
        *,
        transforms: Mapping[str, Transform] | None = None,
        params: PyTree | None = None,
    ):
        self.log_prior = _as_node(log_prior)
        self.log_likelihood = _as_node(log_likelihood)
        self.data, self.present = data_of(data)
        self.transforms = transforms_of(transforms)
        if params is not None:
            self._check_example(params)

    def log_joint(self, params: PyTree) -> Float[Array, ""]:
        return self.log_prior(params) + self._sum_rows(params, self.data, self.present)

    def log_removed(self, params: PyTree, removal: Removal) -> Float[Array, ""]:
        return self._sum_rows(params, taken(self.data, removal.padded_ids), removal.counted)

    def log_rows(self, params: PyTree, rows: Int[Array, " some"]) -> Float[Array, " some"]:
        precision = jnp.result_type(*jax.tree.leaves(params))

        def of(ids: Int[Array, " block"]) -> Float[Array, " block"]:
            return self.log_likelihood(params, cast_floats(taken(self.data, ids), precision))

        n, size = len(rows), self._block_rows
        if n <= size:
            return of(rows)
        padded = jnp.pad(rows, (0, -n % size), mode="edge").reshape(-1, size)
        return jax.lax.map(of, padded).ravel()[:n]

    def spread(self: M) -> M:
        if isinstance(self.data, Stream) and sharding.count() > 1:
            raise MeshError(
                "a stream's rows are read by one process, for one device.",
                "leave out mesh; or hold the rows in memory, some on each device: pe.Model(…, data) without pe.stream.",
            )
        if sharding.count() == 1:
            return self
        parts = sharding.shards(sharding.ROWS)
        data = jax.tree.map(lambda leaf: sharding.place_rows(leaf, parts), self.data)
        return with_rows(self, data, jnp.pad(self.present, (0, -len(self.present) % parts)))

    def elements(self, rows: int) -> int:
        return min(rows, self._block_rows) * self._row_elements

    def _without(self: M, left: Bool[Array, " rows"]) -> M:
        return with_rows(self, overwrite(self.data, left), left)

    def _check_functions(self, params: PyTree) -> None:
        returns_scalar("log_prior", self.log_prior, params)
        for rows in (self.present.shape[0], SMALLEST_BUCKET):
            returns_rows(self.log_likelihood, params, shapes_of(self.data, rows), rows)

    def _check_additive(self, params: PyTree, removal: Removal) -> None:
        # Row by row, so that nothing cancels: a row's likelihood must not depend on which other rows it comes with.
        removed = np.sort(removal.row_ids)[:CHECKED_ROWS]
        left = self.without(removal).row_ids
        kept = left[np.linspace(0, len(left) - 1, min(len(left), CHECKED_ROWS)).astype(int)]
        both = np.union1d(kept, removed)
        together = self._row_values(params, both)
        for what, rows in (("kept", kept), ("removed", removed)):
            among = together[np.searchsorted(both, rows)]
            same_likelihoods(rows, among, self._row_values(params, rows), what)
        # And the sums, over all rows: full, the kept rows as the erasers sum them and by themselves, the removed rows.
        others = [self.without(removal).log_joint]
        if not isinstance(self.data, Stream):  # whose rows are read in blocks, not by themselves
            others.append(_Alone(self, jnp.asarray(left)))
        full, eps = _precisely(self.log_joint, params)
        tolerance = 1e4 * eps * (1 + abs(float(full)))
        removed_sum, _ = _precisely(self.log_removed, params, removal)
        for other in others:
            kept_sum, _ = _precisely(other, params)
            same_sums(float(full) - float(kept_sum), float(removed_sum), tolerance)

    def _row_values(self, params: PyTree, rows: Int[np.ndarray, " some"]) -> Float[np.ndarray, " some"]:
        return np.asarray(_precisely(self.log_likelihood, params, taken(self.data, rows))[0])

    @property
    def _row_elements(self) -> int:
        return max(1, sum(leaf.size for leaf in jax.tree.leaves(shapes_of(self.data, 1))))

    @property
    def _block_rows(self) -> int:
        if isinstance(self.data, Stream):
            return self.data.source.layout.piece_rows
        block = BLOCK_ELEMENTS
        if self.present.shape[0] * self._row_elements > block:
            block = min(block, CUT_ELEMENTS) if jax.default_backend() == "cpu" else DEVICE_CUT_ELEMENTS
        return max(256, block // self._row_elements)

    def _sum_rows(self, params: PyTree, data: PyTree, counted: Bool[Array, " rows"]) -> Float[Array, ""]:
        """Σ log_likelihood over the counted rows; where a mesh of devices is set, each sums its own."""
        if isinstance(data, Stream):
            return sum_rows(params, self._term, Counted(data, counted))
        parts = sharding.shards(sharding.ROWS)
        rows = Blocks(data, counted, self._block_rows)
        if parts > 1 and counted.shape[0] % parts == 0:
            return sum_rows(params, self._term, Spread(rows))
        if counted.shape[0] <= self._block_rows:
            return self._term(params, data, counted)
        return sum_rows(params, self._term, rows)

    @property
    def _term(self) -> Term:
        return jax.tree_util.Partial(_sum_counted, self.log_likelihood)


class _Alone(eqx.Module):
    """log p(θ) + log p(these rows | θ), the rows taken out of the data block by block: no copy of them is made."""

    model: Model
    rows: Int[Array, " some"]

    def __call__(self, params: PyTree) -> Float[Array, ""]:
        values = self.model.log_rows(params, self.rows)
        return self.model.log_prior(params) + jnp.sum(values, dtype=widest_float())


class MaskedModel(AbstractModel):
    """A model whose rows are not independent given the parameters.

    Parameters
    ----------
    log_joint
        `log_joint(params, data, present)` → log prior plus log-likelihood of the rows where the mask `present` is
        true, one number, up to a constant that does not depend on the parameters. Values of absent rows must not
        matter; `check_additivity` tests that.
    data
        A tree of arrays that share their leading axis: the rows.
    transforms
        For constrained parameters, by name, as for `Model`.
    params
        An example of the parameters of one draw, to check the function at once.
    """

    rows_factorise: ClassVar[bool] = False

    masked_log_joint: Callable[[PyTree, PyTree, Bool[Array, " rows"]], Float[Array, ""]]
    data: PyTree
    present: Bool[Array, " rows"]
    transforms: dict[str, Transform]

    def __init__(
        self,
        log_joint: Callable[[PyTree, PyTree, Bool[Array, " rows"]], Float[Array, ""]],
        data: PyTree,
        *,
        transforms: Mapping[str, Transform] | None = None,
        params: PyTree | None = None,
    ):
        self.masked_log_joint = _as_node(log_joint)
        if isinstance(data, Stream):
            raise DataError(
                "data is a stream, and a masked model looks at all rows at once.",
                "pass arrays; or write a pe.Model, whose rows are independent given the parameters.",
            )
        self.data, self.present = rows_of(data)
        self.transforms = transforms_of(transforms)
        if params is not None:
            self._check_example(params)

    def log_joint(self, params: PyTree) -> Float[Array, ""]:
        data = cast_floats(self.data, jnp.result_type(*jax.tree.leaves(params)))
        return self.masked_log_joint(params, data, self.present).astype(widest_float())

    def log_removed(self, params: PyTree, removal: Removal) -> Float[Array, ""]:
        return self.log_joint(params) - self.without(removal).log_joint(params)

    def elements(self, rows: int) -> int:
        return max(coupled_elements(self.present.shape[0]), sum(leaf.size for leaf in jax.tree.leaves(self.data)))

    def _without(self: M, left: Bool[Array, " rows"]) -> M:
        return with_rows(self, overwrite(self.data, left), left)

    def _check_functions(self, params: PyTree) -> None:
        returns_scalar("log_joint", self.masked_log_joint, params, self.data, self.present)

    def _check_additive(self, params: PyTree, removal: Removal) -> None:
        # full − kept is removed by definition; what can go wrong is that kept still looks at the removed rows.
        # So put other rows in their place, and see whether the density notices.
        kept = self.without(removal)
        left = kept.row_ids
        expected, eps = _precisely(self.masked_log_joint, params, self.data, kept.present)
        for filler in left[np.linspace(0, len(left) - 1, min(len(left), MASK_FILLERS)).astype(int)]:
            data = jax.tree.map(lambda leaf: leaf.at[removal.padded_ids].set(leaf[filler]), self.data)  # noqa: B023
            value, _ = _precisely(self.masked_log_joint, params, data, kept.present)
            has_density(float(expected), "log density of the kept rows")
            if not abs(float(value - expected)) <= 1e4 * eps * (1 + abs(float(expected))):
                raise NotFactorisedError(
                    f"the log density of the kept rows changes from {expected:.9g} to {value:.9g} with the values of "
                    "the removed rows.",
                    "log_joint must not look at rows where the mask is false: multiply their terms by the mask, or "
                    "replace their values with jnp.where before they are used.",
                )


class _InUse:
    """Kept models that somebody holds, by the very model and removal that they were made from.

    The checks, the erasers and the result of one request all ask for the kept model, a copy of the data; one serves
    all. Nothing is kept alive by being in here.
    """

    def __init__(self) -> None:
        self._made: list[tuple[weakref.ref[Any], weakref.ref[Any], weakref.ref[Any]]] = []

    def find(self, model: M, removal: Removal) -> M | None:
        for of, without, kept in self._made:
            if of() is model and without() is removal:
                return kept()
        return None

    def keep(self, model: AbstractModel, removal: Removal, kept: AbstractModel) -> None:
        if not is_known(*jax.tree.leaves((model, removal, kept))):
            return  # inside compiled code, where it is no array but a step of a program
        self._made = [each for each in self._made if all(part() is not None for part in each)]
        self._made.append((weakref.ref(model), weakref.ref(removal), weakref.ref(kept)))


_in_use = _InUse()


def _densities_and_slopes(model: AbstractModel, params: PyTree, removal: Removal) -> PyTree:
    """All that erasers compile of a model: with derivatives, since a function may have rules of its own for them."""

    def densities(theta: PyTree) -> Float[Array, ""]:
        return model.log_density(theta) + model.log_removed_density(theta, removal)

    return jax.value_and_grad(densities)(model.unconstrain(params))


def with_rows(model: M, data: PyTree, present: Bool[Array, " rows"]) -> M:
    """The model with other data, and other rows present."""
    return eqx.tree_at(lambda each: (each.data, each.present), model, (data, present))


def coupled_elements(rows: int) -> int:
    """How many numbers are in memory where rows are coupled: mostly a matrix of them (a Gaussian process, say)."""
    return FACTORISATION * rows**2


def overwrite(data: PyTree, left: Bool[Array, " rows"]) -> PyTree:
    """Rows with a copy of the first row that is left in the place of every row that is not.

    Every such row, not only those removed now: an earlier filler may be among the rows that go.
    """
    return data.without(left) if isinstance(data, Stream) else _overwritten(data, left)


@eqx.filter_jit
def _overwritten(data: PyTree, left: Bool[Array, " rows"]) -> PyTree:
    kept = jnp.argmax(left)
    return jax.tree.map(lambda leaf: jnp.where(_like(left, leaf), leaf, leaf[kept]), data)


def _sum_counted(
    log_likelihood: Callable[[PyTree, PyTree], Float[Array, " rows"]],
    params: PyTree,
    rows: PyTree,
    counted: Bool[Array, " rows"],
) -> Float[Array, ""]:
    """Σ log_likelihood over the rows that count, data in the precision of the parameters."""
    values = log_likelihood(params, cast_floats(rows, jnp.result_type(*jax.tree.leaves(params))))
    return jnp.sum(jnp.where(counted, values, 0), dtype=widest_float())


@jax.jit
def _absent(present: Bool[Array, " rows"], rows: Int[Array, "..."]) -> Bool[Array, " rows"]:
    """The mask without these rows. (Compiled as a whole: each operation alone would be a program.)"""
    return present.at[rows].set(False)


def _like(mask: Bool[Array, " rows"], leaf: Array) -> Bool[Array, "rows ..."]:
    return mask.reshape(-1, *[1] * (leaf.ndim - 1))


def _as_node(function: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function as part of a tree's structure, so that models go through jax.jit; callable modules stay."""
    check_type(function, Callable, "a model's function", "pass a function of the parameters.")
    return function if isinstance(function, eqx.Module) else jax.tree_util.Partial(numpy_as_jax(function))


def _precisely(function: Callable[..., Array], *args: PyTree) -> tuple[Array, float]:
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
