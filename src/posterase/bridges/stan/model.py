"""A Stan program as a model: its log density is asked of Stan, on the host, from inside compiled code.

The kept model is the same program with the kept rows' data. What rows add to the density is the difference of the two:
nothing is assumed of how rows enter the program.

Derivatives: gradients are Stan's own. Second derivatives, of which a few are needed to move draws, are central
differences of gradients along the direction asked for, over a ten-thousandth of the draws' spread; two gradients each.
"""

from __future__ import annotations

import functools
import math
import types
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree, UInt8, UInt32

from posterase.bridges.shared.traced_model import check_parameters
from posterase.bridges.stan.data import OWN_SUBSET, Subset, as_arrays, packed, unpacked
from posterase.bridges.stan.programs import Data, StanPosterior, StanProgram, Table, by_name
from posterase.bridges.stan.row_parameters import Moments, RowParameters, WithAbsentRows
from posterase.errors import InvalidOptionError, NotFactorisedError, UnsupportedModelError
from posterase.model.base import AbstractModel, OwnSample, with_rows
from posterase.model.change import Change
from posterase.model.transforms import Transform
from posterase.runtime import sharding
from posterase.runtime.precision import widest_float

MOMENTS = "posterase: means", "posterase: standard deviations"
"""The names of moments beside those of the data: no program has such variables."""

DIFFERENCE = 1e-4
"""The step of finite differences, in standard deviations of the draws."""

ROUNDED = 1e-5
"""How far float32 may have taken the sum of a simplex from one."""


class Parameter(NamedTuple):
    """A parameter of the program."""

    name: str
    shape: tuple[int, ...]
    """With all rows."""
    free: int
    """How many unconstrained numbers it takes."""

    @property
    def size(self) -> int:
        """How many numbers it is, on its own scale."""
        return int(np.prod(self.shape, dtype=int))


class Opened(NamedTuple):
    """What the bytes of a model hold."""

    data: Data
    moments: Moments | None
    """Of the draws, where there are parameters of single rows."""


class Computed(NamedTuple):
    """A variable that the program computes: a transformed parameter or a generated quantity."""

    name: str
    """In the program."""
    row_axis: int | None
    """Its axis of rows, if it has one."""


