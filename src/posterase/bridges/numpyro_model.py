"""A NumPyro model as posterase sees one: its sites, which axes of them are rows, which arguments hold the rows.

NumPyro runs the model; nothing of it is translated. Latent sites are substituted, and log densities are read from the
trace: those of observed sites row by row, all others as the prior. Masks and scales (`handlers.mask`, `handlers.scale`)
are in what the trace says. Supports and their Jacobians are NumPyro's own (`biject_to`).

**Rows.** The plate of an observed site is its rows; without a plate, its one batch axis. Sites in the same plate share
rows. Which arguments hold rows is found by trying: entries of an argument are overwritten, and only the likelihoods of
the same rows may change. So a removal takes the rows' values out of the model, and does not only mask them.

**Removed rows alone.** Where the model can be called on a few rows (tried as well), `log_removed` evaluates no others.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.infer import init_to_sample
from numpyro.infer.util import compute_log_probs

from posterase.errors import (
    AmbiguousRowsError,
    CoupledRowsError,
    DifferentModelError,
    NotFactorisedError,
    UnsupportedModelError,
)
from posterase.model import SMALLEST_BUCKET, AbstractModel, Removal, coupled_elements, overwrite
from posterase.precision import cast_floats, in_float64, numpy_as_jax, widest_float
from posterase.transforms import Transform

CONCRETE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""What jax raises where a model looks at the values of an argument while it is built: `np.unique(group)`, say."""

FILLER = 0.5
"""What takes the place of real values where no row of their axis is left: inside most supports."""

Params = dict[str, Array]


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


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """What of a model does not change from request to request."""

    function: Callable[..., Any]
    structure: Any
    """How leaves make up args and kwargs."""
    fixed: dict[int, Any]
    """Leaves that are no arrays, or that the model must see the values of when it is built."""
    arguments: dict[int, Argument]
    """All other leaves."""
    latents: dict[str, tuple[int, ...]]
    """Names and shapes of the parameters."""
    row_latents: dict[str, tuple[int, int]]
    """Parameters that belong to single rows: their block, and the axis from the end."""
    deterministic: tuple[str, ...]
    sites: tuple[Site, ...]
    blocks: tuple[tuple[str, int], ...]
    """Names and sizes of the axes of rows."""
    frozen: dict[str, Array] = dataclasses.field(default_factory=dict)
    """Arguments, by name, whose values the model looks at while it is built."""
    by_rows: bool = False
    """Whether the model can be called on some of the rows."""

    def call(self, params: Params, leaves: Mapping[int, Array]) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
        """The model with its parameters put in, and the arguments to call it with."""
        flat = [self.fixed[i] if i in self.fixed else leaves[i] for i in range(self.structure.num_leaves)]
        args, kwargs = jax.tree.unflatten(self.structure, flat)
        return handlers.substitute(handlers.seed(self.function, jax.random.key(0)), data=params), args, kwargs

    def traced(self, params: Params, leaves: Mapping[int, Array]) -> Any:
        """All sites."""
        called, args, kwargs = self.call(params, leaves)
        return handlers.trace(called).get_trace(*args, **kwargs)

    def densities(self, params: Params, leaves: Mapping[int, Array]) -> tuple[Array, list[Array]]:
        """The log prior (with everything that is no row), and log-likelihoods of the rows of every block."""
        called, args, kwargs = self.call(params, leaves)
        found, _ = compute_log_probs(called, args, kwargs, {}, sum_log_prob=False)
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
        some = dict(leaves)
        for i, argument in self.arguments.items():
            if argument.block is not None:
                some[i] = jnp.take(leaves[i], places[argument.block], axis=argument.axis)
        picked = {name: jnp.take(params[name], places[b], axis=axis) for name, (b, axis) in self.row_latents.items()}
        return self.densities({**params, **picked}, some)

    def places(self) -> list[slice]:
        """Where the rows of every block are among all rows."""
        ends = np.cumsum([0, *(size for _, size in self.blocks)])
        return [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]


