"""Many devices, and many processes: chains × rows, by jax's own meshes.

    mesh = pe.mesh(chains=2, rows=4)
    result = pe.erase(model, draws, rows, mesh=mesh)

A mesh has two axes. Along `chains` every device has some of the chains, draws or particles, and needs nothing of the
others. Along `rows` every device has some of the data's rows, and sums over rows are added up between devices: where
one evaluation takes long, or for data that no device can hold, which are cut beforehand. The same key gives the same
draws whatever the mesh, to the rounding of sums in another order.

What runs over a mesh is set by `over(mesh)`, which is jax's ambient mesh; functions below follow it where there is one,
and are jax's own `lax.map` and `vmap` where there is none. Every result is on all devices, so that every process can
read it, and each process of several runs the same program on the same input.

**Several processes.** `join_processes()` finds the others by jax.distributed: those that a cluster's launcher started
(Slurm, Open MPI, Kubernetes, TPUs), or those that environment variables name. It comes before anything that computes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Key, PyTree, Shaped

from posterase.errors import InvalidOptionError, PeerLostError
from posterase.runtime.precision import failed_running

CHAINS, ROWS = "chains", "rows"

COORDINATOR, PROCESSES, PROCESS = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
"""Environment variables that name the other processes, where no launcher does."""

HEARTBEAT_SECONDS, START_SECONDS = 10, 120
"""A process that was not heard of for so long is taken for dead; so long the others are waited for at the start."""

LOST = ("gloo", "nccl", "heartbeat", "unavailable", "connection", "coordination", "deadline_exceeded")
"""What jax's errors speak of where another process is gone."""

THREADS_OFF = "--xla_cpu_multi_thread_eigen=false"
"""A flag of XLA, with which every device of a CPU computes on a thread of its own."""

T = TypeVar("T")
Shared = tuple[PyTree, ...]


# --- meshes