class Host:
    """The program on the host, with how its data are cut: what of a model does not change from request to request."""

    def __init__(
        self,
        program: StanProgram,
        subset: Subset,
        parameters: Sequence[Parameter],
        computed: Mapping[str, Mapping[str, Computed]] = types.MappingProxyType({}),
        row_parameters: RowParameters | None = None,
    ):
        self.program, self.subset, self.parameters = program, subset, tuple(parameters)
        self.computed = computed
        """What the program computes of the variables that came with the draws, by group and by their name there."""
        self.row_parameters = row_parameters
        self._last: tuple[tuple[bytes, bytes], StanPosterior] | None = None

    @property
    def dimension(self) -> int:
        """How many unconstrained parameters there are."""
        return sum(each.free for each in self.parameters)

    @property
    def numbers(self) -> int:
        """How many numbers the parameters are, on their own scale."""
        return sum(each.size for each in self.parameters)

    def cut(self, data: Data, rows: Any) -> Data:
        """Data with some of their rows, by place."""
        views = {name: values.view() for name, values in data.items()}
        for values in views.values():
            values.flags.writeable = False
        return as_arrays(self.subset(views, np.asarray(rows)))

    def call(self, kind: str, size: tuple[int, ...], model: StanModel, mask: Array, *vectors: Array) -> Array:
        """Ask Stan from inside compiled code; `mask` says which rows count.

        Numbers go there and back as the bits they are. Whether jax has 64-bit numbers on is a matter of the thread, the
        one that calls back is another than ours, and it would make float32 of them (jax 0.10 to 0.12).
        """
        dtype = jnp.result_type(*vectors)
        words = dtype.itemsize // 4
        result = jax.ShapeDtypeStruct((math.prod(size) * words,), jnp.uint32)
        run, bits = functools.partial(self.run, kind, dtype), [_bits(each) for each in vectors]
        found = jax.pure_callback(run, result, model.data, model.present, mask, *bits, vmap_method="expand_dims")
        return jax.lax.bitcast_convert_type(found.reshape(-1, words) if words > 1 else found, dtype).reshape(size)

    def run(self, kind: str, dtype: Any, *operands: Any) -> UInt32[np.ndarray, "... bits"]:
        """All draws of a batch; operands that are the same for all have leading axes of length one."""
        rows, bits = ([np.asarray(each) for each in part] for part in (operands[:3], operands[3:]))
        arrays = [*rows, *(np.ascontiguousarray(each).view(dtype) for each in bits)]
        lead = np.broadcast_shapes(*(each.shape[:-1] for each in arrays))
        wide = [np.broadcast_to(each, (*lead, each.shape[-1])).reshape(-1, each.shape[-1]) for each in arrays[3:]]
        vectors = [np.ascontiguousarray(each, np.float64) for each in wide]
        if all(each.size == each.shape[-1] for each in arrays[:3]):
            found = _ask(self, self.posterior(*(each.ravel() for each in arrays[:3])), kind, *vectors)
        else:
            own = [np.broadcast_to(each, (*lead, each.shape[-1])).reshape(-1, each.shape[-1]) for each in arrays[:3]]
            each_its_own = [
                _ask(self, self.posterior(*(each[i] for each in own)), kind, *(each[i : i + 1] for each in vectors))
                for i in range(len(vectors[0]))
            ]
            found = np.concatenate(each_its_own)
        with np.errstate(over="ignore"):  # what `dtype` cannot hold is infinite there; kernels reject it
            return found.astype(dtype).reshape(*lead, -1).view(np.uint32)

    def posterior(
        self, data: UInt8[np.ndarray, " bytes"], present: Bool[np.ndarray, " rows"], mask: Bool[np.ndarray, " rows"]
    ) -> StanPosterior:
        """The program with the data of the rows in a mask. The last one is kept: chains ask for it at every step."""
        asked, last = (data.tobytes(), mask.tobytes()), self._last
        if last is not None and last[0] == asked:
            return last[1]
        own = self.opened(data)
        cut = own.data if mask[present].all() else self.cut(own.data, np.flatnonzero(mask[present]))
        self._last = asked, self.with_places(self.program.with_data(cut), own.moments, present, mask)
        return self._last[1]

    def opened(self, whole: UInt8[np.ndarray, " bytes"]) -> Opened:
        """Data from their bytes, with the moments of parameters of single rows."""
        data = unpacked(whole)
        moments = [data.pop(name) for name in MOMENTS if name in data]
        return Opened(data, Moments(*moments) if moments else None)

    def closed(self, data: Data, moments: Moments | None, least: int = 0) -> UInt8[np.ndarray, " bytes"]:
        """The same as bytes."""
        return packed({**data, **({} if moments is None else dict(zip(MOMENTS, moments, strict=True)))}, least)

    def with_places(
        self,
        posterior: StanPosterior,
        moments: Moments | None,
        present: Bool[np.ndarray, " rows"],
        mask: Bool[np.ndarray, " rows"],
    ) -> StanPosterior:
        """The program with the rows in the mask, and with places for parameters of all others."""
        rows = self.row_parameters
        if rows is None or moments is None or mask.all():
            return posterior
        return WithAbsentRows(posterior, rows, mask, rows.moments(moments, present, mask))

    # --- between trees and vectors

    def vector(self, theta: Mapping[str, Array]) -> Array:
        """Unconstrained parameters as Stan orders them."""
        return jnp.concatenate([theta[each.name].reshape(-1) for each in self.parameters])

    def free(self, vector: Array) -> dict[str, Array]:
        """The same by name."""
        ends = np.cumsum([each.free for each in self.parameters])[:-1]
        return dict(zip((each.name for each in self.parameters), jnp.split(vector, ends), strict=True))

    def flat(self, params: Mapping[str, Any], lead: int = 0) -> Any:
        """Parameters as numbers in Stan's order, columns first, after so many leading axes."""
        xp = jnp if isinstance(params[self.parameters[0].name], Array) else np
        parts = [xp.asarray(params[each.name]) for each in self.parameters]
        turned = [xp.moveaxis(part, range(lead, part.ndim), range(part.ndim - 1, lead - 1, -1)) for part in parts]
        return xp.concatenate([part.reshape(*part.shape[:lead], -1) for part in turned], axis=-1)

    def named(self, flat: Any, shapes: Mapping[str, tuple[int, ...]] | None = None) -> dict[str, Any]:
        """The other way, of the last axis."""
        return by_name(flat, {each.name: each.shape for each in self.parameters} if shapes is None else shapes)


