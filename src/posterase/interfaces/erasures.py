"""What the record is handed: a project's draws and model, opened; rows erased by `pe.erase`; new draws saved."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib
import inspect
import platform
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from posterase.bridges.arviz import from_arviz
from posterase.container import fingerprint
from posterase.draws import Draws
from posterase.erase import Erasure, erase
from posterase.errors import (
    CoupledRowsError,
    ImproperPosteriorError,
    NonFiniteResultError,
    NothingKeptError,
    PosteraseError,
    ProjectError,
)
from posterase.model import AbstractModel
from posterase.policy import Policy
from posterase.record.privacy import written
from posterase.record.project import Project
from posterase.record.runs import Erased, Facts, place_of
from posterase.rows import Block, RowTable, table_of
from posterase.version import __version__

OF_A_REQUEST = (NothingKeptError, CoupledRowsError, ImproperPosteriorError, NonFiniteResultError)
"""Errors that are about the rows that were asked for: such a request is refused, others go on."""

ASSUMPTIONS = (
    "the draws before the erasure were draws of the model's posterior of all rows",
    "the model's likelihood and prior, as the project's code states them, are those that the draws were sampled with",
    "all rows of the subject are found by the project's column of subjects",
    "ε is an estimate with a standard error, and speaks of one draw's distribution, not of all draws together",
)

DATA_GROUPS = ("observed_data", "constant_data")


@dataclasses.dataclass(frozen=True)
class Opened:
    """A project's model and draws."""

    project: Project
    model: AbstractModel
    draws: Draws
    table: RowTable
    policy: Policy
    facts: Facts

    def rows_of(self, subject: str) -> list[int]:
        """Rows whose subject is written like this."""
        found: list[int] = []
        for block, at in self.table.placed():
            column = block.column(self.project.subject)
            if column is not None:
                same = np.array([written(each) == subject for each in column.tolist()], bool)
                found += (at.start + np.flatnonzero(same)).tolist()
        return [row for row in found if row not in self.table.absent]

    def erase(self, rows: Sequence[int], seed: int, spent: float) -> Tried:
        """Climb the ladder."""
        try:
            removal = self.model.removal(list(rows))
            result = erase(self.model, self.draws, removal, key=seed, policy=self.policy, spent=spent)
        except OF_A_REQUEST as error:
            return Tried(None, (type(error).__doc__ or "").splitlines()[0])  # its own text may hold values of rows
        return Tried(result, "" if result.verdict.accepted else f"{result.verdict.reason}. {result.verdict.advice}")


@dataclasses.dataclass(frozen=True)
class Tried:
    """An erasure, or why there is none."""

    result: Erasure | None
    reason: str

    @property
    def accepted(self) -> bool:
        """Whether its draws may be used."""
        return self.result is not None and self.result.verdict.accepted

    @property
    def report(self) -> dict[str, Any]:
        """Verdict, rungs, policy."""
        assert self.result is not None
        return self.result.to_dict()

    @property
    def spent(self) -> float:
        """Of the budget, with this erasure."""
        assert self.result is not None
        return self.result.spent

    @property
    def data(self) -> bytes:
        """A digest of the data that are left."""
        assert self.result is not None
        return data_digest(self.result.model, self.result.draws)

    @property
    def not_erased(self) -> tuple[str, ...]:
        """What the verdict says is still there."""
        assert self.result is not None
        return tuple(note for note in self.result.verdict.notes if not note.startswith(("cut ", "dropped")))

    def save(self, path: Path) -> None:
        """Write the new draws."""
        assert self.result is not None
        self.result.draws.save(path)


def open_project(project: Project, erased: Erased) -> Opened:
    """Open the draws of a project, with the model that its function or bridge builds."""
    policy = policy_of(project)
    model: AbstractModel
    if project.bridge == "arviz":
        model, draws = from_arviz(project.draws_path, preprocessing=project.preprocessing)
        code = f"posterase {__version__}, stored log-likelihoods"
    else:
        model, draws, code = _built(project, erased)
    table = table_of(model.data, len(model.present)) if draws.container is None else draws.container.table
    known = [block for block in table.blocks if block.column(project.subject) is not None]
    if not known:
        near = difflib.get_close_matches(project.subject, table.names, 1)
        meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(table.names) or 'none'}."
        raise ProjectError(f"the data have no column {project.subject!r} of subjects.", meant)
    back = {written(each) for block in known for each in _present(table, block, project.subject)}
    again = sum(erased(sorted(back)))
    if again:
        raise ProjectError(
            f"{again} of the subjects in the data were erased before.",
            "leave their rows out: build(draws, erased), and at the source. Where they came back of their own will: "
            "posterase requests project FILE --returned.",
        )
    facts = Facts(data_digest(model, draws), code, _versions(), _hardware(), ASSUMPTIONS)
    return Opened(project, model, draws, table, policy, facts)


