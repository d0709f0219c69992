"""From networks: Flax modules (nnx and linen) and Equinox modules, with the states of the chains that sampled them.

    model, draws = pe.from_flax(module, {"x": images, "y": classes}, states, prior_sd=0.1)
    erased = pe.Rewind(500, initial=starts)(0, model, draws, model.change(remove=rows))

The module makes outputs of inputs; what rows are likely is said by name ("categorical", "normal") or by a function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from posterase.bridges.shared.positions import positions
from posterase.draws.draws import Draws
from posterase.errors import InvalidOptionError, InvalidTypeError, UnsupportedModelError
from posterase.model.factorised import Model
from posterase.runtime.optional import need

LikelihoodOfOutputs = Callable[[Any, Any], Float[Array, " rows"]]


def from_flax(
    module: Any,
    data: PyTree,
    states: Any,
    *,
    log_likelihood: str | LikelihoodOfOutputs = "categorical",
    prior_sd: float | None = None,
    log_prior: Callable[[PyTree], Float[Array, ""]] | None = None,
    noise_sd: float = 1.0,
    axes: str | None = None,
) -> tuple[Model, Draws]:
    """A Flax module whose parameters were sampled, and the draws.

    Parameters
    ----------
    module
        An `nnx.Module`, or a `linen.Module`. It is called on inputs alone, `module(x)` or `apply(params, x)`, with
        dropout off; statistics over batches (BatchNorm) are refused, since rows look at each other there.
    data
        `{"x": inputs, "y": targets}`, rows first.
    states
        Draws of the parameters: states of BlackJAX or of `pe.sample`, or a tree of arrays `(chain, draw, …)` shaped as
        the module's. Ends of chains are enough: `(chain, …)` with axes="chain".
    log_likelihood
        "categorical" (outputs are logits of classes), "bernoulli" (one logit), "normal" (of mean `module(x)` and
        standard deviation `noise_sd`), or a function of outputs and targets that returns one value a row.
    prior_sd, log_prior
        N(0, prior_sd²) on every parameter, or a function of the parameters. One of them.
    noise_sd
        For "normal".
    axes
        The leading axes of the states: "chain draw" where there are two and nothing is said; "draw chain"; and where
        there is one, "draw", or "chain" for ends of chains.

    Returns
    -------
    model
        A `pe.Model`. Its parameters are the module's, as nested dicts.
    draws
        The draws.
    """
    need("flax", "from_flax", "networks")
    from flax import linen, nnx

    if isinstance(module, nnx.Module):
        apply, example, read = _nnx(module)
    elif isinstance(module, linen.Module):
        apply, example, read = _linen(module, data)
    else:
        raise InvalidTypeError(
            f"module is a {type(module).__name__}.",
            "pass an nnx.Module or a linen.Module; for Equinox, pe.from_equinox.",
        )
    return _bridged(apply, example, read, data, states, log_likelihood, prior_sd, log_prior, noise_sd, axes)


def from_equinox(
    module: Any,
    data: PyTree,
    states: Any,
    *,
    log_likelihood: str | LikelihoodOfOutputs = "categorical",
    prior_sd: float | None = None,
    log_prior: Callable[[PyTree], Float[Array, ""]] | None = None,
    noise_sd: float = 1.0,
    axes: str | None = None,
) -> tuple[Model, Draws]:
    """An Equinox module whose parameters were sampled, and the draws.

    As `from_flax`; a module is a function of one input, as Equinox's layers are, and its parameters are its arrays of
    real numbers: draws are modules whose arrays have leading axes.
    """
    if not isinstance(module, eqx.Module):
        raise InvalidTypeError(f"module is a {type(module).__name__}.", "pass an eqx.Module; for Flax, pe.from_flax.")
    if any(map(_is_stateful, jax.tree.leaves(module, is_leaf=_is_stateful))):
        raise _batch_statistics("the module has a StateIndex (BatchNorm, say)")
    example, static = eqx.partition(eqx.nn.inference_mode(module), eqx.is_inexact_array)

    def apply(params: PyTree, x: Array) -> Array:
        return jax.vmap(eqx.combine(params, static))(x)

    def read(tree: Any) -> PyTree:
        return eqx.filter(tree, eqx.is_inexact_array)

    return _bridged(apply, example, read, data, states, log_likelihood, prior_sd, log_prior, noise_sd, axes)


def _is_stateful(leaf: Any) -> bool:
    return isinstance(leaf, eqx.nn.StateIndex)


class NormalPrior(eqx.Module):
    """N(0, sd²) on every parameter, up to a constant."""

    sd: float = eqx.field(static=True)

    def __call__(self, params: PyTree) -> Float[Array, ""]:
        squares = jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(params)])
        return -0.5 * jnp.sum(squares) / self.sd**2


class ModuleLikelihood(eqx.Module):
    """Log-likelihoods of rows, from a module's outputs."""

    apply: Callable[[PyTree, Array], Array] = eqx.field(static=True)
    of_outputs: Callable[[Array, Array], Float[Array, " rows"]] = eqx.field(static=True)

    def __call__(self, params: PyTree, data: Any) -> Float[Array, " rows"]:
        return self.of_outputs(self.apply(params, data["x"]), data["y"])


