"""A PyMC model as a `Program`: its log densities, through PyTensor's JAX backend, as a function of its arrays too.

PyMC writes the graph of every variable's log density. Each array in it, `pm.Data` or a plain numpy array, becomes an
argument of the compiled function, so that rows can be taken out of all of them. Transforms are PyMC's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytensor.tensor as pt
from jaxtyping import Array, Bool, Float
from pymc.model.transform.conditioning import remove_value_transforms
from pytensor.compile.mode import Mode, get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.shape import SpecifyShape

from posterase.bridges.discovery import left_in_memory, with_arguments, with_rows_found
from posterase.bridges.programs import Argument, BridgedModel, Draw, Params, Program, Site
from posterase.errors import AmbiguousRowsError, UnsupportedModelError
from posterase.transforms import Transform

IN_PYTHON = Mode(linker="py", optimizer=None)
"""How to evaluate rows: PyTensor writes what it compiles with Numba to its cache, and constants with it."""

INSTEAD = "store log-likelihoods (pm.compute_log_likelihood(idata)) and reweight: pe.from_arviz(idata)."


@dataclasses.dataclass(frozen=True, eq=False)
class PyMCProgram(Program):
    """A function of parameters and arrays, compiled from PyMC's graphs."""

    function: Callable[..., Sequence[Array]]
    densities_of: tuple[str, ...]
    """Names of the variables whose log densities it returns first."""
    values_of: tuple[str, ...]
    """Names of the variables whose values follow."""

    def log_probs(self, params: Params, leaves: Mapping[int, Array]) -> dict[str, Array]:
        return dict(zip(self.densities_of, self._call(params, leaves), strict=False))

    def values(self, params: Params, leaves: Mapping[int, Array], names: Sequence[str]) -> dict[str, Array]:
        found = dict(zip(self.values_of, self._call(params, leaves)[len(self.densities_of) :], strict=True))
        return {name: found[name] for name in names}

    def _call(self, params: Params, leaves: Mapping[int, Array]) -> Sequence[Array]:
        with _quietly():
            return self.function(*(params[name] for name in self.latents), *(leaves[i] for i in self.arguments))


class Maps:
    """Of one variable, PyMC's transform as functions of arrays; told apart by identity."""

    def __init__(
        self, name: str, forward: Callable[..., Any], backward: Callable[..., Any], log_det: Callable[..., Any]
    ):
        self.name, self.forward, self.backward, self.log_det = name, forward, backward, log_det


