"""What the record is handed: a project's draws and model, opened; rows erased by `pe.erase`; new draws saved."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from posterase.data.row_source import is_streamed
from posterase.data.selection import Block, RowTable
from posterase.draws.draws import Draws
from posterase.draws.inference_groups import fingerprint
from posterase.draws.notes import Assumption, AssumptionScope
from posterase.errors import (
    CoupledRowsError,
    ImproperPosteriorError,
    NonFiniteResultError,
    NothingKeptError,
    PosteraseError,
    ProjectError,
)
from posterase.ladder.erase import erase
from posterase.ladder.policy import Policy
from posterase.ladder.result import Result
from posterase.model.base import AbstractModel
from posterase.projects.advice import as_settings
from posterase.projects.builders import builder, open_fit, policy_of
from posterase.projects.spec import Project, WasErased
from posterase.record.runs import Facts, place_of
from posterase.runtime.text import did_you_mean, written
from posterase.version import __version__

OF_A_REQUEST = (NothingKeptError, CoupledRowsError, ImproperPosteriorError, NonFiniteResultError)
"""Errors that are about the rows that were asked for: such a request is refused, others go on."""

ASSUMPTIONS = (
    Assumption("all", "the draws before the erasure were draws of the model's posterior of all rows"),
    Assumption(
        "all",
        "the model's likelihood and prior, as the project's code states them, are those that the draws were sampled "
        "with",
    ),
    Assumption("subjects", "all rows of the subject are found by the project's column of subjects"),
    Assumption(
        "all",
        "ε is an estimate with a standard error, and speaks of one draw's distribution, not of all draws together",
    ),
    Assumption("named rows", "the rows that were named are all that were to be erased"),
)
"""What certificates take for granted."""


def assumptions(scope: AssumptionScope) -> tuple[str, ...]:
    """List the assumptions of erasures of one scope, in words."""
    return tuple(each.text for each in ASSUMPTIONS if each.scope in ("all", scope))


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
        return self.table.having(self.project.subject, subject)

    def erase(self, rows: Sequence[int], seed: int | None, spent: float) -> Tried:
        """Climb the ladder."""
        try:
            change = self.model.change(remove=list(rows))
            result = erase(self.model, self.draws, change, random_seed=seed, policy=self.policy, spent=spent)
        except OF_A_REQUEST as error:
            return Tried(None, error.public_reason)  # its own text may hold values of rows
        verdict = result.to_dict()["verdict"]
        return Tried(
            result, "" if verdict["accepted"] else f"{verdict['reason']}. {as_settings(verdict['advice'] or '')}"
        )


@dataclasses.dataclass(frozen=True)
class Tried:
    """An erasure, or why there is none."""

    result: Result | None
    reason: str

    @property
    def accepted(self) -> bool:
        """Whether its draws may be used."""
        return self.result is not None and self.result.verdict.accepted

    @property
    def report(self) -> dict[str, Any]:
        """The public report: verdict, methods, policy, budget spent."""
        assert self.result is not None
        return self.result.to_dict()

    @property
    def data(self) -> bytes:
        """A digest of the data that are left."""
        assert self.result is not None
        return data_digest(self.result.model, self.result.draws)

    def save(self, path: Path) -> None:
        """Write the new draws."""
        assert self.result is not None
        self.result.draws.save(path, overwrite=True)


def open_project(project: Project, erased: WasErased) -> Opened:
    """Open the draws of a project, with the model that its function or bridge builds."""
    policy = policy_of(project)
    build = None if project.model is None else builder(project.model, project.folder, failed=_failed)
    fit = open_fit(project, build, erased)
    model, draws, table, code = fit
    known = [block for block in table.blocks if block.column(project.subject) is not None]
    if not known:
        there = f"there are {', '.join(table.names) or 'none'}."
        raise ProjectError(
            f"the data have no column {project.subject!r} of subjects.",
            did_you_mean(project.subject, table.names, there),
        )
    back = {written(each) for block in known for each in _present(table, block, project.subject)}
    again = sum(erased(sorted(back)))
    if again:
        raise ProjectError(
            f"{again} of the subjects in the data were erased before.",
            "leave their rows out: build(draws, erased), and at the source. Where they came back of their own will: "
            "posterase requests register FILE --returned.",
        )
    facts = Facts(data_digest(model, draws), code, versions(), hardware(), assumptions("subjects"))
    return Opened(project, model, draws, table, policy, facts)


def _present(table: RowTable, block: Block, name: str) -> Iterator[Any]:
    """Subjects of the rows of a block that are there."""
    at = next(at for each, at in table.placed() if each is block)
    column = block.column(name)
    assert column is not None
    return (value for row, value in enumerate(column.tolist(), at.start) if row not in table.absent)


def data_digest(model: AbstractModel, draws: Draws) -> bytes:
    """A digest of the data of the rows that are there."""
    named: dict[str, Any] = {}
    if draws.container is not None:
        groups = [(name, draws.container.groups[name]) for name in DATA_GROUPS if name in draws.container.groups]
        named = {f"{name}.{each}": values.values for name, group in groups for each, values in group.data_vars.items()}
    if not named:
        present = np.asarray(model.present)
        if is_streamed(model.data):
            named = {"present": present, "blocks": np.array([_fingerprint(each) for each in model.data.blocks()])}
        else:
            named = {str(i): np.asarray(leaf)[present] for i, leaf in enumerate(jax.tree.leaves(model.data))}
    return bytes.fromhex(fingerprint(named))


def _fingerprint(data: PyTree) -> str:
    return fingerprint({str(i): leaf for i, leaf in enumerate(jax.tree.leaves(data))})


def _failed(name: str, error: Exception) -> PosteraseError:
    return ProjectError(
        f"building the model ended in {place_of(error)}.",
        f"call {name} yourself to see all of it: its text may hold data, and is not told here.",
    )


def versions() -> dict[str, str]:
    """Of what computes."""
    names = ("jax", "jaxlib", "numpy", "equinox", "blackjax")
    own = {"python": platform.python_version(), "posterase": __version__}
    return own | {name: version(name) for name in names}


def hardware() -> dict[str, Any]:
    """What computes."""
    device = jax.devices()[0]
    return {"machine": platform.machine(), "platform": device.platform, "device": device.device_kind}
