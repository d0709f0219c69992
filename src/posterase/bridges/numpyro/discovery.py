"""Finding out about a NumPyro model: its sites, which axes of them are rows, which arguments hold the rows.

The plate of an observed site is its rows; without a plate, its one batch axis. Sites in the same plate share rows.
Which arguments hold rows is found by trying: entries of an argument are overwritten, and only the likelihoods of the
same rows may change. So a change takes the rows' values out of the model, and does not only mask them.

What cannot be erased from is refused by the name of its site, plate or argument.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer import init_to_sample

from posterase.bridges.numpyro.model import NumPyroProgram, SiteTransform, Support, as_jax_model
from posterase.bridges.shared.discovery import LAGGED, left_in_memory, overwritten, with_arguments, with_rows_found
from posterase.bridges.shared.traced_model import Argument, BridgedModel, Draw, Params, Site, evaluated
from posterase.errors import AmbiguousRowsError, CoupledRowsError, DifferentModelError, UnsupportedModelError
from posterase.model.transforms import Transform
from posterase.runtime.fast_compilation import NONE, quick_jit
from posterase.runtime.precision import as_jax

CONCRETE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""What jax raises where a model looks at the values of an argument while it is built: `np.unique(group)`, say."""


def discover(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    params: Callable[[Mapping[str, tuple[int, ...]]], Mapping[str, Any]],
    row_dim: Sequence[str],
    shared: Sequence[str],
    given: frozenset[str],
) -> tuple[BridgedModel, tuple[str, ...]]:
    """The model of these arguments: sites, rows and arguments found out; and what is to be said of it.

    `params` gives the parameters of one draw when it is told which names and shapes the model has; `row_dim`
    names plates, `shared` arguments that removed rows may stay in; `given` are the names that there are draws of.
    """
    leaves, structure = jax.tree.flatten((args, kwargs))
    leaves = [_array(leaf) for leaf in leaves]
    arrays = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)}
    names = argument_names(function, args, kwargs)
    callable_model = as_jax_model(function)
    trace = _sites(callable_model, structure, leaves)
    sampled = _check_sites(trace, given)
    shapes = {name: tuple(jnp.shape(site["value"])) for name, site in sampled.items()}
    factors = _row_factors(trace, callable_model, structure, leaves)
    sites, blocks = _rows_of(trace, row_dim, factors)
    one = {name: as_jax(leaf) for name, leaf in params(shapes).items()}
    program = NumPyroProgram(
        function=function,
        structure=structure,
        fixed={i: leaf for i, leaf in enumerate(leaves) if i not in arrays},
        arguments={i: Argument(names[i], None, 0) for i in arrays},
        latents=shapes,
        row_latents=_row_latents(sampled, blocks),
        deterministic=tuple(name for name, site in trace.items() if site["type"] == "deterministic"),
        aggregates={},
        sites=sites,
        blocks=blocks,
        frozen={},
        by_rows=False,
    )
    program, kept = _frozen(program, one, arrays)
    draw = Draw(one, _transforms(program, trace, one, kept))
    densities = evaluated(program, draw, kept)
    program = with_arguments(program, draw, kept, densities, frozenset(shared))
    _check_observed(program, one, kept)
    program, remarks = with_rows_found(program, draw, kept, densities)
    model = BridgedModel(program, kept, draw.transforms)
    return model, (*remarks, *_remarks(model, trace, draw, kept, leaves))


def _remarks(
    model: BridgedModel, trace: dict[str, Any], draw: Draw, leaves: dict[int, Array], given: list[Any]
) -> tuple[str, ...]:
    """What of the removed rows may stay in the model, and what was taken for granted."""
    program = model.program
    without_plate = [
        [site.name for site in program.sites if site.block == block and not trace[site.name]["cond_indep_stack"]]
        for block in range(len(program.blocks))
    ]
    same = tuple(
        f"taken for the same rows, since they have no plate and are as many: {', '.join(alone)}"
        for alone in without_plate
        if len(alone) > 1
    )
    sizes = {size for _, size in program.blocks}
    lists = any(isinstance(leaf, np.ndarray) and sizes & set(leaf.shape) for leaf in given)
    return (*left_in_memory(model, draw, leaves, lists), *same)