def mesh(*, chains: int | None = None, rows: int | None = None) -> Mesh:
    """All devices, of all processes, as chains × rows. What is not said is what is left; if neither is, all for chains.

    Examples
    --------
    >>> import posterase as pe
    >>> dict(pe.mesh().shape)
    {'chains': 1, 'rows': 1}
    """
    devices = jax.devices()
    for name, count in ((CHAINS, chains), (ROWS, rows)):
        if count is not None and not (isinstance(count, int) and count >= 1 and len(devices) % count == 0):
            raise InvalidOptionError(
                f"{name} is {count!r}, of {len(devices)} device(s).", "use an int that divides the devices evenly."
            )
    rows = rows or (1 if chains is None else len(devices) // chains)
    chains = chains or len(devices) // rows
    if chains * rows != len(devices):
        raise InvalidOptionError(
            f"{chains} chains × {rows} rows make {chains * rows} devices, and there are {len(devices)}.",
            f"use numbers whose product is {len(devices)}.",
        )
    _check_threads(len(jax.local_devices()), devices[0].platform)
    return jax.make_mesh((chains, rows), (CHAINS, ROWS), axis_types=(AxisType.Auto, AxisType.Auto), devices=devices)


def _check_threads(n_devices: int, platform: str) -> None:
    """Devices that are one CPU share its threads, and wait for each other on them: for ever, where they are too few."""
    if platform == "cpu" and n_devices > (os.cpu_count() or 1) and THREADS_OFF not in os.environ.get("XLA_FLAGS", ""):
        raise InvalidOptionError(
            f"{n_devices} devices are made of a CPU with {os.cpu_count()} core(s), and would wait for each other's "
            "threads.",
            f"set XLA_FLAGS='--xla_force_host_platform_device_count={n_devices} {THREADS_OFF}'.",
        )


@contextlib.contextmanager
def over(mesh: Mesh | None) -> Iterator[None]:
    """Run what is inside over a mesh; over that which is set already, where it is None.

    Where another process of the run is lost on the way, `PeerLostError`.
    """
    if mesh is None:
        yield
        return
    if not isinstance(mesh, Mesh) or not set(mesh.axis_names) <= {CHAINS, ROWS}:
        raise InvalidOptionError(
            f"mesh is {mesh!r}.", "make one: pe.mesh(chains=2, rows=4); or a jax mesh with axes 'chains' and 'rows'."
        )
    automatic = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    try:
        with jax.set_mesh(automatic):
            yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        said = str(error)
        if failed_running(error) and jax.process_count() > 1 and any(word in said.lower() for word in LOST):
            raise PeerLostError(
                f"another process of this run ended, or cannot be reached: {said.splitlines()[0][:200]}",
                "look at what it said last, and start all of them anew.",
            ) from error
        raise


def count() -> int:
    """How many devices the mesh that is set has; 1 where none is."""
    ambient = jax.sharding.get_abstract_mesh()
    return 1 if ambient.empty else ambient.size


def shards(axis: str) -> int:
    """Over how many devices the mesh that is set spreads this axis; 1 where none is set, or where it is cut already."""
    ambient = jax.sharding.get_abstract_mesh()
    kinds = dict(zip(ambient.axis_names, ambient.axis_types, strict=True))
    return ambient.shape[axis] if kinds.get(axis) == AxisType.Auto else 1


def home(tree: T) -> T:
    """Arrays that were made over a mesh as plain ones, that have nothing to do with it."""

    def plain(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data = jnp.asarray(np.asarray(jax.random.key_data(leaf)))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        return jnp.asarray(np.asarray(leaf))

    return jax.tree.map(plain, tree)


def run_over(mesh: Mesh | None, run: Callable[[], T]) -> T:
    """What `run()` returns, a tree, run over a mesh."""
    if mesh is None:
        return run()
    with over(mesh):
        made = run()
    return home(made)


# --- along chains
#
# What a function needs besides its part is handed to it as `shared`, not closed over: jax does not let a value of the
# whole mesh into the code of one part by itself.


def map_draws(function: Callable[..., T], draws: PyTree, batch_size: int | None = None, shared: Shared = ()) -> T:
    """`jax.lax.map` of `function(draw, *shared)`, every device of a mesh taking some of the draws.

    Batches are of equal size, if need be filled up with copies of the last draw: `jax.lax.map` compiles the function
    twice where the last batch is smaller.
    """

    def part(draws: PyTree, *shared: PyTree) -> T:
        def at(draw: PyTree) -> T:
            return function(draw, *shared)

        n = _length(draws)
        if batch_size is None or n == 0:
            return jax.lax.map(at, draws)
        if batch_size >= n:
            return jax.vmap(at)(draws)
        size = -(-n // -(-n // batch_size))
        padded = (
            jax.tree.map(lambda leaf: leaf[jnp.minimum(jnp.arange(n + -n % size), n - 1)], draws) if n % size else draws
        )
        return jax.tree.map(lambda leaf: leaf[:n], jax.lax.map(at, padded, batch_size=size))

    return each_part(part, draws, shared)


def map_chains(function: Callable[..., T], chains: tuple[PyTree, ...], shared: Shared = ()) -> T:
    """`jax.vmap` of `function(*chain, *shared)`, every device of a mesh taking some of the chains."""
    return each_part(lambda part, *shared: jax.vmap(lambda *chain: function(*chain, *shared))(*part), chains, shared)


def each_part(function: Callable[..., T], over_first_axis: PyTree, shared: Shared = ()) -> T:
    """`function(part, *shared)` of arrays with a common leading axis, along which they can be cut: one part a device.

    What the leading axis lacks to be cut evenly is filled with copies, which are dropped again.
    """
    parts = shards(CHAINS)
    if parts == 1:
        return function(over_first_axis, *shared)
    n = _length(over_first_axis)
    places = jnp.arange(-(-n // parts) * parts) % n
    filled = jax.tree.map(lambda leaf: leaf[places], over_first_axis)
    cut = _cut(function, filled, shared, PartitionSpec(CHAINS))
    return jax.tree.map(lambda leaf: everywhere(leaf[:n]), cut)


def sum_parts(function: Callable[..., Array], over_first_axis: PyTree, shared: Shared = ()) -> Array:
    """The sum over devices of `function(part, *shared)`; the leading axis is a multiple of `shards(CHAINS)`."""
    if shards(CHAINS) == 1:
        return function(over_first_axis, *shared)
    return _cut(
        lambda part, *shared: jax.lax.psum(function(part, *shared), CHAINS), over_first_axis, shared, PartitionSpec()
    )


def _cut(function: Callable[..., T], whole: PyTree, shared: Shared, out: PartitionSpec, axis: str = CHAINS) -> T:
    arrays, rest = eqx.partition(shared, eqx.is_array)
    # Without vma: other libraries' loops start from constants, which do not vary over chains as what follows does.
    # Nothing is differentiated across the cut, where it would matter.
    return jax.shard_map(
        lambda part, arrays: function(part, *eqx.combine(arrays, rest)),
        in_specs=(PartitionSpec(axis), PartitionSpec()),
        out_specs=out,
        axis_names={axis},
        check_vma=False,
    )(whole, arrays)


def after(tree: T, *done: Array) -> T:
    """The same numbers, not to be had before those that are `done`.

    Devices that talk to each other must do so in one order. On CPUs jax runs loops of one program that do not depend on
    each other side by side, in any order, and two processes may then answer each other's other question.
    """
    if count() == 1:
        return tree
    nothing = sum((jnp.nan_to_num(jnp.sum(each) * 0) for each in done), start=jnp.zeros(()))
    return jax.tree.map(lambda leaf: leaf + nothing.astype(leaf.dtype), tree)


def everywhere(array: Array) -> Array:
    """An array with all its values on every device."""
    return jax.lax.with_sharding_constraint(array, PartitionSpec())


def _length(tree: PyTree) -> int:
    return jax.tree.leaves(tree)[0].shape[0]


# --- along rows


def sum_over_row_shards(function: Callable[..., PyTree], rows: PyTree, shared: Shared = ()) -> PyTree:
    """The sum over devices of `function(rows of its own, *shared)`; there are as many rows for each."""
    return _cut(
        lambda own, *shared: jax.lax.psum(function(own, *shared), ROWS), rows, shared, PartitionSpec(), axis=ROWS
    )


def place_rows(rows: Shaped[Array, "rows ..."], parts: int) -> Shaped[Array, "filled ..."]:
    """An array of rows on the devices of the mesh that is set, filled with copies of its last row to be cut evenly.

    Rows that are on them already stay where they are.
    """
    mesh = jax.sharding.get_mesh()
    sharding = NamedSharding(mesh, PartitionSpec(*(name for name in mesh.axis_names if name == ROWS)))
    n = rows.shape[0]
    if n % parts == 0 and rows.sharding.is_equivalent_to(sharding, rows.ndim):
        return rows
    values = np.asarray(rows)

    def part(index: Any) -> Shaped[np.ndarray, "part ..."]:
        places = np.arange(*index[0].indices(filled))
        return values[index[0]] if places[-1] < n else values[np.minimum(places, n - 1)]

    filled = -(-n // parts) * parts
    return jax.make_array_from_callback((filled, *rows.shape[1:]), sharding, part)


# --- several processes


def agree_on_key(key: Key[Array, ""]) -> Key[Array, ""]:
    """The first process's key, on every process: draws are the same on all of them."""
    if jax.process_count() == 1:
        return key
    from jax.experimental import multihost_utils

    return jax.random.wrap_key_data(jnp.asarray(multihost_utils.broadcast_one_to_all(jax.random.key_data(key))))


def join_processes() -> int:
    """Join the other processes of this run, where there are any; how many there are in all.

    They are those that a cluster's launcher started, which jax knows how to find; or those that the environment
    variables JAX_COORDINATOR_ADDRESS (host:port of the first), JAX_NUM_PROCESSES and JAX_PROCESS_ID speak of. Call it
    before anything else that uses jax. On CPUs processes talk by gloo, on GPUs by NCCL.
    """
    if jax.distributed.is_initialized():
        return jax.process_count()
    named = [os.environ.get(name) for name in (COORDINATOR, PROCESSES, PROCESS)]
    if any(named) and not all(named):
        raise InvalidOptionError(
            f"of {COORDINATOR}, {PROCESSES} and {PROCESS} only some are set.", "set all three, or none of them."
        )
    options: dict[str, Any] = {}
    if all(named):
        address, count, number = named
        options = {"coordinator_address": address, "num_processes": _whole(PROCESSES, count)}
        options |= {"process_id": _whole(PROCESS, number), "cluster_detection_method": "deactivate"}
    try:
        jax.distributed.initialize(
            **options, initialization_timeout=START_SECONDS, heartbeat_timeout_seconds=HEARTBEAT_SECONDS
        )
    except ValueError as error:
        if options:
            raise InvalidOptionError(str(error), f"mend {COORDINATOR}, {PROCESSES} and {PROCESS}.") from error
        return 1  # no launcher that jax knows
    except jax.errors.JaxRuntimeError as error:
        raise PeerLostError(
            f"the other processes of this run were not found: {str(error).splitlines()[0][:200]}",
            f"start all of them within {START_SECONDS} seconds, with one address that all can reach.",
        ) from error
    except RuntimeError as error:
        raise InvalidOptionError(
            "join_processes() came after jax had been used.", "call it first in the program."
        ) from error
    return jax.process_count()


def _whole(name: str, value: str | None) -> int:
    try:
        return int(value or "")
    except ValueError as error:
        raise InvalidOptionError(f"{name} is {value!r}.", "use a whole number.") from error
