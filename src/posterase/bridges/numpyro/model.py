"""A NumPyro model as a `Program`: NumPyro runs it, and log densities are read from its trace.

Latent sites are substituted. Masks and scales (`handlers.mask`, `handlers.scale`) are in what the trace says. Supports
and their Jacobians are NumPyro's own (`biject_to`).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.infer.util import compute_log_probs
from numpyro.primitives import Messenger

from posterase.bridges.shared.traced_model import Params, Program, at_all_draws
from posterase.model.transforms import Transform
from posterase.runtime.fast_compilation import NONE, quick_jit
from posterase.runtime.precision import numpy_as_jax


@dataclasses.dataclass(frozen=True, eq=False)
class NumPyroProgram(Program):
    """A model function, and how it is called."""

    can_predict: ClassVar[bool] = True

    function: Callable[..., Any]
    structure: Any
    """How leaves make up args and kwargs."""
    fixed: dict[int, Any]
    """Leaves that are no arrays, or that the model must see the values of when it is built."""
    _function: Callable[..., Any] = dataclasses.field(init=False, repr=False)
    """`function` as it is called."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_function", as_jax_model(self.function))

    def __getstate__(self) -> dict[str, Any]:
        # The user's own function is pickled by its name; a copy of it could not be.
        return {name: value for name, value in self.__dict__.items() if name != "_function"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def call(self, params: Params, leaves: Mapping[int, Array]) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
        """The model with its parameters put in, and the arguments to call it with."""
        flat = [self.fixed[i] if i in self.fixed else leaves[i] for i in range(self.structure.num_leaves)]
        args, kwargs = jax.tree.unflatten(self.structure, flat)
        return handlers.substitute(handlers.seed(self._function, jax.random.key(0)), data=params), args, kwargs

    def traced(self, params: Params, leaves: Mapping[int, Array]) -> Any:
        """All sites."""
        called, args, kwargs = self.call(params, leaves)
        return handlers.trace(called).get_trace(*args, **kwargs)

    def log_probs(self, params: Params, leaves: Mapping[int, Array]) -> dict[str, Array]:
        called, args, kwargs = self.call(params, leaves)
        return dict(compute_log_probs(called, args, kwargs, {}, sum_log_prob=False)[0])

    def values(self, params: Params, leaves: Mapping[int, Array], names: Sequence[str]) -> dict[str, Array]:
        trace = self.traced(params, leaves)
        return {name: trace[name]["value"] for name in names}

    def predict(
        self, key: Key[Array, ""], params: Params, leaves: Mapping[int, Array], names: Sequence[str]
    ) -> dict[str, Array]:
        trace = self.traced(params, leaves)
        keys = jax.random.split(key, len(names))
        return {name: trace[name]["fn"](rng_key=each) for name, each in zip(names, keys, strict=True)}


def as_jax_model(function: Callable[..., Any]) -> Callable[..., Any]:
    """The model, with the numpy arrays that it uses from outside made jax arrays: inside handlers and partials too."""
    if isinstance(function, Messenger) and function.fn is not None:
        made = copy.copy(function)
        made.fn = as_jax_model(function.fn)
        if isinstance(data := getattr(made, "data", None), dict):  # what handlers.condition and substitute hold
            made.data = {name: _as_jax(value) for name, value in data.items()}
        return made
    if isinstance(function, functools.partial):
        given = {name: _as_jax(value) for name, value in function.keywords.items()}
        return functools.partial(as_jax_model(function.func), *map(_as_jax, function.args), **given)
    return numpy_as_jax(function)


def _as_jax(value: Any) -> Any:
    return jnp.asarray(value) if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" else value


class SiteTransform(Transform):
    """NumPyro's own map onto a site's support."""

    site: Support = eqx.field(static=True)

    def forward(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.site.bijector(u)

    def inverse(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.site.bijector._inverse(x)

    def log_det_jacobian(self, u: Float[Array, "..."]) -> Float[Array, ""]:
        return jnp.sum(self.site.bijector.log_abs_det_jacobian(u, self.site.bijector(u)))

    def contains(self, x: Float[np.ndarray, "chain draw ..."]) -> Bool[np.ndarray, "chain draw ..."]:
        return at_all_draws(lambda part: _contained(self, part), x)

    def describe(self) -> str:
        return f"in the support of its site: {self.site.support}"


@quick_jit(NONE)
def _contained(transform: SiteTransform, x: Float[Array, "n ..."]) -> Bool[Array, "n ..."]:
    """Whether values are in the support, and have unconstrained ones that are finite."""
    inside = jnp.asarray(transform.site.support(x))
    free = jnp.isfinite(transform.site.bijector._inverse(x))
    free = free.reshape(*free.shape[: inside.ndim], -1).all(axis=-1)
    return inside & free if free.shape == inside.shape else inside


class Support:
    """A site's support and bijector, told apart by identity: NumPyro's are not hashable."""

    def __init__(self, support: constraints.Constraint):
        self.support, self.bijector = support, biject_to(support)