class SiteTransform(Transform):
    """NumPyro's own map onto a site's support."""

    site: _Held = eqx.field(static=True)

    def forward(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.site.bijector(u)

    def inverse(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.site.bijector._inverse(x)

    def log_det_jacobian(self, u: Float[Array, "..."]) -> Float[Array, ""]:
        return jnp.sum(self.site.bijector.log_abs_det_jacobian(u, self.site.bijector(u)))

    def contains(self, x: Float[np.ndarray, "chain draw ..."]) -> Bool[np.ndarray, "chain draw ..."]:
        inside: Any = np.asarray(self.site.support(jnp.asarray(x)))
        free: Any = np.asarray(jnp.isfinite(self.site.bijector._inverse(jnp.asarray(x))))
        free = free.reshape(*free.shape[: inside.ndim], -1).all(axis=-1)
        return inside & free if free.shape == inside.shape else inside

    def describe(self) -> str:
        return f"in the support of its site: {self.site.support}"


class _Held:
    """A site's support and bijector, told apart by identity: NumPyro's are not hashable."""

    def __init__(self, support: constraints.Constraint):
        self.support, self.bijector = support, biject_to(support)


class NumPyroModel(AbstractModel):
    """A NumPyro model and its data. Made by `pe.from_numpyro`."""

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
            i: jnp.moveaxis(leaves[i], argument.axis, 0)
            for i, argument in program.arguments.items()
            if argument.block is not None
        }
        self.constants = {i: leaves[i] for i, argument in program.arguments.items() if argument.block is None}
        self.present = jnp.ones(sum(size for _, size in program.blocks), bool)
        self.transforms = transforms

    def leaves(self, params: PyTree) -> dict[int, Array]:
        """The model's arguments, real ones in the precision of the parameters."""
        arguments = self.program.arguments
        rows = {i: jnp.moveaxis(leaf, 0, arguments[i].axis) for i, leaf in self.data.items()}
        return cast_floats({**rows, **self.constants}, jnp.result_type(*jax.tree.leaves(params)))

    def log_joint(self, params: PyTree) -> Float[Array, ""]:
        prior, rows = self.program.densities(params, self.leaves(params))
        return prior + jnp.sum(jnp.where(self.present, jnp.concatenate(rows), 0))

    def log_removed(self, params: PyTree, removal: Removal) -> Float[Array, ""]:
        leaves = self.leaves(params)
        if not self.program.by_rows:
            _, rows = self.program.densities(params, leaves)
            return jnp.sum(jnp.where(removal.counted, jnp.concatenate(rows)[removal.rows], 0))
        places = self.program.places()
        inside = [(removal.rows >= at.start) & (removal.rows < at.stop) for at in places]
        own = [jnp.clip(removal.rows - at.start, 0, at.stop - at.start - 1) for at in places]
        _, rows = self.program.at_rows(params, leaves, own)
        counted = [jnp.where(removal.counted & mine, values, 0) for mine, values in zip(inside, rows, strict=True)]
        return jnp.sum(jnp.stack(counted))

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
        params = {name: jnp.asarray(leaf) for name, leaf in one.items()}
        trace = self.program.traced(params, self.leaves(params))
        return {site.name: np.asarray(trace[site.name]["value"]) for site in self.program.sites}

    def computed(self, params: PyTree) -> dict[str, Array]:
        """Deterministic sites at draws `(chain, draw, …)`."""
        names = self.program.deterministic
        leaves = jax.tree.leaves(params)
        shape = leaves[0].shape[:2]
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), params)
        values = _deterministic(self, flat, names)
        return {name: leaf.reshape(*shape, *leaf.shape[1:]) for name, leaf in values.items()}

    def _overwritten(self, left: Bool[Array, " rows"]) -> PyTree:
        places = self.program.places()
        return {i: _filled(leaf, left[places[self._block_of(i)]]) for i, leaf in self.data.items()}

    def _block_of(self, leaf: int) -> int:
        block = self.program.arguments[leaf].block
        assert block is not None
        return block

    def _check_functions(self, params: PyTree) -> None:
        check_parameters({name: leaf.shape for name, leaf in params.items()}, self.program.latents)

    def _check_additive(self, params: PyTree, removal: Removal) -> None:
        kept = self.without(removal)
        left = np.asarray(kept.present)
        (prior, full), (prior_without, without) = (_values(model, params) for model in (self, kept))
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


# --- finding out about a model