def _present(table: RowTable, block: Block, name: str) -> Iterator[Any]:
    """Subjects of the rows of a block that are there."""
    at = next(at for each, at in table.placed() if each is block)
    column = block.column(name)
    assert column is not None
    return (value for row, value in enumerate(column.tolist(), at.start) if row not in table.absent)


def policy_of(project: Project) -> Policy:
    """The project's policy."""
    names = [field.name for field in dataclasses.fields(Policy)]
    for name in project.policy:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            meant = f"did you mean {near[0]}?" if near else f"use {', '.join(names)}."
            raise ProjectError(f"a policy has no {name!r}.", meant)
    numbers = {name: float(value) for name, value in project.policy.items() if type(value) is int}
    return Policy(**project.policy | numbers)


def data_digest(model: AbstractModel, draws: Draws) -> bytes:
    """A digest of the data of the rows that are there."""
    named: dict[str, Any] = {}
    if draws.container is not None:
        groups = [(name, draws.container.groups[name]) for name in DATA_GROUPS if name in draws.container.groups]
        named = {f"{name}.{each}": values.values for name, group in groups for each, values in group.data_vars.items()}
    if not named:
        present = np.asarray(model.present)
        named = {str(i): np.asarray(leaf)[present] for i, leaf in enumerate(jax.tree.leaves(model.data))}
    return bytes.fromhex(fingerprint(named))


def _built(project: Project, erased: Erased) -> tuple[AbstractModel, Draws, str]:
    assert project.model is not None
    place, _, name = project.model.partition(":")
    problem: ProjectError
    try:
        build, code = _function(project, place, name)
        return *_checked(project.model, _called(build, project.draws_path, erased)), code
    except PosteraseError:
        raise
    except Exception as error:
        problem = ProjectError(
            f"building the model ended in {place_of(error)}.",
            f"call {project.model} yourself to see all of it: its text may hold data, and is not told here.",
        )
    raise problem  # not while the other one is handled: it would be its context


def _function(project: Project, place: str, name: str) -> tuple[Callable[..., Any], str]:
    """The function that builds the model, and a digest of its code.

    A file in the project's folder is read each time, and apart from others of its name: projects may share a process.
    """
    file = Path(project.folder, *place.split(".")).with_suffix(".py")
    if file.is_file():
        source = file.read_bytes()
        module = types.ModuleType(place)
        module.__file__ = str(file)
        sys.path.insert(0, project.folder)
        try:
            exec(compile(source, str(file), "exec"), module.__dict__)
        finally:
            sys.path.remove(project.folder)
        digest = hashlib.sha256(source).hexdigest()
    else:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name not in (place, place.partition(".")[0]):
                raise
            raise ProjectError(f"there is no module {place!r}.", f"put {place}.py in {project.folder!r}.") from None
        origin = getattr(module, "__file__", None)
        digest = hashlib.sha256(Path(origin).read_bytes()).hexdigest() if origin else ""
    build = getattr(module, name, None)
    if not callable(build):
        raise ProjectError(f"{place!r} has no function {name!r}.", "name the one that builds the model.")
    return build, f"sha256:{digest}" if digest else "unknown"


def _called(build: Callable[..., Any], draws: Path, erased: Erased) -> Any:
    """`build(draws)` or `build(draws, erased)`, by name where it has the name."""
    try:
        parameters = inspect.signature(build).parameters
    except (TypeError, ValueError):
        return build(draws)
    if "erased" in parameters:
        return build(draws, erased=erased)
    return build(draws, erased) if len(parameters) > 1 else build(draws)


def _checked(name: str, made: Any) -> tuple[AbstractModel, Draws]:
    if (
        not (isinstance(made, tuple) and len(made) == 2)
        or not isinstance(made[0], AbstractModel)
        or not isinstance(made[1], Draws)
    ):
        raise ProjectError(f"{name} returned {type(made).__name__}.", "return (model, draws), as bridges do.")
    return made


def _versions() -> dict[str, str]:
    names = ("jax", "jaxlib", "numpy", "equinox", "blackjax")
    own = {"python": platform.python_version(), "posterase": __version__}
    return own | {name: version(name) for name in names}


def _hardware() -> dict[str, Any]:
    device = jax.devices()[0]
    return {"machine": platform.machine(), "platform": device.platform, "device": device.device_kind}