class PyMCTransform(Transform):
    """PyMC's own map of a variable to where it is free. Ours go the other way: `forward` is PyMC's `backward`."""

    maps: Maps = eqx.field(static=True)

    def forward(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return self._mapped(self.maps.backward, u).astype(u.dtype)

    def inverse(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return self._mapped(self.maps.forward, x).astype(x.dtype)

    def log_det_jacobian(self, u: Float[Array, "..."]) -> Float[Array, ""]:
        return jnp.sum(self._mapped(self.maps.log_det, u))

    def contains(self, x: Float[np.ndarray, "chain draw ..."]) -> Bool[np.ndarray, "chain draw ..."]:
        flat = jnp.asarray(x).reshape(-1, *x.shape[2:])
        free = jax.vmap(lambda one: jnp.isfinite(self._mapped(self.maps.forward, one)).all())(flat)
        inside: Any = np.asarray(free).reshape(x.shape[:2])
        return np.broadcast_to(inside.reshape(*x.shape[:2], *[1] * (x.ndim - 2)), x.shape)

    def describe(self) -> str:
        return f"where PyMC's transform {self.maps.name!r} is defined"

    def _mapped(self, function: Callable[..., Any], value: Array) -> Array:
        with _quietly():
            return function(value)[0]


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """PyTensor's graphs say float64; where jax has 32-bit numbers only, that is what they are computed in."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Explicitly requested dtype")
        yield


# --- from a model


def discover(
    model: Any,
    params: Callable[[Mapping[str, tuple[int, ...]]], Mapping[str, Any]],
    row_dim: Sequence[str],
    shared: Sequence[str],
) -> tuple[BridgedModel, tuple[str, ...]]:
    """The program of a model, its rows and the arrays that hold them; and what is to be said of it.

    `params` gives the parameters of one draw when it is told which names and shapes the model has; `row_dim` names
    dimensions, `shared` arrays that removed rows may stay in.
    """
    _check_variables(model)
    plain = _on_own_scales(model)
    free, observed = ([plain[each.name] for each in some] for some in (model.free_RVs, model.observed_RVs))
    densities = plain.logp(vars=[*free, *observed], sum=False, jacobian=False)
    deterministic = plain.replace_rvs_by_values(plain.deterministics)
    values = [plain.rvs_to_values[each] for each in observed]
    shapes = {each.name: tuple(int(n) for n in shape) for each, shape in zip(free, _shapes(plain, free), strict=True)}
    by_name = dict(zip([each.name for each in observed], densities[len(free) :], strict=True))
    outputs = [*densities, *deterministic, *values]
    _check_no_chance(outputs)
    sites, blocks = _rows_of(plain, by_name, dict(zip(by_name, values, strict=True)), row_dim)
    sizes = {size for _, size in blocks if size > 1}  # an axis of one is everywhere
    arrays = [
        each
        for each in ancestors(outputs)
        if _holds_data(each, sizes) or (isinstance(each, Constant) and any(each is value for value in values))
    ]
    leaves = {i: jnp.asarray(_value(each)) for i, each in enumerate(arrays)}
    inputs = [plain.rvs_to_values[each] for each in free]
    program = PyMCProgram(
        function=_never,
        densities_of=tuple(each.name for each in (*free, *observed)),
        values_of=tuple(each.name for each in (*plain.deterministics, *observed)),
        arguments={i: Argument(n, None, 0, _dims(plain, arrays[i])) for i, n in enumerate(_names(arrays))},
        latents=shapes,
        row_latents=_row_latents(plain, free, blocks),
        deterministic=tuple(each.name for each in plain.deterministics),
        aggregates={},
        sites=sites,
        blocks=blocks,
        frozen={},
        by_rows=False,
    )
    transforms = _transforms(model)
    one = {name: jnp.asarray(leaf) for name, leaf in params(shapes).items()}
    program = _with_function(program, inputs, arrays, outputs, one, leaves)
    draw = Draw(one, transforms)
    program = with_arguments(program, draw, leaves, frozenset(shared))
    program, remarks = with_rows_found(program, draw, leaves)
    found = BridgedModel(program, leaves, draw.transforms)
    return found, (*remarks, *left_in_memory(found, draw, leaves), *_remarks(plain, program, densities))


def _remarks(model: Any, program: PyMCProgram, densities: Sequence[Any]) -> tuple[str, ...]:
    """What was taken for granted, and counts of rows that stay."""
    blocks = [dim for dim, _ in program.blocks]
    unnamed = [
        [each.name for each in program.sites if each.block == block and not model.named_vars_to_dims.get(each.name)]
        for block in range(len(blocks))
    ]
    said = [
        f"taken for the same rows, since they have no dims and are as many: {', '.join(alone)}"
        for alone in unnamed
        if len(alone) > 1
    ]
    counted = {each.name for each in ancestors(densities) if isinstance(each, SharedVariable) and _is_number(each)}
    said += [f"the model uses the number of {dim}, which stays that of all rows" for dim in blocks if dim in counted]
    return tuple(said)


def _dims(model: Any, array: Any) -> tuple[str | None, ...]:
    """Names of an array's axes, where PyMC knows them."""
    named = model.named_vars_to_dims.get(array.name) if array.name in model.named_vars else None
    return tuple(None if each is None else str(each) for each in named or ())


def _check_no_chance(outputs: Sequence[Any]) -> None:
    """Refuse densities and data that are drawn anew at every call: generators of random numbers are in their graphs."""
    if any(isinstance(each, SharedVariable) and not hasattr(each.type, "ndim") for each in ancestors(outputs)):
        raise UnsupportedModelError(
            "the model draws random numbers at every call, as pm.Minibatch does.",
            "pass the model of all rows; its posterior is the one that was aimed at.",
        )


def _check_variables(model: Any) -> None:
    """Refuse by name what cannot be erased from."""
    if model.potentials:
        names = ", ".join(repr(each.name) for each in model.potentials)
        raise UnsupportedModelError(
            f"the model has Potentials: {names}. Nobody can tell whether rows are in them.",
            "write a likelihood as an observed variable (pm.CustomDist has any density), a prior as a variable.",
        )
    if not model.observed_RVs:
        raise UnsupportedModelError(
            "the model has no observed variable, so no rows to remove.",
            "pass the model that was fitted, with observed=… in its likelihood.",
        )
    for each in model.free_RVs:
        of = each.name.removesuffix("_unobserved")
        if of != each.name and f"{of}_observed" in model.named_vars:
            raise UnsupportedModelError(
                f"the observed values of {of!r} have gaps, which PyMC fills in as parameters: rows' covariates are in "
                "their prior.",
                "leave the rows with gaps out of the model.",
            )
        if np.dtype(each.dtype).kind != "f":
            raise UnsupportedModelError(
                f"the variable {each.name!r} is discrete and not observed: it cannot be moved along gradients.",
                "sum it out of the model (pm.Mixture, or pymc_extras.marginalize), and fit that.",
            )
    for each in (*model.free_RVs, *model.observed_RVs):
        kind = type(each.owner.op).__name__
        if "Minibatch" in kind or "Simulator" in kind:
            raise UnsupportedModelError(
                f"the density of {each.name!r} ({kind.removesuffix('RandomVariable')}) is an estimate: a mini-batch's, "
                "scaled, or by simulation.",
                "pass the model of all rows with an exact density; its posterior is the one that was aimed at.",
            )
    if not model.free_RVs:
        raise UnsupportedModelError("the model has no parameters.", "pass the model that the draws were sampled from.")


def _on_own_scales(model: Any) -> Any:
    """The same model, as a function of its variables on their own scale."""
    begun = dict(model.rvs_to_initial_values)  # which PyMC cannot carry over, and nobody needs here
    try:
        model.rvs_to_initial_values.update(dict.fromkeys(begun))
        return remove_value_transforms(model)
    finally:
        model.rvs_to_initial_values.update(begun)


def _holds_data(variable: Variable, sizes: set[int]) -> bool:
    """Shared arrays, and constants with an axis as long as one of rows; other constants are part of the graph."""
    if not isinstance(variable, SharedVariable | Constant) or getattr(variable.type, "ndim", 0) == 0:
        return False
    if np.dtype(variable.type.dtype).kind not in "fiub":
        return False
    return isinstance(variable, SharedVariable) or bool(sizes & set(_value(variable).shape))


def _value(variable: Any) -> np.ndarray:
    value = np.asarray(variable.get_value() if isinstance(variable, SharedVariable) else variable.data)
    return np.array(value, jax.dtypes.canonicalize_dtype(value.dtype))


def _names(arrays: Sequence[Variable]) -> list[str]:
    """As they were called, or by their number and shape."""
    found: list[str] = []
    for i, each in enumerate(arrays):
        name = each.name or f"array {i + 1} ({'×'.join(map(str, _value(each).shape))})"
        found.append(name if name not in found else f"{name} ({i + 1})")
    return found


def _shapes(model: Any, variables: Sequence[Any]) -> list[tuple[int, ...]]:
    known = model.eval_rv_shapes()
    return [tuple(known[each.name]) for each in variables]


def _compiled(
    params: Sequence[Any], arrays: Sequence[Any], outputs: Sequence[Any], *, static: bool
) -> Callable[..., Sequence[Array]]:
    """A function of parameters and arrays, as jax computes it; `static`: of arrays of these shapes only."""
    sizes = [tuple(size if static or size == 1 else None for size in _value(each).shape) for each in arrays]
    fresh = [pt.tensor(dtype=each.type.dtype, shape=size) for each, size in zip(arrays, sizes, strict=True)]
    numbers = [each for each in ancestors(outputs) if isinstance(each, SharedVariable) and _is_number(each)]
    fixed = {each: pt.constant(each.get_value(), dtype=each.type.dtype) for each in numbers}
    replaced = clone_replace(list(outputs), {**dict(zip(arrays, fresh, strict=True)), **fixed}, rebuild_strict=False)
    return _as_jax([*params, *fresh], replaced)


def _is_number(variable: Any) -> bool:
    return getattr(variable.type, "ndim", None) == 0


class AnyShape(SpecifyShape):
    """PyTensor's note of an array's shape, as of one that may have fewer rows."""


def _dispatch() -> Any:
    """PyTensor's translation to jax. Importing it sets jax's default precision, which is set back."""
    found = []

    def load() -> None:
        wide = jax.config.read("jax_enable_x64")
        from pytensor.link.jax.dispatch import jax_funcify

        jax.config.update("jax_enable_x64", wide)
        found.append(jax_funcify)

    # In a thread of its own, where no `jax.enable_x64(…)` of the caller hides what the default is.
    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    return found[0]


def _as_jax(inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., Sequence[Array]]:
    jax_funcify = _dispatch()
    if AnyShape not in jax_funcify.registry:
        jax_funcify.register(AnyShape)(lambda op, **_: lambda x, *shape: x)
    graph = FunctionGraph(inputs=list(inputs), outputs=list(outputs), clone=True)
    get_mode("JAX").including("local_remove_check_parameter").optimizer.rewrite(graph)
    for node in graph.apply_nodes:
        if isinstance(node.op, SpecifyShape):
            node.op = AnyShape()
    return jax_funcify(graph)


def _cannot(error: Exception) -> UnsupportedModelError:
    said = str(error).strip().splitlines()
    return UnsupportedModelError(
        f"PyTensor cannot compute this model with jax: {said[0] if said else type(error).__name__}", INSTEAD
    )


def _with_function(
    program: PyMCProgram,
    inputs: Sequence[Any],
    arrays: Sequence[Any],
    outputs: Sequence[Any],
    one: Params,
    leaves: dict[int, Array],
) -> PyMCProgram:
    """Compiled for arrays of any length; where the graph cannot do with those, for the lengths of all rows."""
    for static in (False, True):
        try:
            tried = dataclasses.replace(program, function=_compiled(inputs, arrays, outputs, static=static))
            jax.eval_shape(tried.densities, one, leaves)
        except Exception as error:  # whatever PyTensor's translation runs into
            failed = error
        else:
            return tried
    raise _cannot(failed) from failed


def _never(*_: Any) -> Sequence[Array]:
    raise NotImplementedError


# --- rows


def _rows_of(
    model: Any, densities: Mapping[str, Any], values: Mapping[str, Any], wanted: Sequence[str]
) -> tuple[tuple[Site, ...], tuple[tuple[str, int], ...]]:
    """Observed variables with their axes of rows, and the axes."""
    blocks: dict[str, int] = {}
    unnamed: dict[int, str] = {}
    sites = []
    known = model.eval_rv_shapes()
    for name, density in densities.items():
        shape, batch = known.get(name), density.type.ndim
        if shape is None:
            shape = np.shape(values[name].eval(mode=IN_PYTHON))
        if batch == 0:
            raise UnsupportedModelError(
                f"the variable {name!r} has one likelihood for {'×'.join(map(str, shape)) or 'one'} values: no row can "
                "be taken out of it.",
                "write the model with one likelihood a row, or a pe.MaskedModel, whose density takes a mask of rows.",
            )
        named = model.named_vars_to_dims.get(name) or [None] * len(shape)
        dims = [str(each) if each is not None else f"{name}_dim_{at}" for at, each in enumerate(named)][:batch]
        picked = [at for at, dim in enumerate(dims) if not wanted or dim in wanted]
        if len(picked) != 1:
            axes = ", ".join(f"{dim!r} ({size})" for dim, size in zip(dims, shape, strict=False))
            raise AmbiguousRowsError(
                f"the variable {name!r} has the axes {axes}.",
                f"say which are the rows: {' or '.join(f'row_dim={dim!r}' for dim in dims)}.",
            )
        axis, size = picked[0], int(shape[picked[0]])
        dim = dims[axis] if named[axis] is not None else unnamed.setdefault(size, dims[axis])
        blocks.setdefault(dim, size)
        sites.append(Site(name, list(blocks).index(dim), axis - batch, axis - len(shape)))
    return tuple(sites), tuple(blocks.items())


def _row_latents(model: Any, free: Sequence[Any], blocks: tuple[tuple[str, int], ...]) -> dict[str, tuple[int, int]]:
    """Variables that have an axis of rows, by its name."""
    names = [dim for dim, _ in blocks]
    found = {}
    for each in free:
        dims = model.named_vars_to_dims.get(each.name) or ()
        for at, dim in enumerate(dims):
            if dim in names:
                found[each.name] = names.index(dim), at - len(dims)
    return found


# --- transforms


def _transforms(model: Any) -> dict[str, Transform]:
    """PyMC's, for supports that are always the same."""
    found: dict[str, Transform] = {}
    for each in model.free_RVs:
        transform = model.rvs_to_transforms[each]
        if transform is None:
            continue
        value = pt.tensor(dtype="float64", shape=(None,) * each.type.ndim)
        graphs = [
            transform.forward(value, *each.owner.inputs),
            transform.backward(value, *each.owner.inputs),
            transform.log_jac_det(value, *each.owner.inputs),
        ]
        if set(ancestors(graphs)) & set(model.basic_RVs):
            raise UnsupportedModelError(
                f"the bounds of the variable {each.name!r} depend on other variables.",
                "sample it on a fixed support and scale it: pm.Deterministic(name, low + (high − low) * unit).",
            )
        held = [one for one in ancestors(graphs) if isinstance(one, SharedVariable) and hasattr(one.type, "ndim")]
        fixed: dict[Any, Any] = {one: pt.constant(one.get_value(), dtype=one.type.dtype) for one in held}
        graphs = clone_replace(graphs, fixed, rebuild_strict=False) if fixed else graphs
        found[each.name] = PyMCTransform(Maps(transform.name, *(_as_jax([value], [graph]) for graph in graphs)))
    return found