def discover(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    params: Callable[[Mapping[str, tuple[int, ...]]], Mapping[str, Any]],
    rows: Sequence[str],
    shared: Sequence[str],
) -> NumPyroModel:
    """The model of these arguments: sites, rows and arguments found out.

    `params` gives the parameters of one draw when it is told which names and shapes the model has; `rows` names
    plates, `shared` arguments that removed rows may stay in.
    """
    leaves, structure = jax.tree.flatten((args, kwargs))
    leaves = [_array(leaf) for leaf in leaves]
    arrays = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)}
    names = argument_names(function, args, kwargs)
    function = numpy_as_jax(function)
    trace = _trace(function, *jax.tree.unflatten(structure, leaves))
    sampled = _check_sites(trace)
    shapes = {name: tuple(jnp.shape(site["value"])) for name, site in sampled.items()}
    sites, blocks = _rows_of(trace, rows)
    one = {name: jnp.asarray(leaf) for name, leaf in params(shapes).items()}
    program = Program(
        function=function,
        structure=structure,
        fixed={i: leaf for i, leaf in enumerate(leaves) if i not in arrays},
        arguments={i: Argument(names[i], None, 0) for i in arrays},
        latents=shapes,
        row_latents=_row_latents(sampled, blocks),
        deterministic=tuple(name for name, site in trace.items() if site["type"] == "deterministic"),
        sites=sites,
        blocks=blocks,
    )
    program, kept = _frozen(program, one, arrays)
    draw = Draw(one, _transforms(program, one, kept))
    program = _with_arguments(program, draw, kept, frozenset(shared))
    _check_observed(program, one, kept)
    _check_factors(program, trace)
    program = dataclasses.replace(program, by_rows=_by_rows(program, draw, kept))
    return NumPyroModel(program, kept, draw.transforms)


def _trace(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    seeded = handlers.seed(function, jax.random.key(0))
    try:
        return handlers.trace(handlers.substitute(seeded, substitute_fn=init_to_sample)).get_trace(*args, **kwargs)
    except TypeError as error:
        raise UnsupportedModelError(
            f"the model cannot be called on these arguments: {str(error).splitlines()[0]}",
            "pass the arguments that it was fitted with: pe.from_numpyro(mcmc, *args, **kwargs).",
        ) from error


def _check_sites(trace: dict[str, Any]) -> dict[str, Any]:
    """The sites that are parameters; refuse by name what cannot be erased from."""
    for name, site in trace.items():
        if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0]):
            raise UnsupportedModelError(
                f"plate {name!r} draws a subsample of {site['args'][1]} of its {site['args'][0]} rows: its density is "
                "an estimate, with other rows at every call.",
                "pass the model without subsample_size; its posterior is the one that was aimed at.",
            )
    latent = {
        name: site
        for name, site in trace.items()
        if site["type"] == "param" or (site["type"] == "sample" and not site["is_observed"])
    }
    for name, site in latent.items():
        if site["type"] == "sample" and site["fn"].support.is_discrete:
            raise UnsupportedModelError(
                f"site {name!r} is discrete ({_named(site['fn'])}) and not observed: it cannot be moved along "
                "gradients.",
                "sum it out of the model: enumerate its values, in dist.MixtureSameFamily or with logsumexp, and fit "
                "that.",
            )
    if not latent:
        raise UnsupportedModelError("the model has no parameters.", "pass the model that the draws were sampled from.")
    return latent


def _rows_of(trace: dict[str, Any], wanted: Sequence[str]) -> tuple[tuple[Site, ...], tuple[tuple[str, int], ...]]:
    """Observed sites with their axes of rows, and the axes."""
    blocks: dict[str, int] = {}
    unnamed: dict[int, str] = {}
    found = []
    observed = {n: s for n, s in trace.items() if s["type"] == "sample" and s["is_observed"] and not _is_factor(s)}
    factors = [name for name, site in trace.items() if site["type"] == "sample" and _is_factor(site)]
    if not observed and factors:
        raise UnsupportedModelError(
            f"the model has no observed site, only factors ({', '.join(factors)}): no row can be told apart in them.",
            "write the likelihood as observed sites: numpyro.sample(name, distribution, obs=values), in a plate.",
        )
    if not observed:
        raise UnsupportedModelError(
            "the model has no observed site.",
            "pass the data that it was fitted with: pe.from_numpyro(mcmc, *args, **kwargs).",
        )
    known = {frame.name for site in observed.values() for frame in site["cond_indep_stack"]}
    for plate in wanted:
        if plate not in known:
            raise AmbiguousRowsError(
                f"rows names {plate!r}, which no observed site is in.", f"the plates are {', '.join(sorted(known))}."
            )
    for name, site in observed.items():
        shape = jnp.shape(site["value"])
        batch = jax.lax.broadcast_shapes(site["fn"].batch_shape, shape[: len(shape) - site["fn"].event_dim])
        frames = [frame for frame in site["cond_indep_stack"] if not wanted or frame.name in wanted]
        if len(frames) > 1:
            plates = ", ".join(f"{frame.name!r} ({frame.size})" for frame in frames)
            raise AmbiguousRowsError(
                f"site {name!r} is in {len(frames)} plates: {plates}.",
                f"say which are the rows: {' or '.join(f'rows={frame.name!r}' for frame in frames)}.",
            )
        if frames:
            dim, axis, size = frames[0].name, frames[0].dim, frames[0].size
        elif wanted or len(batch) != 1:
            raise _no_rows(name, site, batch, wanted)
        else:
            axis, size = -1, batch[0]
            dim = unnamed.setdefault(size, f"{name}_dim_0")
        blocks.setdefault(dim, size)
        found.append(Site(name, list(blocks).index(dim), axis, axis - site["fn"].event_dim))
    return tuple(found), tuple(blocks.items())


