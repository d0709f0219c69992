"""Draws of a posterior: a tree of arrays `(chain, draw, …)`, with optional log-weights, labelled as ArviZ labels them.

Draws are on the parameters' own (constrained) scale, as samplers hand them out. Log-weights are natural logarithms,
up to a constant; draws without them count equally.
"""

from __future__ import annotations

import dataclasses
import functools
import html
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Key, PyTree

from posterase.data.parameters import check_known, parameter_names
from posterase.draws.inference_groups import SAMPLE_DIMS, Container
from posterase.draws.io import read_tree, write_netcdf
from posterase.errors import DrawsShapeError, InvalidTypeError, NonFiniteDrawsError, OutputError, WeightedDrawsError
from posterase.runtime.checks import check_int, first_bad
from posterase.runtime.files import written_whole
from posterase.runtime.precision import as_jax
from posterase.runtime.prng import as_key

LOG_WEIGHT = "log_weight"
"""The variable of `sample_stats` that holds the log-weights in a labelled tree or file."""


@dataclasses.dataclass(frozen=True, eq=False)
class Labels:
    """Dimension names of each parameter, and all coordinates, as they came."""

    dims: dict[str, tuple[str, ...]]
    coords: xr.Dataset

    def fit(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether they are the labels of arrays of these names and shapes."""
        return self.dims.keys() == shapes.keys() and all(
            len(self.dims[name]) == len(shape) - 2
            and tuple(self.coords.sizes.get(dim) for dim in (*SAMPLE_DIMS, *self.dims[name])) == shape
            for name, shape in shapes.items()
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Labels) and self.dims == other.dims and self.coords.identical(other.coords)

    def __hash__(self) -> int:
        return hash(tuple(self.dims.items()))


class Draws(eqx.Module):
    """Draws of a posterior.

    Parameters
    ----------
    params
        A tree of real arrays shaped `(chain, draw, …)`: a dict of name → array, a network's parameters, one array.
        Numbers of less than 32 bits become float32.
    log_weights
        Log-weights shaped `(chain, draw)`, up to a constant. None: all draws count equally.
    dims
        Names of a parameter's axes after `(chain, draw)`, by parameter name, as in ArviZ.
    coords
        Coordinate values, by axis name, as in ArviZ; or a Dataset, or the labels of other draws, with those to keep.
    container
        What the draws came in, and go out in again. Bridges set it.

    Examples
    --------
    >>> import numpy as np, posterase as pe
    >>> draws = pe.Draws({"mu": np.zeros((4, 250)), "beta": np.ones((4, 250, 3))})
    >>> draws
    Draws: 4 chains × 250 draws, equal weights
      beta: float32[3]
      mu: float32
    """

    params: PyTree
    log_weights: Float[Array, "chain draw"] | None
    labels: Labels = eqx.field(static=True)
    container: Container | None = eqx.field(static=True)
    """Where a bridge made the draws: what they came in, and go out in again."""

    def __init__(
        self,
        params: PyTree,
        log_weights: ArrayLike | None = None,
        *,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Any] | xr.Dataset | Labels | None = None,
        container: Container | None = None,
    ):
        names = parameter_names(params)
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DrawsShapeError(f"two parameters are called {twice!r}.", "rename one: names join keys with a dot.")
        arrays = {name: _real(name, leaf) for name, leaf in zip(names, jax.tree.leaves(params), strict=True)}
        shape = _sample_shape({name: array.shape for name, array in arrays.items()})
        self.params = jax.tree.unflatten(jax.tree.structure(params), list(arrays.values()))
        self.log_weights = None if log_weights is None else _log_weights(log_weights, shape)
        shapes = {name: array.shape for name, array in arrays.items()}
        if isinstance(coords, Labels) and coords.fit(shapes):
            self.labels = coords
        else:
            known = coords.coords if isinstance(coords, Labels) else coords
            self.labels = _labels(shapes, dims or {}, {} if known is None else known)
        self.container = container

    # --- what is there

    @property
    def names(self) -> list[str]:
        """Names of the parameters, in the order of the tree's leaves."""
        return parameter_names(self.params)

    @property
    def n_chains(self) -> int:
        """Number of chains."""
        return jax.tree.leaves(self.params)[0].shape[0]

    @property
    def n_draws(self) -> int:
        """Number of draws a chain."""
        return jax.tree.leaves(self.params)[0].shape[1]

    @property
    def weights(self) -> Float[Array, "chain draw"]:
        """Weights that sum to one."""
        if self.log_weights is None:
            return jnp.full((self.n_chains, self.n_draws), 1 / (self.n_chains * self.n_draws))
        return jax.nn.softmax(self.log_weights, axis=(0, 1))

    def flat(self) -> PyTree:
        """The parameters with chains laid end to end: leaves shaped `(chain · draw, …)`."""
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), self.params)

    def at(self, place: int) -> PyTree:
        """The parameters of one draw, chains laid end to end. (Through numpy: jax would compile each operation.)"""
        chain, draw = divmod(place, self.n_draws)
        return jax.tree.map(lambda leaf: as_jax(np.asarray(leaf)[chain, draw]), self.params)

    def columns(self) -> dict[str, Float[np.ndarray, "chain draw elements"]]:
        """Every parameter by name, in float64, its elements laid out in one axis."""
        leaves = zip(self.names, jax.tree.leaves(self.params), strict=True)
        return {name: np.asarray(leaf, np.float64).reshape(*leaf.shape[:2], -1) for name, leaf in leaves}

    def matrix(self) -> Float[np.ndarray, "n elements"]:
        """All elements of all parameters, one row a draw, chains laid end to end, in float64."""
        whole = np.concatenate(list(self.columns().values()), axis=-1)
        return whole.reshape(-1, whole.shape[-1])

    def column_blocks(self, most: int) -> Iterator[Float[np.ndarray, "n some"]]:
        """The same, at most so many columns at a time: a network's draws are too many to copy all at once."""
        n = self.n_chains * self.n_draws
        leaves = [np.asarray(leaf).reshape(n, -1) for leaf in jax.tree.leaves(self.params)]
        ends = np.cumsum([0, *(leaf.shape[1] for leaf in leaves)])
        for start in range(0, max(int(ends[-1]), 1), most):
            parts = [
                leaf[:, max(start - first, 0) : max(start + most - first, 0)]
                for first, leaf in zip(ends, leaves, strict=False)
            ]
            yield np.concatenate(parts, axis=1, dtype=np.float64)

    def first_places(self) -> Int[np.ndarray, "chain draw"]:
        """For each draw the place, chains laid end to end, of the first draw with the same values."""
        shape = self.n_chains, self.n_draws
        n = shape[0] * shape[1]
        columns = [np.asarray(leaf).reshape(n, -1) for leaf in jax.tree.leaves(self.params)]
        places, may_repeat = np.arange(n), np.ones(n, bool)
        for column in columns:
            if column.shape[1]:
                _, inverse, counts = np.unique(column[:, 0], return_inverse=True, return_counts=True)
                may_repeat &= counts[inverse] > 1
        first: dict[bytes, int] = {}
        for place in np.flatnonzero(may_repeat).tolist():  # bytes of whole rows, only where first elements repeat
            row = b"".join(column[place].tobytes() for column in columns)
            places[place] = first.setdefault(row, place)
        return places.reshape(shape)

    @property
    def n_distinct(self) -> int:
        """How many draws differ from each other: fewer than there are where proposals are rejected, or draws copied."""
        return len(np.unique(self.first_places()))

    def __repr__(self) -> str:
        weights = "equal weights" if self.log_weights is None else "weighted"
        lines = [f"Draws: {self.n_chains} chains × {self.n_draws} draws, {weights}"]
        for name, leaf in zip(self.names, jax.tree.leaves(self.params), strict=True):
            lines.append(f"  {name}: {leaf.dtype}{list(leaf.shape[2:]) or ''}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        first, *rest = map(html.escape, repr(self).splitlines())
        rows = "".join(f"<tr><td>{'</td><td>'.join(line.strip().split(': ', 1))}</td></tr>" for line in rest)
        return f"<p><strong>{first}</strong></p><table>{rows}</table>"

    # --- the same draws, otherwise

    def replace(self, params: PyTree, log_weights: ArrayLike | None = None) -> Draws:
        """Other draws of the same parameters under the same labels, with these weights: none, unless they are given.

        There may be more or fewer draws than before. Coordinates along draws and chains belong to the draws that were
        replaced: only the numbers of draws and chains stay, or begin at 0 where there are others.
        """
        shape = jax.tree.leaves(params)[0].shape[:2]
        numbers = SAMPLE_DIMS if shape == (self.n_chains, self.n_draws) else ()
        coords = self.labels.coords
        stale = [
            name for name, each in coords.coords.items() if set(each.dims) & {*SAMPLE_DIMS} and name not in numbers
        ]
        labels = Labels(self.labels.dims, coords.drop_vars(stale)) if stale else self.labels
        return Draws(params, log_weights, dims=labels.dims, coords=labels, container=self.container)

    def inside(self, container: Container) -> Draws:
        """The same draws, in a container whose groups belong to them."""
        own = dataclasses.replace(container, fitted=self.params)
        return Draws(self.params, self.log_weights, dims=self.labels.dims, coords=self.labels, container=own)

    def without(self, ids: Int[np.ndarray, " removed"], kept: Any) -> Draws:
        """The same values; with nothing of the removed rows left in their labels and their container.

        `kept` is the model without these rows. Draws that came in no container have no rows to leave out.
        """
        if self.container is None:
            return self
        container = self.container.without(ids, kept)
        coords = container.relabelled(self.labels.coords, [dim for dims in self.labels.dims.values() for dim in dims])
        return Draws(self.params, self.log_weights, dims=self.labels.dims, coords=coords, container=container)

    def settled(self) -> Draws:
        """The same draws, in a container that holds nothing of the draws that came in it."""
        if self.container is None:
            return self
        own = self.container.settled(self.params)
        return Draws(self.params, self.log_weights, dims=self.labels.dims, coords=self.labels, container=own)

    def thin(self, step: int) -> Draws:
        """Every `step`-th draw of each chain."""
        check_int("step", step, 1, self.n_draws)
        params, log_weights = jax.tree.map(lambda leaf: leaf[:, ::step], (self.params, self.log_weights))
        coords = self.labels.coords.isel(draw=slice(None, None, step))
        return Draws(params, log_weights, dims=self.labels.dims, coords=coords, container=self.container)

    def resample(self, key: Key[Array, ""] | int) -> Draws:
        """As many draws of equal weight, by systematic resampling over all chains together. For use in memory only.

        Draws repeat in proportion to their weights, so copies give the weights away, and with them the removed rows:
        what leaves the process is `result.draws` of an erasure. Chains lose their meaning: what comes back is one
        sample, dealt out in random order into arrays of the old shape. Draws without weights come back as they are.
        """
        typed = as_key(key)
        return self if self.log_weights is None else self.take(self.ancestors(typed))

    def ancestors(self, key: Key[Array, ""] | int) -> Int[Array, "chain draw"]:
        """Which draws `resample` picks with this key: their places with chains laid end to end."""
        pick, deal = jax.random.split(as_key(key))
        ancestors = systematic(pick, self.weights.ravel(), self.n_chains * self.n_draws)
        return jax.random.permutation(deal, ancestors).reshape(self.n_chains, self.n_draws)

    def take(self, places: Int[Array, "chain draw"]) -> Draws:
        """The draws at these places, chains laid end to end, with equal weights."""
        return self.replace(jax.tree.map(lambda leaf: leaf[places], self.flat()))

    # --- labelled trees and files

    def to_arviz(self, *, include_weights: bool = False) -> xr.DataTree:
        """A DataTree by ArviZ's schema.

        Draws that a bridge made come with the other groups of their container, cut to the rows that are left.

        Parameters
        ----------
        include_weights
            Whether draws with log-weights are converted, the weights as `sample_stats/log_weight`. After an erasure the
            weights are a function of the removed rows, from which these can be computed: such a tree must not leave
            memory. Default: weighted draws are an error.
        """
        if self.log_weights is not None and not include_weights:
            raise WeightedDrawsError(
                "these draws carry log-weights, which after an erasure are a function of the removed rows.",
                "use result.draws or result.to_arviz(), which are equally weighted. (To convert the weights in memory: "
                "draws.to_arviz(include_weights=True).)",
            )
        slashed = [name for name in self.names if "/" in name]
        if slashed:
            raise DrawsShapeError(f"{slashed[0]!r} has a slash, which ArviZ keeps for groups.", "rename the parameter.")
        attrs = {"creation_library": "posterase", "sample_dims": list(SAMPLE_DIMS)}
        values = zip(self.names, jax.tree.leaves(self.params), strict=True)
        variables = {name: ((*SAMPLE_DIMS, *self.labels.dims[name]), np.asarray(leaf)) for name, leaf in values}
        posterior = xr.Dataset(variables, coords=self.labels.coords.coords, attrs=attrs)
        stats = None
        if self.log_weights is not None:
            weights = {LOG_WEIGHT: (SAMPLE_DIMS, np.asarray(self.log_weights))}
            coords = {dim: self.labels.coords.coords[dim] for dim in SAMPLE_DIMS}
            stats = xr.Dataset(weights, coords=coords, attrs=attrs)
        if self.container is not None:
            return self.container.fill(self.params, posterior, stats)
        return xr.DataTree.from_dict({"posterior": posterior, **({} if stats is None else {"sample_stats": stats})})

    @classmethod
    def from_arviz(cls, tree: Any, var_names: Sequence[str] | None = None, like: PyTree | None = None) -> Draws:
        """Draws from a DataTree or InferenceData with a `posterior` group, from a Dataset, or from a file of them.

        They come as a dict by variable name; with `like`, a tree of parameters, in that tree's structure.

        `var_names` picks the parameters: leave out what the model computes from them. Log-weights are read from
        `sample_stats/log_weight`. Other groups are not taken along: they saw the removed rows.
        """
        if isinstance(tree, (str, os.PathLike)):
            with read_tree(tree) as opened:  # trees refer to themselves, so that one left open stays so for a while
                tree = opened.load()
        posterior = tree if isinstance(tree, xr.Dataset) else groups_of(tree).get("posterior")
        if posterior is None:
            raise DrawsShapeError(
                f"the {type(tree).__name__} has no posterior group.", "pass the object that holds the posterior draws."
            )
        names = [str(name) for name in posterior.data_vars]
        if var_names is not None:
            check_known(var_names, names, "var_names")
            names = [name for name in names if name in var_names]
        for name in names:
            if not set(SAMPLE_DIMS) <= set(posterior[name].dims):
                raise DrawsShapeError(
                    f"{name} has the dimensions {posterior[name].dims}.",
                    "draws need a chain and a draw dimension (unstack a 'sample' dimension first).",
                )
        posterior = posterior[names].transpose(*SAMPLE_DIMS, ...)
        stats = None if isinstance(tree, xr.Dataset) else groups_of(tree).get("sample_stats")
        weights = None if stats is None or LOG_WEIGHT not in stats else stats[LOG_WEIGHT].transpose(*SAMPLE_DIMS)
        params: PyTree = {name: posterior[name].values for name in names}
        if like is not None:
            wanted = parameter_names(like)
            check_known(wanted, names, "like")
            params = jax.tree.unflatten(jax.tree.structure(like), [params[name] for name in wanted])
            names = wanted
        return cls(
            params,
            None if weights is None else weights.values,
            dims={name: [str(dim) for dim in posterior[name].dims[2:]] for name in names},
            coords=posterior.coords.to_dataset(),
        )

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write netCDF. The file appears whole or not at all; an existing one is left alone unless `overwrite`."""
        if not overwrite and Path(path).is_file():
            raise OutputError(f"{str(path)!r} already exists.", "name another file, or pass overwrite=True.")
        with written_whole(path) as beside:
            write_netcdf(self.to_arviz(), beside)
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], like: PyTree | None = None) -> Draws:
        """Read what `save` wrote, or any netCDF file by ArviZ's schema; `like` as for `from_arviz`."""
        return cls.from_arviz(path, like=like)


@functools.partial(jax.jit, static_argnames="size")
def systematic(key: Key[Array, ""], weights: Float[Array, " n"], size: int) -> Int[Array, " size"]:
    """Indices of `size` draws picked in proportion to their weights, with one random number (systematic resampling).

    Draw i comes ⌊size·wᵢ⌋ or ⌈size·wᵢ⌉ times.
    """
    points = (jnp.arange(size) + jax.random.uniform(key)) / size
    edges = jnp.cumsum(weights)
    return jnp.minimum(jnp.searchsorted(edges, points * edges[-1], side="right"), len(weights) - 1)


def _all_finite(array: Float[Array, "..."]) -> bool:
    if jax.default_backend() == "cpu" and array.is_fully_addressable:  # nothing to compile for every shape
        return bool(np.isfinite(np.asarray(array)).all())
    return bool(_all_finite_on_device(array))


@jax.jit
def _all_finite_on_device(array: Float[Array, "..."]) -> Bool[Array, ""]:
    return jnp.isfinite(array).all()


def _real(name: str, leaf: Any) -> Array:
    array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise InvalidTypeError(
            f"{name} is of type {array.dtype}, not real numbers.",
            "erasing moves parameters along gradients, so they must be real: leave integers out (var_names=…), "
            "sum discrete parameters out of the model, or convert with .astype(float) if they are real after all.",
        )
    array = array if isinstance(array, jax.Array) else as_jax(array)
    if array.dtype.itemsize < 4:
        array = array.astype(jnp.float32)
    if array.ndim >= len(SAMPLE_DIMS) and not isinstance(array, jax.core.Tracer):
        bad = None if _all_finite(array) else first_bad(~np.isfinite(array))
        if bad is not None:
            chain, draw, *element = bad
            where = f"chain {chain}, draw {draw}" + (f", element {element}" if element else "")
            raise NonFiniteDrawsError(
                f"{name} is {array[bad]} in {where}.",
                "a sampler that returns NaN or infinity has diverged: mend the fit, or leave that chain out.",
            )
    return array


def _sample_shape(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
    if not shapes:
        raise DrawsShapeError("params holds no arrays.", "pass draws as {'name': array of shape (chain, draw, …)}.")
    first, shape = next(iter(shapes.items()))
    for name, other in shapes.items():
        if len(other) < 2:
            raise DrawsShapeError(
                f"{name} has the shape {other}.", "draws are shaped (chain, draw, …); for one chain use array[None]."
            )
        if 0 in other[2:]:
            raise DrawsShapeError(f"{name} has no elements: its shape is {other}.", "leave it out.")
        if other[:2] != shape[:2]:
            raise DrawsShapeError(
                f"{first} has {shape[0]} chains of {shape[1]} draws and {name} has {other[0]} of {other[1]}.",
                "all parameters need the same (chain, draw) axes in front.",
            )
    if 0 in shape[:2]:
        raise DrawsShapeError(f"there are {shape[0]} chains of {shape[1]} draws.", "pass at least one draw.")
    return cast(tuple[int, int], shape[:2])


def _log_weights(log_weights: ArrayLike, shape: tuple[int, int]) -> Float[Array, "chain draw"]:
    try:
        array = log_weights if isinstance(log_weights, jax.Array) else as_jax(log_weights)
    except (TypeError, ValueError) as error:
        raise DrawsShapeError("log_weights holds no numbers.", f"it needs one real number a draw: {shape}.") from error
    if array.shape != shape or not jnp.issubdtype(array.dtype, jnp.floating):
        raise DrawsShapeError(
            f"log_weights is an array of {array.dtype} with shape {array.shape}.",
            f"it needs one real number a draw: shape {shape}.",
        )
    if not isinstance(array, jax.core.Tracer):
        known = np.asarray(array)
        bad = first_bad(np.isnan(known) | (known == np.inf))
        if bad is not None:
            raise NonFiniteDrawsError(
                f"log_weights is {array[bad]} in chain {bad[0]}, draw {bad[1]}.",
                "weights are logarithms: −inf drops a draw, NaN and +inf mean nothing.",
            )
        if not np.isfinite(known).any():
            raise NonFiniteDrawsError("every log-weight is −inf.", "at least one draw must count.")
    return array


def _labels(
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, Sequence[str]],
    coords: Mapping[str, Any] | xr.Dataset,
) -> Labels:
    check_known(dims, list(shapes), "dims")
    named = {}
    for name, shape in shapes.items():
        event = tuple(dims[name]) if name in dims else tuple(f"{name}_dim_{i}" for i in range(len(shape) - 2))
        if len(event) != len(shape) - 2:
            raise DrawsShapeError(
                f"dims[{name!r}] names {len(event)} axes of {len(shape) - 2}.",
                "name every axis after (chain, draw), in order.",
            )
        named[name] = event
    labelled = xr.Dataset(coords=coords.coords if isinstance(coords, xr.Dataset) else coords)
    for name, shape in shapes.items():
        for dim, size in zip((*SAMPLE_DIMS, *named[name]), shape, strict=True):
            if labelled.sizes.get(dim, size) != size:
                raise DrawsShapeError(
                    f"{name} has {size} values along {dim!r}, whose coordinate has {labelled.sizes[dim]}.",
                    "give one coordinate value for each.",
                )
            if dim not in labelled.coords:
                labelled = labelled.assign_coords({dim: np.arange(size)})
    return Labels(named, labelled)


def groups_of(tree: Any) -> dict[str, xr.Dataset]:
    """The groups of a DataTree, or of ArviZ's older InferenceData."""
    if isinstance(tree, xr.DataTree):
        return {name: child.to_dataset() for name, child in tree.children.items()}
    listed = getattr(tree, "groups", None)
    names = listed() if callable(listed) else ("posterior", "sample_stats")
    found = {str(name).strip("/"): getattr(tree, str(name).strip("/"), None) for name in names}
    return {name: group for name, group in found.items() if isinstance(group, xr.Dataset)}
