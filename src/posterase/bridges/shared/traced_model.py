"""A fit's program as posterase sees it: a prior, log-likelihoods row by row, and arguments that hold the rows.

The library that made the fit runs the model; nothing of it is translated. A `Program` says what log densities are at
given parameters and arguments: those of observed sites row by row, all others as the prior. Which arguments hold rows
is for `posterase.bridges.shared.discovery` to find out. A change overwrites the rows in every argument that holds them.
Where the program can be called on a few rows (tried as well), `log_ratio` evaluates no others.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from posterase.data.row_source import row_source
from posterase.errors import DifferentModelError, NotFactorisedError
from posterase.model.base import AbstractModel, coupled_elements, with_rows
from posterase.model.change import Change
from posterase.model.transforms import Transform
from posterase.numerics.densities import batch_size
from posterase.runtime.fast_compilation import NONE, quick_jit
from posterase.runtime.precision import as_jax, cast_floats, in_float64, widest_float
from posterase.runtime.prng import key_of

FILLER = 0.5
"""What takes the place of real values where no row of their axis is left: inside most supports."""

TOGETHER = 1024
"""Draws whose supports are checked together."""

Params = dict[str, Array]

Densities = tuple[np.ndarray, list[np.ndarray]]
"""The log prior, and log-likelihoods of the rows of every block."""


class Site(NamedTuple):
    """An observed site."""

    name: str
    block: int
    axis: int
    """The axis of rows in its log densities, from the end."""
    value_axis: int
    """The axis of rows in its values, from the end."""


class Argument(NamedTuple):
    """A leaf of the model's arguments."""

    name: str
    block: int | None
    """The rows that it holds; None: it holds none."""
    axis: int
    dims: tuple[str | None, ...] = ()
    """Names of its axes, where they are known."""


@dataclasses.dataclass(frozen=True, eq=False)
class Program(abc.ABC):
    """What of a model does not change from request to request."""

    arguments: dict[int, Argument]
    """The arrays that it is called with, by number."""
    latents: dict[str, tuple[int, ...]]
    """Names and shapes of the parameters."""
    row_latents: dict[str, tuple[int, int]]
    """Parameters that belong to single rows: their block, and the axis from the end."""
    deterministic: tuple[str, ...]
    """Variables that it computes from the parameters, and from nothing of the removed rows."""
    aggregates: dict[str, tuple[int, int] | None]
    """Those that are computed from several rows (a mean over them, say): the block and the axis, from the end, of the
    rows that they have values for; None: they have no such axis."""
    sites: tuple[Site, ...]
    blocks: tuple[tuple[str, int], ...]
    """Names and sizes of the axes of rows."""
    frozen: dict[str, Array]
    """Arguments, by name, whose values the model looks at while it is built."""
    by_rows: bool
    """Whether the model can be called on some of the rows."""

    can_predict: ClassVar[bool] = False
    """Whether it draws new values of observed sites."""

    @abc.abstractmethod
    def log_probs(self, params: Params, leaves: Mapping[int, Array]) -> dict[str, Array]:
        """Log densities of every site, observed or not, with an axis for everything that is independent."""

    @abc.abstractmethod
    def values(self, params: Params, leaves: Mapping[int, Array], names: Sequence[str]) -> dict[str, Array]:
        """Values of observed and of deterministic sites."""

    def predict(
        self, key: Key[Array, ""], params: Params, leaves: Mapping[int, Array], names: Sequence[str]
    ) -> dict[str, Array]:
        """New values of observed sites, given the parameters."""
        raise NotImplementedError

    def densities(self, params: Params, leaves: Mapping[int, Array]) -> tuple[Array, list[Array]]:
        """The log prior (with everything that is no row), and log-likelihoods of the rows of every block."""
        found = self.log_probs(params, leaves)
        rows = [jnp.zeros((), widest_float()) for _ in self.blocks]
        for site in self.sites:
            values = jnp.moveaxis(found.pop(site.name), site.axis, 0)
            rows[site.block] += values.reshape(len(values), -1).sum(axis=1, dtype=widest_float())
        prior = sum((jnp.sum(each, dtype=widest_float()) for each in found.values()), jnp.zeros((), widest_float()))
        return prior, rows

    def at_rows(
        self, params: Params, leaves: Mapping[int, Array], places: Sequence[Int[Array, " some"]]
    ) -> tuple[Array, list[Array]]:
        """The same with the model called on some rows of every block."""
        return self.densities(*self.take_rows(params, leaves, places))

    def values_at_rows(
        self, params: Params, leaves: Mapping[int, Array], places: Sequence[Int[Array, " some"]], names: Sequence[str]
    ) -> dict[str, Array]:
        """Values of sites with the model called on some rows of every block."""
        return self.values(*self.take_rows(params, leaves, places), names)

    def take_rows(
        self, params: Params, leaves: Mapping[int, Array], places: Sequence[Int[Array, " some"]]
    ) -> tuple[Params, dict[int, Array]]:
        """Parameters and arguments of some rows of every block."""
        some = dict(leaves)
        for i, argument in self.arguments.items():
            if argument.block is not None:
                some[i] = jnp.take(leaves[i], places[argument.block], axis=argument.axis)
        own = {name: jnp.take(params[name], places[b], axis=axis) for name, (b, axis) in self.row_latents.items()}
        return {**params, **own}, some

    def places(self) -> list[slice]:
        """Where the rows of every block are among all rows."""
        ends = np.cumsum([0, *(size for _, size in self.blocks)])
        return [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]