def _no_rows(name: str, site: Any, batch: tuple[int, ...], wanted: Sequence[str]) -> Exception:
    values = "×".join(map(str, jnp.shape(site["value"])))
    if wanted:
        return AmbiguousRowsError(
            f"site {name!r} is not in {', '.join(map(repr, wanted))}.", "name a plate for every observed site."
        )
    if batch:
        return AmbiguousRowsError(
            f"site {name!r} has the shape {batch} and no plate: which axis is the rows?",
            "put it in a plate: with numpyro.plate('person', n).",
        )
    return UnsupportedModelError(
        f"site {name!r} ({_named(site['fn'])}) has one likelihood for {values or 'one'} values: no row can be "
        "taken out of it.",
        "write the model with one likelihood a row, or as a pe.MaskedModel, whose density takes a mask of rows.",
    )


def _named(distribution: Any) -> str:
    """What kind of distribution, inside what broadcasts it."""
    while hasattr(distribution, "base_dist"):
        distribution = distribution.base_dist
    return type(distribution).__name__


def _is_factor(site: Any) -> bool:
    return bool(site["infer"].get("is_auxiliary")) and jnp.size(site["value"]) == 0


def _row_latents(sampled: dict[str, Any], blocks: tuple[tuple[str, int], ...]) -> dict[str, tuple[int, int]]:
    dims = [dim for dim, _ in blocks]
    found = {}
    for name, site in sampled.items():
        for frame in site["cond_indep_stack"]:
            if frame.name in dims and site["type"] == "sample":
                found[name] = dims.index(frame.name), frame.dim - site["fn"].event_dim
    return found


def _frozen(program: Program, one: Params, arrays: dict[int, Array]) -> tuple[Program, dict[int, Array]]:
    """Leave as they are those arguments whose values decide what the model is: it could not be compiled without."""
    whole = [i for i in arrays if not jnp.issubdtype(arrays[i].dtype, jnp.floating)]
    error: Exception | None = None
    for freeze in ([], *([i] for i in whole), whole):
        arguments = {i: each for i, each in program.arguments.items() if i not in freeze}
        fixed = {**program.fixed, **{i: arrays[i] for i in freeze}}
        frozen = {program.arguments[i].name: arrays[i] for i in freeze}
        tried = dataclasses.replace(program, arguments=arguments, fixed=fixed, frozen=frozen)
        left = {i: leaf for i, leaf in arrays.items() if i not in freeze}
        try:
            jax.eval_shape(tried.densities, one, left)
        except CONCRETE as failed:
            error = failed
            continue
        return tried, left
    assert error is not None
    raise UnsupportedModelError(
        f"the model looks at the values of its data while it is built: {str(error).splitlines()[0]}",
        "write it in jax.numpy, and pass sizes and groups as arguments of their own.",
    ) from error


def _with_arguments(program: Program, one: Draw, leaves: dict[int, Array], shared: frozenset[str]) -> Program:
    """Find which arguments hold rows, by overwriting entries and looking whose likelihood changes."""
    unknown = shared - {argument.name for argument in program.arguments.values()}
    if unknown:
        names = ", ".join(argument.name for argument in program.arguments.values())
        raise UnsupportedModelError(f"shared names {sorted(unknown)[0]!r}.", f"the arguments are {names}.")
    before = _evaluated(program, one, leaves)
    arguments = dict(program.arguments)
    for i, argument in program.arguments.items():
        if argument.name in shared:
            continue
        candidates = [
            (block, axis)
            for axis, length in enumerate(leaves[i].shape)
            for block, (_, size) in enumerate(program.blocks)
            if length == size
        ]
        for block, axis in candidates:
            if _holds_rows(program, one, leaves, i, block, axis, before):
                arguments[i] = Argument(argument.name, block, axis)
                break
        else:
            if candidates:
                raise CoupledRowsError(
                    f"the argument {argument.name!r} has an entry for each row, and the entry of one row changes the "
                    "likelihood of others, or the prior.",
                    "compute what is made of several rows (means, distances, the row before) outside the model. Where "
                    f"removed rows' entries may stay in the model, as the places of a Gaussian process may, say so: "
                    f"shared={argument.name!r}; the verdict will name it.",
                )
    return dataclasses.replace(program, arguments=arguments)