def _bits(vector: Float[Array, " d"]) -> UInt32[Array, " bits"]:
    return jax.lax.bitcast_convert_type(vector, jnp.uint32).reshape(-1)


def _ask(
    host: Host, posterior: StanPosterior, kind: str, at: Table, along: Table | None = None, scales: Table | None = None
) -> Float[np.ndarray, "n ..."]:
    """One question at all draws."""
    match kind:
        case "density" | "joint":
            return posterior.log_density(at, kind == "density")
        case "gradient":
            values, slopes = posterior.log_density_and_gradient(at)
            return np.concatenate([values[:, None], slopes], axis=1)
        case "product":
            assert along is not None
            assert scales is not None
            return _product(posterior, at, along, scales)
        case "constrain":
            return posterior.constrain(at)
        case _:
            return unconstrained(host, posterior, at)[0]


def unconstrained(host: Host, posterior: StanPosterior, params: Table) -> tuple[Table, str]:
    """Unconstrained parameters of all draws; those that rounding has put beside their support are put back first."""
    thetas, said = posterior.unconstrain(params)
    bad = np.flatnonzero(np.isnan(thetas).any(axis=1))
    if len(bad):
        mended = {name: _mended(values) for name, values in host.named(params[bad]).items()}
        thetas[bad], said = posterior.unconstrain(np.ascontiguousarray(host.flat(mended, 1)))
    return thetas, said