def _sites(function: Callable[..., Any], structure: Any, leaves: Sequence[Any]) -> dict[str, Any]:
    """All sites at parameters from the prior.

    They come without values where no value is needed: computing them would compile a program for every operation.
    """
    found: dict[str, Any] = {}

    def call(arrays: dict[int, Array]) -> None:
        flat = [arrays.get(i, leaf) for i, leaf in enumerate(leaves)]
        found.update(_trace(function, *jax.tree.unflatten(structure, flat)))

    try:
        jax.eval_shape(call, {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)})
    except Exception:  # the model looks at values, or is wrong: what is wrong shows with values
        found.clear()
    with_values = any(_is_factor(site) or _depends_on_values(site) for site in found.values())
    return _trace(function, *jax.tree.unflatten(structure, leaves)) if with_values or not found else found


def _depends_on_values(site: Any) -> bool:
    """Whether the support of a parameter is computed."""
    if site["type"] not in ("sample", "param") or site.get("is_observed"):
        return False
    return any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(_support(site)))


def _trace(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    seeded = handlers.seed(function, jax.random.key(0))
    try:
        return handlers.trace(handlers.substitute(seeded, substitute_fn=init_to_sample)).get_trace(*args, **kwargs)
    except Exception as error:  # whatever the model's own code raises
        raise UnsupportedModelError(
            f"the model cannot be called on these arguments as arrays: {(str(error) or repr(error)).splitlines()[0]}",
            "pass the arguments that it was fitted with, as numpy arrays. A model of a table must take its columns as "
            "arguments of their own, or in a dict of arrays; pass that model with these draws, "
            "draws=mcmc.get_samples(group_by_chain=True).",
        ) from error


def _check_sites(trace: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
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
        if (site["type"] == "param" and name in given) or (site["type"] == "sample" and not site["is_observed"])
    }
    for name, site in latent.items():
        of = name.removesuffix("_unobserved")
        if of != name and f"{of}_observed" in trace:
            raise UnsupportedModelError(
                f"site {of!r} has an obs_mask: its missing values are parameters with rows' covariates in their prior.",
                "leave them out: with handlers.mask(mask=known), and any number in the place of missing values. "
                "The posterior of the other parameters is the same: pass that model with these draws, "
                "draws=mcmc.get_samples(group_by_chain=True).",
            )
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


def _row_factors(
    trace: dict[str, Any], function: Callable[..., Any], structure: Any, leaves: Sequence[Any]
) -> frozenset[str]:
    """Factors with a value for each row: they look at the rows' data, or are in a plate of observed sites."""
    factors = {name: _log_factor(site) for name, site in trace.items() if _is_factor(site)}
    found = {
        name
        for name, values in factors.items()
        if any(_changes(name, trace, function, structure, leaves, n) for n in set(values.shape) - {1})
    }
    plates = {frame.name for site in _observed_sites(trace, found).values() for frame in site["cond_indep_stack"]}
    return frozenset(
        {name for name in factors if plates & {frame.name for frame in trace[name]["cond_indep_stack"]}} | found
    )


def _changes(
    factor: str,
    trace: dict[str, Any],
    function: Callable[..., Any],
    structure: Any,
    leaves: Sequence[Any],
    size: int,
) -> bool:
    """Whether a factor changes with the entries of arguments that have this many along an axis."""
    for i, leaf in enumerate(leaves):
        for axis, length in enumerate(leaf.shape if isinstance(leaf, jax.Array) else ()):
            if length == size:
                first = jnp.take(leaf, jnp.array([0]), axis=axis)
                changed = [*leaves[:i], jnp.broadcast_to(first, leaf.shape), *leaves[i + 1 :]]
                other = _trace(function, *jax.tree.unflatten(structure, changed)).get(factor)
                if other is None or not np.array_equal(_log_factor(other), _log_factor(trace[factor]), equal_nan=True):
                    return True
    return False


def _log_factor(site: Any) -> Array:
    return jnp.asarray(site["fn"].log_prob(site["value"]))


def _observed_sites(trace: dict[str, Any], factors: Collection[str]) -> dict[str, Any]:
    """Observed sites, and after them these factors: the first rows are those of observed sites."""
    sites = {name: site for name, site in trace.items() if site["type"] == "sample" and site["is_observed"]}
    values = {name: site for name, site in sites.items() if not _is_factor(site)}
    return {**values, **{name: site for name, site in sites.items() if name in factors}}


def _rows_of(
    trace: dict[str, Any], wanted: Sequence[str], factors: frozenset[str]
) -> tuple[tuple[Site, ...], tuple[tuple[str, int], ...]]:
    """Observed sites, and factors of rows, with their axes of rows; and the axes."""
    blocks: dict[str, int] = {}
    unnamed: dict[int, str] = {}
    found = []
    observed = _observed_sites(trace, factors)
    sums = [name for name, site in trace.items() if _is_factor(site)]
    if not observed and sums:
        raise UnsupportedModelError(
            f"the model has no observed site, only factors ({', '.join(sums)}): no row can be told apart in them.",
            "give numpyro.factor one value per row instead of their sum (leave out .sum()), in the plate of the rows. "
            "The posterior is the same: pass that model with draws=mcmc.get_samples(group_by_chain=True).",
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
                f"row_dim names {plate!r}, which no observed site is in.",
                f"the plates are {', '.join(sorted(known))}.",
            )
    for name, site in observed.items():
        shape = jnp.shape(site["value"])
        batch = jax.lax.broadcast_shapes(site["fn"].batch_shape, shape[: len(shape) - site["fn"].event_dim])
        frames = [frame for frame in site["cond_indep_stack"] if not wanted or frame.name in wanted]
        if len(frames) > 1:
            plates = ", ".join(f"{frame.name!r} ({frame.size})" for frame in frames)
            raise AmbiguousRowsError(
                f"site {name!r} is in {len(frames)} plates: {plates}.",
                f"say which are the rows: {' or '.join(f'row_dim={frame.name!r}' for frame in frames)}.",
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
    kind = _named(site["fn"])
    advice = "write the model with one likelihood per row"
    if kind.startswith("Multivariate"):
        advice = (
            "make the function a parameter, with one likelihood per row: sample f at the places of the rows, and "
            "observe dist.Normal(f, sigma) in a plate of the rows"
        )
    return UnsupportedModelError(
        f"site {name!r} ({kind}) has one likelihood for {values or 'one'} values: no row can be taken out of it.",
        f"{advice}; or write it as a pe.MaskedModel, whose density takes a mask of rows.",
    )


def _named(distribution: Any) -> str:
    """What kind of distribution, inside what broadcasts it."""
    while hasattr(distribution, "base_dist"):
        distribution = distribution.base_dist
    return type(distribution).__name__


def _is_factor(site: Any) -> bool:
    """Whether a site is a `numpyro.factor`."""
    return site["type"] == "sample" and bool(site["infer"].get("is_auxiliary")) and jnp.size(site["value"]) == 0


def _row_latents(sampled: dict[str, Any], blocks: tuple[tuple[str, int], ...]) -> dict[str, tuple[int, int]]:
    dims = [dim for dim, _ in blocks]
    found = {}
    for name, site in sampled.items():
        for frame in site["cond_indep_stack"]:
            if frame.name in dims and site["type"] == "sample":
                found[name] = dims.index(frame.name), frame.dim - site["fn"].event_dim
    return found


def _frozen(program: NumPyroProgram, one: Params, arrays: dict[int, Array]) -> tuple[NumPyroProgram, dict[int, Array]]:
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


def _check_observed(program: NumPyroProgram, one: Params, leaves: dict[int, Array]) -> None:
    """Observed values must come from arguments that hold rows: what else they came from would stay in the model."""
    left = [np.arange(size) < max(1, size // 2) for _, size in program.blocks]
    found = _observed(program, one, overwritten(program, leaves, left))
    for site in program.sites:
        values = np.asarray(found[site.name])
        values, gone = np.moveaxis(values, site.value_axis, 0), ~left[site.block]
        if not np.array_equal(values[gone], np.broadcast_to(values[:1], values[gone].shape), equal_nan=True):
            raise CoupledRowsError(
                f"the values of site {site.name!r} do not come from an argument with one entry per row: they come from "
                "outside the model, or (in a time series) from an argument whose entries are covariates of other rows, "
                "too. They would stay in the model.",
                f"pass observed values as an argument of the model, one entry per row. {LAGGED}",
            )


@quick_jit(NONE)
def _observed(program: NumPyroProgram, one: Params, leaves: dict[int, Array]) -> dict[str, Array]:
    """Values of the observed sites, in the shape of their distributions."""
    trace = program.traced(one, leaves)
    values = {site.name: jnp.asarray(trace[site.name]["value"]) for site in program.sites}
    return {
        name: jnp.broadcast_to(each, np.broadcast_shapes(each.shape, trace[name]["fn"].shape()))
        for name, each in values.items()
    }


@quick_jit(NONE)
def _are_valid(program: NumPyroProgram, one: Params, leaves: dict[int, Array]) -> list[Array]:
    """Whether arguments of distributions are valid, which NumPyro does not check in compiled code."""
    found = [jnp.ones((), bool)]
    for site in program.traced(one, leaves).values():
        each = site["fn"] if site["type"] == "sample" else None
        while each is not None:
            for name, value in each.get_args().items() if each._validate_args else ():
                if not constraints.is_dependent(each.arg_constraints[name]):
                    found.append(jnp.all(each.arg_constraints[name](value)))
            each = getattr(each, "base_dist", None)
    return found


def _transforms(
    program: NumPyroProgram, trace: dict[str, Any], one: Params, leaves: dict[int, Array]
) -> dict[str, Transform]:
    """NumPyro's bijectors, for supports that are the same at parameters of the prior and at a draw."""
    at_draw = trace
    if any(_depends_on_values(trace[name]) for name in program.latents) or not all(_are_valid(program, one, leaves)):
        try:
            at_draw = program.traced(one, leaves)
        except ValueError as error:
            raise DifferentModelError(
                f"the model refuses the first draw: {str(error).splitlines()[0]}",
                "pass the model that the draws were sampled from.",
            ) from error
    found: dict[str, Transform] = {}
    for name in program.latents:
        here, there = (_support(each[name]) for each in (trace, at_draw))
        if not _same_bounds(here, there):
            raise UnsupportedModelError(
                f"the bounds of site {name!r} depend on other sites.",
                "sample it on a fixed support and scale it: numpyro.deterministic(name, low + (high − low) * unit).",
            )
        if here is not constraints.real:
            found[name] = SiteTransform(_mapped(name, here))
    return found


def _same_bounds(one: Any, other: Any) -> bool:
    if str(jax.tree.structure(one)) != str(jax.tree.structure(other)):
        return False
    return all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True))


def _mapped(name: str, support: Any) -> Support:
    """The support with its map from the real line, which not every support has."""
    try:
        return Support(support)
    except NotImplementedError as error:
        raise UnsupportedModelError(
            f"site {name!r} has a support that NumPyro has no map to the real line for: {type(support).__name__}.",
            "reparametrise it (numpyro.infer.reparam has CircularReparam and ProjectedNormalReparam), fit that, and "
            "pass the reparametrised model.",
        ) from error


def _support(site: Any) -> Any:
    return site["fn"].support if site["type"] == "sample" else site["kwargs"].get("constraint", constraints.real)


# --- arguments


def _array(leaf: Any) -> Any:
    """Numeric arrays as jax arrays; everything else as it is."""
    if isinstance(leaf, jax.Array):
        return leaf if leaf.ndim else leaf.item()
    if hasattr(leaf, "to_numpy"):  # pandas, xarray
        leaf = leaf.to_numpy()
    if isinstance(leaf, np.ndarray) and leaf.ndim and leaf.dtype.kind in "fiub":
        return as_jax(leaf)
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