def _holds_rows(
    program: Program,
    one: Draw,
    leaves: dict[int, Array],
    leaf: int,
    block: int,
    axis: int,
    before: tuple[np.ndarray, list[np.ndarray]],
) -> bool:
    """Whether overwriting entries of an argument changes the likelihoods of the same rows, and of no others."""
    size = program.blocks[block][1]
    rng = np.random.default_rng(0)
    for _ in range(2):
        left = rng.permutation(size) < max(1, size // 2)
        filled = jnp.moveaxis(_filled(jnp.moveaxis(leaves[leaf], axis, 0), jnp.asarray(left)), 0, axis)
        prior, rows = _evaluated(program, one, {**leaves, leaf: filled})
        same = [np.isclose(a, b, rtol=1e-9, atol=1e-9, equal_nan=True) for a, b in zip(rows, before[1], strict=True)]
        same[block] = same[block] | ~left
        if not all(each.all() for each in same) or not np.isclose(prior, before[0], rtol=1e-9, atol=1e-9):
            return False
    return True


def _check_observed(program: Program, one: Params, leaves: dict[int, Array]) -> None:
    """Observed values must come from arguments that hold rows: what else they came from would stay in the model."""
    sizes = dict(program.blocks)
    left = {dim: np.arange(size) < max(1, size // 2) for dim, size in sizes.items()}
    filled = dict(leaves)
    for i, argument in program.arguments.items():
        if argument.block is not None:
            mask = jnp.asarray(left[program.blocks[argument.block][0]])
            moved = _filled(jnp.moveaxis(leaves[i], argument.axis, 0), mask)
            filled[i] = jnp.moveaxis(moved, 0, argument.axis)
    trace = program.traced(one, filled)
    for site in program.sites:
        values = np.moveaxis(np.asarray(trace[site.name]["value"]), site.value_axis, 0)
        rows = left[program.blocks[site.block][0]]
        if not np.array_equal(values[~rows], np.broadcast_to(values[:1], values[~rows].shape), equal_nan=True):
            raise CoupledRowsError(
                f"the values of site {site.name!r} do not come from an argument with one entry a row: from outside "
                "the model, or (in a time series) from an argument whose entries are covariates of other rows. They "
                "would stay in the model.",
                "pass observed values as an argument of the model, one entry a row; a time series whose values are "
                "covariates of later ones as a pe.MaskedModel.",
            )


def _check_factors(program: Program, trace: dict[str, Any]) -> None:
    """A factor is part of the prior, if it has nothing to do with rows; `_with_arguments` has made sure of that."""
    for name, site in trace.items():
        if site["type"] == "sample" and site["is_observed"] and _is_factor(site):
            plates = [frame.name for frame in site["cond_indep_stack"] if frame.name in dict(program.blocks)]
            if plates:
                raise UnsupportedModelError(
                    f"the factor {name!r} is in the plate of the rows, {plates[0]!r}, and has no observed value.",
                    "write it as an observed site: numpyro.sample(name, distribution, obs=values).",
                )


def _by_rows(program: Program, one: Draw, leaves: dict[int, Array]) -> bool:
    """Whether the model, called on some rows, gives what it gives for them among all rows."""
    _, whole = _evaluated(program, one, leaves)
    rng = np.random.default_rng(0)
    for some in (SMALLEST_BUCKET, 2 * SMALLEST_BUCKET + 1):
        places = [rng.integers(size, size=some) for _, size in program.blocks]
        try:
            _, rows = _evaluated(program, one, leaves, places)
        except Exception:  # whatever the model's own code raises on fewer rows: then it is called on all of them
            return False
        for values, at, among in zip(rows, places, whole, strict=True):
            if values.shape != at.shape or not np.allclose(values, among[at], rtol=1e-9, atol=1e-9, equal_nan=True):
                return False
    return True


def _transforms(program: Program, one: Params, leaves: dict[int, Array]) -> dict[str, Transform]:
    """NumPyro's bijectors, for supports that are always the same."""
    trace = program.traced(one, leaves)
    other = {name: leaf * 1.25 for name, leaf in one.items()}
    elsewhere = program.traced(other, leaves)
    found: dict[str, Transform] = {}
    for name in program.latents:
        here, there = (_support(each[name]) for each in (trace, elsewhere))
        if not all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (here, there)), strict=True)):
            raise UnsupportedModelError(
                f"the bounds of site {name!r} depend on other sites.",
                "sample it on a fixed support and scale it: numpyro.deterministic(name, low + (high − low) * unit).",
            )
        if here is not constraints.real:
            found[name] = SiteTransform(_Held(here))
    return found