def _bridged(
    apply: Callable[[PyTree, Array], Array],
    example: PyTree,
    read: Callable[[Any], PyTree],
    data: Any,
    states: Any,
    likelihood: str | LikelihoodOfOutputs,
    prior_sd: float | None,
    log_prior: Callable[[PyTree], Float[Array, ""]] | None,
    noise_sd: float,
    axes: str | None,
) -> tuple[Model, Draws]:
    _check_data(data)
    if (prior_sd is None) == (log_prior is None):
        raise InvalidOptionError(
            "there is no prior." if prior_sd is None else "there are two priors.", "pass prior_sd or log_prior."
        )
    if prior_sd is not None and not 0 < prior_sd < float("inf"):
        raise InvalidOptionError(f"prior_sd is {prior_sd}.", "use a positive number.")
    _check_targets(likelihood, data, jax.eval_shape(apply, example, jnp.asarray(data["x"])[:1]).shape[-1:], noise_sd)
    prior = log_prior if log_prior is not None else NormalPrior(float(prior_sd or 1.0))
    draws = positions(states, axes, example, read).draws
    model = Model(prior, ModuleLikelihood(apply, _of_outputs(likelihood, noise_sd)), data)
    model.check(draws)
    return model, draws


def _check_data(data: Any) -> None:
    if not isinstance(data, dict) or not {"x", "y"} <= set(data):
        raise InvalidTypeError("data is no dict with 'x' and 'y'.", "pass {'x': inputs, 'y': targets}, rows first.")


def _check_targets(likelihood: str | LikelihoodOfOutputs, data: Any, outputs: tuple[int, ...], noise_sd: float) -> None:
    y = np.asarray(data["y"])
    if likelihood == "categorical":
        classes = outputs[0] if outputs else 0
        if y.ndim != 1 or y.dtype.kind not in "iu" or not ((y >= 0) & (y < classes)).all():
            raise InvalidOptionError(
                f"the targets are not classes from 0 to {classes - 1}, one a row.",
                "number the classes from 0, as the module's outputs are; or choose another log_likelihood.",
            )
    if likelihood == "bernoulli" and not np.isin(y, (0, 1)).all():
        raise InvalidOptionError("the targets are not 0 and 1.", "write them so, or choose another log_likelihood.")
    if not 0 < noise_sd < float("inf"):
        raise InvalidOptionError(f"noise_sd is {noise_sd}.", "use a positive number.")


def _of_outputs(
    likelihood: str | LikelihoodOfOutputs, noise_sd: float
) -> Callable[[Array, Array], Float[Array, " rows"]]:
    if callable(likelihood):
        return likelihood

    def categorical(logits: Array, y: Array) -> Array:
        return jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None].astype(int), axis=1)[:, 0]

    def bernoulli(logits: Array, y: Array) -> Array:
        logits = logits.reshape(y.shape)
        return y * logits - jax.nn.softplus(logits)

    def normal(mean: Array, y: Array) -> Array:
        apart = ((y - mean.reshape(y.shape)) / noise_sd) ** 2
        return -0.5 * apart.reshape(len(y), -1).sum(axis=1)

    known = {"categorical": categorical, "bernoulli": bernoulli, "normal": normal}
    if likelihood not in known:
        raise InvalidOptionError(
            f"log_likelihood is {likelihood!r}.", f"use {', '.join(known)}, or a function of outputs and targets."
        )
    return known[likelihood]


def _nnx(module: Any) -> tuple[Callable[[PyTree, Array], Array], PyTree, Callable[[Any], PyTree]]:
    from flax import nnx

    quiet = nnx.clone(module)
    quiet.eval()
    graph, params, rest = nnx.split(quiet, nnx.Param, ...)
    if jax.tree.leaves(nnx.state(quiet, nnx.BatchStat)):
        raise _batch_statistics("the module has statistics over batches (BatchStat)")

    def apply(given: PyTree, x: Array) -> Array:
        state = jax.tree.map(lambda leaf: leaf, params)
        nnx.replace_by_pure_dict(state, given)
        return nnx.merge(graph, state, rest)(x)

    def read(tree: Any) -> PyTree:
        if isinstance(tree, nnx.Module):
            tree = nnx.state(tree, nnx.Param)
        return nnx.to_pure_dict(tree) if isinstance(tree, nnx.State) else tree

    return apply, nnx.to_pure_dict(params), read


def _linen(module: Any, data: Any) -> tuple[Callable[[PyTree, Array], Array], PyTree, Callable[[Any], PyTree]]:
    _check_data(data)
    variables = jax.eval_shape(module.init, jax.random.key(0), jnp.asarray(data["x"][:1]))
    others = sorted(set(variables) - {"params"})
    if others:
        raise _batch_statistics(f"the module has collections beside its parameters ({', '.join(others)})")

    def apply(params: PyTree, x: Array) -> Array:
        return module.apply({"params": params}, x)

    def read(tree: Any) -> PyTree:
        return tree["params"] if isinstance(tree, dict) and set(tree) == {"params"} else tree

    return apply, dict(variables["params"]), read


def _batch_statistics(what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{what}: they were computed from all rows, removed ones too.",
        "use a layer that looks at one row at a time (LayerNorm, GroupNorm), and fit that.",
    )