def _mended(values: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n ..."]:
    """Simplexes and unit vectors as float64 has them, from float32."""
    if values.ndim < 2:
        return values
    total, length = values.sum(axis=-1, keepdims=True), np.linalg.norm(values, axis=-1, keepdims=True)
    for size in (total, length):
        values = np.where(np.abs(size - 1) < ROUNDED, values / np.where(size == 0, 1, size), values)
    return values


def _product(posterior: StanPosterior, at: Table, along: Table, scales: Table) -> Table:
    """Second derivatives along a direction: gradients on both sides."""
    length = np.sqrt(np.mean((along / scales) ** 2, axis=1, keepdims=True))
    step = along * (DIFFERENCE / np.where(length > 0, length, 1))
    ahead, behind = np.split(posterior.log_density_and_gradient(np.concatenate([at + step, at - step]))[1], 2)
    with np.errstate(invalid="ignore"):  # where Stan has no gradient it is infinite; methods look for that
        return np.where(length > 0, (ahead - behind) * (length / (2 * DIFFERENCE)), 0)


class StanModel(AbstractModel):
    """A Stan program with data. Made by `pe.from_stan`."""

    rows_factorise: ClassVar[bool] = False
    check_every_change: ClassVar[bool] = True
    gradients_are_expensive: ClassVar[bool] = True

    data: UInt8[Array, " bytes"]
    """Of the present rows, packed."""
    present: Bool[Array, " rows"]
    transforms: dict[str, Transform]
    """Empty: Stan's own are used."""
    scales: Float[Array, " d"]
    """Standard deviations of the unconstrained draws, for finite differences."""
    host: Host = eqx.field(static=True)

    @property
    def calls(self) -> dict[str, int]:
        """How often each of Stan's functions was called, by this model and all that were made of the same program."""
        return dict(self.host.program.calls)

    # --- densities

    def log_density(self, theta: PyTree) -> Float[Array, ""]:
        return _value(self, self.present, self.host.vector(theta)).astype(widest_float())

    def log_density_ratio(self, theta: PyTree, change: Change) -> Float[Array, ""]:
        vector = self.host.vector(theta)
        masks = self.present, self._left(change)
        source, target = (_value(self, mask, vector).astype(widest_float()) for mask in masks)
        return target - source

    def log_joint(self, params: PyTree) -> Float[Array, ""]:
        vector = self.host.vector(self.unconstrain(params))
        return self.host.call("joint", (), self, self.present, vector).astype(widest_float())

    def log_ratio(self, params: PyTree, change: Change) -> Float[Array, ""]:
        return self.log_density_ratio(self.unconstrain(params), change)

    def log_det_jacobian(self, theta: PyTree) -> Float[Array, ""]:
        joint = self.host.call("joint", (), self, self.present, self.host.vector(theta))
        return self.log_density(theta) - joint.astype(widest_float())

    def _left(self, change: Change) -> Bool[Array, " rows"]:
        gone = jnp.zeros_like(self.present).at[change.padded_ids].max(change.counted)
        return self.present & ~gone

    # --- parameters

    def constrain(self, theta: PyTree) -> PyTree:
        vector = self.host.vector(theta)
        return self.host.named(self.host.call("constrain", (self.host.numbers,), self, self.present, vector))

    def unconstrain(self, params: PyTree) -> PyTree:
        flat = self.host.flat({name: jnp.asarray(leaf) for name, leaf in params.items()})
        return self.host.free(self.host.call("unconstrain", (self.host.dimension,), self, self.present, flat))

    def computed(
        self, group: str, params: PyTree, names: Sequence[str]
    ) -> dict[str, Float[np.ndarray, "chain draw ..."]]:
        """Transformed parameters and generated quantities at draws `(chain, draw, …)`, by their names in a group.

        Entries of absent rows are not a number. Random numbers follow from the draws: they are the same every time.
        """
        host, posterior = self.host, self.posterior()
        wanted = {name: host.computed[group][name] for name in names}
        flat = host.flat({name: np.asarray(leaf, float) for name, leaf in params.items()}, 2)
        thetas, _ = unconstrained(host, posterior, np.ascontiguousarray(flat.reshape(-1, host.numbers)))
        transformed = posterior.names("transformed")
        kind = "transformed" if all(each.name in transformed for each in wanted.values()) else "everything"
        values = posterior.constrain(thetas, kind, zlib.crc32(flat.tobytes())).reshape(*flat.shape[:2], -1)
        found = host.named(values, {name: posterior.shapes[name] for name in posterior.names(kind)})
        return {name: self._among_all_rows(found[each.name], each.row_axis) for name, each in wanted.items()}

    def _among_all_rows(self, values: Float[np.ndarray, "..."], row_axis: int | None) -> Float[np.ndarray, "..."]:
        """A variable of the present rows with places for the absent ones."""
        if row_axis is None:
            return values
        present = np.asarray(self.present)
        axis = row_axis + 2
        whole = np.full((*values.shape[:axis], len(present), *values.shape[axis + 1 :]), np.nan)
        np.moveaxis(whole, axis, 0)[present] = np.moveaxis(values, axis, 0)
        return whole

    # --- rows

    def posterior(self) -> StanPosterior:
        """The program with the data of the present rows."""
        own, present = self.host.opened(np.asarray(self.data)), np.asarray(self.present)
        return self.host.with_places(self.host.program.with_data(own.data), own.moments, present, present)

    def elements(self, rows: int) -> int:
        return self.host.dimension  # data are on the host, once for all draws

    def spread(self) -> StanModel:
        if sharding.count() > 1:
            raise InvalidOptionError(
                "Stan's programs run on this process's CPU, not on jax's devices.", "leave out mesh: it brings nothing."
            )
        return self

    def _without(self, left: Bool[Array, " rows"]) -> StanModel:
        present, kept = np.asarray(self.present), np.asarray(left)
        own, rows = self.host.opened(np.asarray(self.data)), self.host.row_parameters
        data = self.host.cut(own.data, np.flatnonzero(kept[present]))
        moments = own.moments if rows is None or own.moments is None else rows.moments(own.moments, present, kept)
        return with_rows(self, jnp.asarray(self.host.closed(data, moments, self.data.size)), left)

    def sampled(
        self,
        seed: int,
        initial: PyTree,
        draws: int,
        warmup: int,
        covariance: Float[np.ndarray, "d d"] | None = None,
        target_acceptance: float = 0.8,
    ) -> OwnSample | None:
        if not self.host.program.samples:
            return None
        host, posterior = self.host, self.posterior()
        flat = host.flat({name: np.asarray(leaf, float) for name, leaf in initial.items()}, 1)
        thetas = unconstrained(host, posterior, np.ascontiguousarray(flat))[0]
        inner = posterior.inner if isinstance(posterior, WithAbsentRows) else posterior
        within = inner.constrain(posterior.of_kept(thetas) if isinstance(posterior, WithAbsentRows) else thetas)
        shapes = {each.name: inner.shapes[each.name] for each in host.parameters}
        starts = [host.named(each, shapes) for each in within]
        inverse_mass = None
        if covariance is not None:
            numbers = host.free(jnp.arange(host.dimension))
            order = np.argsort(np.asarray(ravel_pytree(numbers)[0]))  # jax ravels by name, Stan as declared
            inverse_mass = covariance[np.ix_(order, order)]
            if isinstance(posterior, WithAbsentRows):
                inverse_mass = inverse_mass[np.ix_(posterior.free, posterior.free)]
            inverse_mass = np.ascontiguousarray(inverse_mass)
        own = host.opened(np.asarray(self.data)).data
        made = host.program.sample(own, seed, starts, draws, warmup, inverse_mass, target_acceptance)
        params = made.params
        if isinstance(posterior, WithAbsentRows):
            kept = host.flat(params, 2)
            of_kept, _ = inner.unconstrain(np.ascontiguousarray(kept.reshape(-1, kept.shape[-1])))
            whole = posterior.constrain(posterior.with_absent(of_kept, np.random.default_rng(seed)))
            params = host.named(whole.reshape(*kept.shape[:2], -1))
        return OwnSample(params, made.divergences, made.gradients)

    def _check_functions(self, params: PyTree) -> None:
        wanted = {each.name: each.shape for each in self.host.parameters}
        check_parameters({name: leaf.shape for name, leaf in params.items()}, wanted)

    def _check_additive(self, params: PyTree, change: Change) -> None:
        """The kept data are other data of the same parameters: as many of them, and with the same bounds."""
        without = self.without(change)
        if np.array_equal(np.asarray(without.data), np.asarray(self.data)):
            raise UnsupportedModelError("subset leaves the data as they are, though rows are to go.", f"{OWN_SUBSET}.")
        full, kept = self.posterior(), without.posterior()
        check_same_parameters(full, kept, [each.name for each in self.host.parameters])
        flat = self.host.flat({name: np.asarray(leaf, float) for name, leaf in params.items()})
        theta, _ = unconstrained(self.host, full, flat[None])
        before, after = (self.host.named(each.constrain(theta)) for each in (full, kept))
        moved = [name for name, leaf in before.items() if not np.allclose(leaf, after[name], rtol=1e-9, atol=0)]
        if moved:
            raise NotFactorisedError(
                f"without the removed rows {', '.join(moved)} {'has' if len(moved) == 1 else 'have'} another scale: "
                "bounds, offset or multiplier are computed from the data.",
                "declare it with bounds of its own, and let the likelihood say what is impossible; or refit in Stan.",
            )
        if not np.isfinite(kept.log_density(theta)).all():
            raise NotFactorisedError(
                "the kept rows have no density at a draw that all rows have one at.",
                "check subset: it is called with the places of the rows that stay.",
            )


def check_same_parameters(full: StanPosterior, kept: StanPosterior, names: Sequence[str]) -> None:
    """Removing rows leaves the parameters as they are."""
    other = [name for name in names if full.shapes[name] != kept.shapes.get(name)]
    if other:
        raise NotFactorisedError(
            f"without some rows there are fewer parameters: {', '.join(other)} has an axis of rows.",
            "count them apart from the rows (long format: array[N] int school; theta[school]), so that a parameter "
            "whose rows are gone is left to its prior; or integrate them out.",
        )


@jax.custom_jvp
def _value(model: StanModel, mask: Bool[Array, " rows"], vector: Float[Array, " d"]) -> Float[Array, ""]:
    """The log density of the rows in the mask."""
    return model.host.call("density", (), model, mask, vector)


@jax.custom_jvp
def _value_and_slope(
    model: StanModel, mask: Bool[Array, " rows"], vector: Float[Array, " d"]
) -> Float[Array, " one_and_d"]:
    """The same, followed by its gradient: Stan finds both at once."""
    return model.host.call("gradient", (1 + vector.size,), model, mask, vector)


@_value.defjvp
def _value_along(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    found = _value_and_slope(*primals)
    return found[0], jnp.vdot(found[1:], tangents[2])


@_value_and_slope.defjvp
def _both_along(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    model, mask, vector = primals
    scales = model.scales.astype(vector.dtype)
    found = _value_and_slope(*primals)
    product = model.host.call("product", vector.shape, model, mask, vector, tangents[2], scales)
    return found, jnp.concatenate([jnp.vdot(found[1:], tangents[2])[None], product])
