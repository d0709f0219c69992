"""`--mesh`: devices to spread an erasure over, those of other processes too."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from posterase.errors import InvalidOptionError

if TYPE_CHECKING:
    from jax.sharding import Mesh

AUTO = "auto"
SHAPE = re.compile(r"(\d+)x(\d+)")

MeshName = Annotated[
    str | None,
    typer.Option(
        "--mesh", help="Devices to spread over, chains x rows: 2x4; or auto. Joins the processes started with this one."
    ),
]


def check_mesh(name: str | None) -> None:
    """That a mesh's name is one, before any work."""
    if name is not None and name != AUTO and not SHAPE.fullmatch(name):
        raise InvalidOptionError(f"mesh is {name!r}.", "write chains x rows, as 2x4; or auto, all devices for chains.")


def mesh_of(name: str | None) -> Mesh | None:
    """The mesh that is meant, once the other processes of the run have been found; None where none is."""
    if name is None:
        return None
    from posterase.runtime.sharding import join_processes, mesh

    join_processes()
    shape = SHAPE.fullmatch(name)
    return mesh() if shape is None else mesh(chains=int(shape[1]), rows=int(shape[2]))


def is_first() -> bool:
    """Whether this process is the one that speaks and writes: the first of several."""
    from jax import process_index

    return process_index() == 0