def _support(site: Any) -> Any:
    return site["fn"].support if site["type"] == "sample" else site["kwargs"].get("constraint", constraints.real)


# --- evaluating


def _evaluated(
    program: Program, one: Draw, leaves: dict[int, Array], places: Sequence[Int[np.ndarray, " some"]] | None = None
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Densities at one draw, in float64 where the model can."""

    def call(wide: bool) -> tuple[Array, list[Array]]:
        values = one.supported(jnp.float64 if wide else widest_float())
        data = cast_floats(leaves, jnp.float64) if wide else leaves
        if places is None:
            return _densities(program, values, data)
        return _densities_at(program, values, data, [jnp.asarray(at) for at in places])

    (prior, rows), _ = in_float64(call, "the model")
    return np.asarray(prior), [np.asarray(each) for each in rows]


def _values(model: NumPyroModel, params: Params) -> tuple[float, Float[np.ndarray, " rows"]]:
    prior, rows = _evaluated(model.program, Draw(params, model.transforms), model.leaves(params))
    return float(prior), np.concatenate(rows)


@eqx.filter_jit
def _densities(program: Program, one: Params, leaves: dict[int, Array]) -> tuple[Array, list[Array]]:
    return program.densities(one, leaves)


@eqx.filter_jit
def _densities_at(
    program: Program, one: Params, leaves: dict[int, Array], places: list[Array]
) -> tuple[Array, list[Array]]:
    return program.at_rows(one, leaves, places)


@eqx.filter_jit
def _deterministic(model: NumPyroModel, flat: Params, names: tuple[str, ...]) -> dict[str, Array]:
    def at(one: Params) -> dict[str, Array]:
        trace = model.program.traced(one, model.leaves(one))
        return {name: trace[name]["value"] for name in names}

    return jax.lax.map(at, flat, batch_size=64)


@jax.jit
def _filled(leaf: Array, left: Bool[Array, " rows"]) -> Array:
    empty = FILLER if jnp.issubdtype(leaf.dtype, jnp.floating) else 0
    return jnp.where(left.any(), overwrite(leaf, left), jnp.full_like(leaf, empty))


# --- arguments


def _array(leaf: Any) -> Any:
    """Numeric arrays as jax arrays; everything else as it is."""
    if isinstance(leaf, jax.Array):
        return leaf if leaf.ndim else leaf.item()
    if hasattr(leaf, "to_numpy"):  # pandas, xarray
        leaf = leaf.to_numpy()
    if isinstance(leaf, np.ndarray) and leaf.ndim and leaf.dtype.kind in "fiub":
        # A copy: jax may remember the array itself in another precision (see `posterase.precision`).
        return jnp.asarray(np.array(leaf, jax.dtypes.canonicalize_dtype(leaf.dtype)))
    return leaf


def argument_names(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Names of all leaves of the arguments, as the model's author named them."""
    inner: Any = function
    while getattr(inner, "fn", None) is not None:  # a model inside handlers
        inner = inner.fn
    try:
        positional = list(inspect.signature(inner).parameters)
    except (TypeError, ValueError):
        positional = []
    names = []
    for path, _ in jax.tree_util.tree_leaves_with_path((args, kwargs)):
        root: Any = path[1].idx if isinstance(path[1], jax.tree_util.SequenceKey) else path[1].key
        if isinstance(root, int):
            root = positional[root] if root < len(positional) else f"argument {root}"
        rest = jax.tree_util.keystr(path[2:], simple=True, separator=".")
        names.append(f"{root}.{rest}" if rest else str(root))
    return names
