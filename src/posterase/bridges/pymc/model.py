"""A PyMC model as a `Program`: its log densities, through PyTensor's JAX backend, as a function of its arrays too.

PyMC writes the graph of every variable's log density. Each array in it, `pm.Data` or a plain numpy array, becomes an
argument of the compiled function, so that rows can be taken out of all of them. Transforms are PyMC's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytensor.tensor as pt
from jaxtyping import Array, Bool, Float
from pymc.distributions.dist_math import SplineWrapper
from pytensor.compile.mode import Mode, get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.math import Erfcx
from pytensor.tensor.shape import SpecifyShape

from posterase.bridges.shared.traced_model import Params, Program, at_all_draws
from posterase.errors import UnsupportedModelError
from posterase.model.transforms import Transform
from posterase.runtime.fast_compilation import NONE, quick_jit

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
        return {name: found[name] for name in names if name in found}  # Potentials, and variables with gaps, have none

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
        inside = at_all_draws(lambda part: _contained(self, part), x)
        return np.broadcast_to(inside.reshape(*x.shape[:2], *[1] * (x.ndim - 2)), x.shape)

    def describe(self) -> str:
        return f"where PyMC's transform {self.maps.name!r} is defined"

    def _mapped(self, function: Callable[..., Any], value: Array) -> Array:
        with _quietly():
            return function(value)[0]


@quick_jit(NONE)
def _contained(transform: PyMCTransform, x: Float[Array, "n ..."]) -> Bool[Array, " n"]:
    """Whether values have unconstrained ones that are finite."""
    return jax.vmap(lambda one: jnp.isfinite(transform._mapped(transform.maps.forward, one)).all())(x)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """PyTensor's graphs say float64; where jax has 32-bit numbers only, that is what they are computed in."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Explicitly requested dtype")
        yield


# --- compiling


def array_value(variable: Any) -> np.ndarray:
    """The value of a shared array or a constant, in the precision that jax has."""
    value = np.asarray(variable.get_value() if isinstance(variable, SharedVariable) else variable.data)
    return np.array(value, jax.dtypes.canonicalize_dtype(value.dtype))


def _compiled(
    params: Sequence[Any], arrays: Sequence[Any], outputs: Sequence[Any], pinned: Collection[int], *, static: bool
) -> Callable[..., Sequence[Array]]:
    """A function of parameters and arrays, as jax computes it; `static`: of arrays of these shapes only.

    Outputs whose numbers are `pinned` do not change with the arrays.
    """
    sizes = [tuple(size if static or size == 1 else None for size in array_value(each).shape) for each in arrays]
    fresh = [pt.tensor(dtype=each.type.dtype, shape=size) for each, size in zip(arrays, sizes, strict=True)]
    numbers = [each for each in ancestors(outputs) if isinstance(each, SharedVariable) and is_number(each)]
    fixed = {each: pt.constant(each.get_value(), dtype=each.type.dtype) for each in numbers}
    shared = [each for each in arrays if isinstance(each, SharedVariable)]
    kept = {each: pt.constant(each.get_value(), dtype=each.type.dtype) for each in shared}
    as_inputs, as_constants = {**dict(zip(arrays, fresh, strict=True)), **fixed}, {**kept, **fixed}
    moving = [number for number in range(len(outputs)) if number not in pinned]
    replaced: dict[int, Any] = {}
    for numbers_of, replacements in ((moving, as_inputs), (sorted(pinned), as_constants)):
        cloned = clone_replace([outputs[number] for number in numbers_of], replacements, rebuild_strict=False)
        replaced |= dict(zip(numbers_of, cloned, strict=True))
    return _as_jax([*params, *fresh], [replaced[number] for number in range(len(outputs))])


def is_number(variable: Any) -> bool:
    """Whether a variable has no axes."""
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


def _register(jax_funcify: Any) -> None:
    """Translate to jax what PyTensor does not."""
    if AnyShape in jax_funcify.registry:
        return
    jax_funcify.register(AnyShape)(lambda op, **_: lambda x, *shape: x)
    # PyTensor asks for TensorFlow Probability here: normal tails of pm.Censored, pm.Truncated, pm.OrderedProbit.
    jax_funcify.register(Erfcx)(lambda op, **_: jax.scipy.special.erfcx)
    jax_funcify.register(SplineWrapper)(_interpolation)


def _interpolation(op: Any, **_: Any) -> Callable[[Array], Array]:
    """The density of `pm.Interpolated`: straight lines between points, and zero outside."""
    spline = op.spline
    if len(spline.get_coeffs()) != len(spline.get_knots()):
        raise NotImplementedError("a spline of a higher order than one")
    points, heights = spline.get_knots(), spline.get_coeffs()

    def interpolate(x: Array) -> Array:
        # Fresh arrays at every call: jax may remember one in another precision (see `posterase.runtime.precision`).
        at, values = (jnp.asarray(np.array(each, x.dtype)) for each in (points, heights))
        return jnp.interp(x, at, values, left=0.0, right=0.0)

    return interpolate


def _as_jax(inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., Sequence[Array]]:
    jax_funcify = _dispatch()
    _register(jax_funcify)
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


def with_function(
    program: PyMCProgram,
    inputs: Sequence[Any],
    arrays: Mapping[int, Any],
    outputs: Sequence[Any],
    pinned: Collection[int],
    one: Params,
) -> tuple[PyMCProgram, dict[int, Array]]:
    """Compile for arrays of any length; where the graph cannot do with those, for the lengths of all rows.

    Arrays that decide what the graph is (masks, and the neighbours in `pm.ICAR`) stay in it, as `frozen`.
    """
    leaves = {i: jnp.asarray(array_value(each)) for i, each in arrays.items()}
    masks = {i for i, leaf in leaves.items() if leaf.dtype == bool}
    neighbours = {i for i, leaf in leaves.items() if leaf.ndim > 1 and not jnp.issubdtype(leaf.dtype, jnp.floating)}
    failed: Exception | None = None
    for frozen, static in ((set(), False), (set(), True), (masks, True), (masks | neighbours, True)):
        free = [i for i in arrays if i not in frozen]
        tried = dataclasses.replace(
            program,
            arguments={i: program.arguments[i] for i in free},
            frozen={program.arguments[i].name: leaves[i] for i in frozen},
        )
        try:
            function = _compiled(inputs, [arrays[i] for i in free], outputs, pinned, static=static)
            tried = dataclasses.replace(tried, function=function)
            jax.eval_shape(tried.densities, one, {i: leaves[i] for i in free})
        except Exception as error:  # whatever PyTensor's translation runs into
            failed = failed or error
        else:
            return tried, {i: leaves[i] for i in free}
    assert failed is not None
    raise _cannot(failed) from failed


def not_compiled(*_: Any) -> Sequence[Array]:
    """Stand in for the function of a program until it is compiled."""
    raise NotImplementedError


# --- transforms


def transforms_of(model: Any) -> dict[str, Transform]:
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