@functools.partial(jax.jit, static_argnums=0)
def densities_of(program: Program, params: Params, leaves: Mapping[int, Array]) -> tuple[Array, list[Array]]:
    """The same, traced once for all functions that call it: the user's program in Python is slow to trace."""
    return program.densities(params, leaves)


class BridgedModel(AbstractModel):
    """A fit's program and its data. Made by a bridge, `pe.from_numpyro` say."""

    check_every_change: ClassVar[bool] = True

    data: dict[int, Array]
    """Arguments that hold rows, rows first."""
    constants: dict[int, Array]
    """Arguments that hold none."""
    present: Bool[Array, " rows"]
    transforms: dict[str, Transform]
    program: Program = eqx.field(static=True)

    def __init__(self, program: Program, leaves: Mapping[int, Array], transforms: dict[str, Transform]):
        self.program = program
        self.data = {
            i: jnp.moveaxis(leaves[i], argument.axis, 0) if argument.axis else leaves[i]
            for i, argument in program.arguments.items()
            if argument.block is not None
        }
        self.constants = {i: leaves[i] for i, argument in program.arguments.items() if argument.block is None}
        self.present = as_jax(np.ones(sum(size for _, size in program.blocks), bool))
        self.transforms = transforms

    def leaves(self, params: PyTree) -> dict[int, Array]:
        """The model's arguments, real ones in the precision of the parameters."""
        arguments = self.program.arguments
        rows = {i: jnp.moveaxis(leaf, 0, at) if (at := arguments[i].axis) else leaf for i, leaf in self.data.items()}
        return cast_floats({**rows, **self.constants}, jnp.result_type(*jax.tree.leaves(params)))

    def log_joint(self, params: PyTree) -> Float[Array, ""]:
        prior, rows = densities_of(self.program, params, self.leaves(params))
        return prior + jnp.sum(jnp.where(self.present, jnp.concatenate(rows), 0))

    def log_ratio(self, params: PyTree, change: Change) -> Float[Array, ""]:
        return -jnp.sum(jnp.where(change.counted, self.log_rows(params, change.padded_ids), 0))

    def log_rows(self, params: PyTree, rows: Int[Array, " some"]) -> Float[Array, " some"]:
        leaves = self.leaves(params)
        if not self.program.by_rows:
            return jnp.concatenate(densities_of(self.program, params, leaves)[1])[rows]
        places = self.program.places()
        own = [jnp.clip(rows - at.start, 0, at.stop - at.start - 1) for at in places]
        _, values = densities_of(self.program, *self.program.take_rows(params, leaves, own))
        inside = [(rows >= at.start) & (rows < at.stop) for at in places]
        return sum((jnp.where(*each, 0) for each in zip(inside, values, strict=True)), jnp.zeros(rows.shape))

    def elements(self, rows: int) -> int:
        total = len(self.present)
        sizes = sum(leaf.size for leaf in self.data.values()) + 4 * total
        constants = sum(leaf.size for leaf in self.constants.values())
        if not self.program.by_rows:
            return max(sizes + constants, coupled_elements(total) if self.held else 0)
        return math.ceil(sizes * min(1.0, rows / total)) + constants

    @property
    def held(self) -> dict[str, Array]:
        """Arguments of which removed rows' entries stay in the model: other rows, or its shape, depend on them."""
        sizes = {size for _, size in self.program.blocks}
        shared = {self.program.arguments[i].name: leaf for i, leaf in self.constants.items()}
        return {n: leaf for n, leaf in {**shared, **self.program.frozen}.items() if sizes & set(leaf.shape)}

    def observed(self, one: Mapping[str, Any]) -> dict[str, Shaped[np.ndarray, "..."]]:
        """The values of the observed sites; `one` are parameters of some draw, which they do not depend on."""
        params = {name: as_jax(np.asarray(leaf)) for name, leaf in one.items()}
        names = tuple(site.name for site in self.program.sites)
        return {n: np.asarray(each) for n, each in values_of(self.program, params, self.leaves(params), names).items()}

    def computed(self, group: str, params: PyTree, names: Sequence[str]) -> dict[str, Array]:
        """Variables of an ArviZ group at draws `(chain, draw, …)`: entries of absent rows mean nothing.

        `posterior`: what the model computes from its parameters. `log_likelihood`: of observed sites. And
        `posterior_predictive`: new values of them; their random numbers are a function of the draws.
        """
        shape = jax.tree.leaves(params)[0].shape[:2]
        flat = jax.tree.map(lambda leaf: jnp.asarray(leaf).reshape(-1, *leaf.shape[2:]), params)
        of_all = tuple(name for name in names if group != "posterior" or name not in self.program.aggregates)
        keys = (
            jax.random.split(key_of(flat), len(jax.tree.leaves(flat)[0])) if group == "posterior_predictive" else None
        )
        found = _computed(self, flat, keys, group, of_all) if of_all else {}
        over_rows = tuple(name for name in names if name not in of_all)
        if over_rows:
            found |= self._aggregated(flat, over_rows)
        return {name: leaf.reshape(*shape, *leaf.shape[1:]) for name, leaf in found.items()}

    def _aggregated(self, flat: Params, names: tuple[str, ...]) -> dict[str, Array]:
        """What is computed from several rows, with the model called on the present ones only."""
        program, present = self.program, np.asarray(self.present)
        places = [np.flatnonzero(present[at]) for at in program.places()]
        found = _values_at_rows(self, flat, [jnp.asarray(at) for at in places], names)
        for name in names:
            rows = program.aggregates[name]
            if rows is not None:
                block, axis = rows
                values = jnp.moveaxis(found[name], axis, 0)
                whole = jnp.zeros((program.blocks[block][1], *values.shape[1:]), values.dtype)
                found[name] = jnp.moveaxis(whole.at[places[block]].set(values), 0, axis)
        return found

    def computable(self, group: str, stored: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
        """Which variables of a group `computed` can give, of those stored with these shapes of one draw."""
        program = self.program
        if group == "posterior":
            return frozenset(program.deterministic).intersection(stored)
        names = tuple(site.name for site in program.sites if site.name in stored)
        if not names or (group == "posterior_predictive" and not program.can_predict):
            return frozenset()
        one = {name: jax.ShapeDtypeStruct(shape, widest_float()) for name, shape in program.latents.items()}
        key = jax.random.key(0) if group == "posterior_predictive" else None
        try:
            found = jax.eval_shape(lambda params: _group_at(self, params, key, group, names), one)
        except Exception:  # whatever the library raises for a site that it cannot predict by itself
            return frozenset()
        return frozenset(name for name in names if found[name].shape == stored[name])

    def _without(self, left: Bool[Array, " rows"]) -> BridgedModel:
        places = self.program.places()
        data = {i: filled(leaf, left[places[self._block_of(i)]]) for i, leaf in self.data.items()}
        return with_rows(self, data, left)

    def _block_of(self, leaf: int) -> int:
        block = self.program.arguments[leaf].block
        assert block is not None
        return block

    def _check_functions(self, params: PyTree) -> None:
        check_parameters({name: leaf.shape for name, leaf in params.items()}, self.program.latents)

    def _check_additive(self, params: PyTree, change: Change) -> None:
        kept = self.without(change)
        left = np.asarray(kept.present)
        (prior, full), (prior_without, without) = (row_values(model, params) for model in (self, kept))
        tolerance = 1e4 * np.finfo(np.float64).eps * (1 + np.abs(full) + abs(prior))
        if not (np.abs(full - without) <= tolerance)[left].all() or not abs(prior - prior_without) <= tolerance.max():
            raise NotFactorisedError(
                "the likelihood of kept rows, or the prior, changes with the values of the removed rows.",
                "compute means, counts and neighbours of rows outside the model, and pass them as arguments.",
            )


def check_parameters(given: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Draws have the names and shapes of the model's parameters; both are shown where not."""
    if dict(given) == dict(wanted):
        return
    ours, theirs = (
        "".join(f"\n    {n}: {s or 'a number'}" for n, s in sorted(each.items())) for each in (given, wanted)
    )
    raise DifferentModelError(
        f"the draws are not of this model.\n  The draws have:{ours or ' none'}\n  The model has:{theirs or ' none'}",
        "pass the model and the data that these draws were sampled with.",
    )


class Draw(NamedTuple):
    """The parameters of one draw."""

    params: Params
    transforms: dict[str, Transform]

    def supported(self, dtype: Any) -> Params:
        """In another precision: a simplex in float32 is none in float64, until it has been there and back."""
        wide = cast_floats(self.params, dtype)
        return {**wide, **{n: each.forward(each.inverse(wide[n])) for n, each in self.transforms.items()}}


# --- evaluating


def evaluated(
    program: Program, one: Draw, leaves: dict[int, Array], places: Sequence[Int[np.ndarray, " some"]] | None = None
) -> Densities:
    """Densities at one draw, in float64 where the model can."""
    at = None if places is None else [as_jax(each) for each in places]

    def call(wide: bool) -> tuple[Array, list[Array]]:
        return _densities(program, one, leaves, wide) if at is None else _densities_at(program, one, leaves, at, wide)

    (prior, rows), _ = in_float64(call, "the model")
    return np.asarray(prior), [np.asarray(each) for each in rows]


def deterministic_values(
    program: Program, one: Draw, leaves: dict[int, Array], places: Sequence[Int[np.ndarray, " some"]] | None = None
) -> dict[str, np.ndarray]:
    """What the program computes from the parameters of one draw, of all rows or of some, in float64 where it can."""
    at = None if places is None else [as_jax(each) for each in places]

    def call(wide: bool) -> dict[str, Array]:
        return _deterministic(program, one, leaves, at, wide)

    return {name: np.asarray(leaf) for name, leaf in in_float64(call, "the model")[0].items()}


def row_values(model: BridgedModel, params: Params) -> tuple[float, Float[np.ndarray, " rows"]]:
    """The log prior, and the log-likelihood of every row, in float64."""
    prior, rows = evaluated(model.program, Draw(params, model.transforms), model.leaves(params))
    return float(prior), np.concatenate(rows)


@quick_jit(NONE)
def values_of(program: Program, one: Params, leaves: dict[int, Array], names: tuple[str, ...]) -> dict[str, Array]:
    """`program.values`, compiled as a whole."""
    return {name: jnp.asarray(value) for name, value in program.values(one, leaves, names).items()}


@quick_jit(NONE)
def log_probs_of(program: Program, one: Params, leaves: dict[int, Array]) -> dict[str, Array]:
    """`program.log_probs`, compiled as a whole."""
    return program.log_probs(one, leaves)


def _widened(one: Draw, leaves: dict[int, Array], wide: bool) -> tuple[Params, dict[int, Array]]:
    """Parameters and arguments in float64; or the sums only."""
    return one.supported(jnp.float64 if wide else widest_float()), cast_floats(leaves, jnp.float64) if wide else leaves


@quick_jit(NONE)
def _densities(program: Program, one: Draw, leaves: dict[int, Array], wide: bool) -> tuple[Array, list[Array]]:
    return program.densities(*_widened(one, leaves, wide))


@quick_jit(NONE)
def _densities_at(
    program: Program, one: Draw, leaves: dict[int, Array], places: list[Array], wide: bool
) -> tuple[Array, list[Array]]:
    return program.at_rows(*_widened(one, leaves, wide), places)


@quick_jit(NONE)
def _deterministic(
    program: Program, one: Draw, leaves: dict[int, Array], places: list[Array] | None, wide: bool
) -> dict[str, Array]:
    values, data = _widened(one, leaves, wide)
    if places is None:
        return program.values(values, data, program.deterministic)
    return program.values_at_rows(values, data, places, program.deterministic)


def _group_at(
    model: BridgedModel, one: Params, key: Key[Array, ""] | None, group: str, names: tuple[str, ...]
) -> dict[str, Array]:
    """Variables of a group at one draw."""
    leaves = model.leaves(one)
    if key is not None:
        return model.program.predict(key, one, leaves, names)
    if group == "log_likelihood":
        found = model.program.log_probs(one, leaves)
        return {name: found[name] for name in names}
    return model.program.values(one, leaves, names)


@quick_jit()
def _computed(
    model: BridgedModel, flat: Params, keys: Key[Array, " n"] | None, group: str, names: tuple[str, ...]
) -> dict[str, Array]:
    n = jax.tree.leaves(flat)[0].shape[0]
    return jax.lax.map(
        lambda at: _group_at(model, at[0], at[1], group, names),
        (flat, keys),
        batch_size=batch_size(model.elements(len(model.present)), n),
    )


@quick_jit()
def _values_at_rows(model: BridgedModel, flat: Params, places: list[Array], names: tuple[str, ...]) -> dict[str, Array]:
    def at(one: Params) -> dict[str, Array]:
        return model.program.values_at_rows(one, model.leaves(one), places, names)

    n = jax.tree.leaves(flat)[0].shape[0]
    return jax.lax.map(at, flat, batch_size=batch_size(model.elements(len(model.present)), n))


def at_all_draws(
    function: Callable[[Array], Array], x: Shaped[np.ndarray, "chain draw ..."]
) -> Shaped[np.ndarray, "chain draw ..."]:
    """A compiled function of some draws at all of them, always as many at a time, so that one shape is compiled."""
    flat = np.asarray(x).reshape(-1, *x.shape[2:])
    found = []
    for start in range(0, len(flat), TOGETHER):
        part = flat[start : start + TOGETHER]
        padded = np.concatenate([part, np.repeat(part[-1:], TOGETHER - len(part), axis=0)])
        found.append(np.asarray(function(as_jax(padded)))[: len(part)])
    values = np.concatenate(found)
    return values.reshape(*x.shape[:2], *values.shape[1:])


@jax.jit
def filled(leaf: Array, left: Bool[Array, " rows"]) -> Array:
    """An argument, rows first, with a copy of a row that is left in the place of every row that is not."""
    empty = FILLER if jnp.issubdtype(leaf.dtype, jnp.floating) else 0
    return jnp.where(left.any(), row_source(leaf).without(left), jnp.full_like(leaf, empty))
