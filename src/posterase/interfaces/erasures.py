"""What the record is handed: a project's draws and model, opened; rows erased by `pe.erase`; new draws saved."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib
import inspect
import platform
import sys
from collections.abc import Sequence
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
    ProjectError,
)
from posterase.model import AbstractModel
from posterase.policy import Policy
from posterase.record.project import Project
from posterase.record.runs import Erased, Facts
from posterase.rows import RowTable, table_of

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
                same = np.array([_written(each) == subject for each in column.tolist()], bool)
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
        code = f"posterase {version('posterase')}, stored log-likelihoods"
    else:
        model, draws, code = _built(project, erased)
    table = table_of(model.data, len(model.present)) if draws.container is None else draws.container.table
    known = [block for block in table.blocks if block.column(project.subject) is not None]
    if not known:
        near = difflib.get_close_matches(project.subject, table.names, 1)
        meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(table.names) or 'none'}."
        raise ProjectError(f"the data have no column {project.subject!r} of subjects.", meant)
    facts = Facts(data_digest(model, draws), code, _versions(), _hardware(), ASSUMPTIONS)
    return Opened(project, model, draws, table, policy, facts)


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
    if project.folder not in sys.path:
        sys.path.insert(0, project.folder)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name != place:
            raise
        raise ProjectError(f"there is no module {place!r}.", f"put {place}.py in {project.folder!r}.") from None
    build = getattr(module, name, None)
    if not callable(build):
        raise ProjectError(f"{place!r} has no function {name!r}.", "name the one that builds the model.")
    takes = len(inspect.signature(build).parameters)
    made = build(project.draws_path, erased) if takes > 1 else build(project.draws_path)
    if not (isinstance(made, tuple) and len(made) == 2):
        raise ProjectError(f"{project.model} returned {type(made).__name__}.", "return (model, draws), as bridges do.")
    source = inspect.getsourcefile(build)
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else "unknown"
    return *made, f"sha256:{digest}"


def _written(value: Any) -> str:
    """A subject's key as people write it: 17 for 17.0."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value.decode() if isinstance(value, bytes) else str(value)


def _versions() -> dict[str, str]:
    names = ("posterase", "jax", "jaxlib", "numpy", "equinox", "blackjax")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


def _hardware() -> dict[str, Any]:
    device = jax.devices()[0]
    return {"machine": platform.machine(), "platform": device.platform, "device": device.device_kind}
