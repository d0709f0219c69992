"""A project: where the draws are, how to build their model, how a subject's key finds rows, and the policy.

    name = "radon"
    draws = "draws.nc"
    model = "radon_model:build"     # build(draws, erased) -> (model, draws); or: bridge = "arviz"
    subject = "county"              # the column of the data that names whose a row is

    owns = ["cache/*.npz"]          # files that hold the rows too, and are deleted with them
    beyond = ["nightly backups"]    # copies that cannot be reached from here: certificates list them

    [policy]
    epsilon = 0.05

Paths are relative to the file. Code is named, never pickled.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from posterase.errors import ProjectError
from posterase.runtime.files import read_toml
from posterase.runtime.text import FUNCTION, did_you_mean

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
BRIDGES = ("arviz",)
"""Those that need a file and no code."""


@dataclasses.dataclass(frozen=True)
class Project:
    """What erasures of one posterior need to know."""

    name: str
    draws: str
    """A netCDF file."""
    model: str | None = None
    """`module:function`, called with the path of the draws and with `erased`; returns a model and draws."""
    bridge: str | None = None
    """Or a bridge that reads everything from the file."""
    subject: str = "subject"
    """The column that names whose a row is."""
    row_dim: tuple[str, ...] = ()
    """Which axis of the log-likelihoods is the rows, where a bridge finds several."""
    preprocessing: str | None = None
    """What was computed from all rows before the fit, in words; or none."""
    seed: int | None = None
    """Of all random numbers, for tests. Default: fresh entropy from the operating system. With a known seed, anyone who
    knows the method can replay the random numbers."""
    owns: tuple[str, ...] = ()
    """Patterns of files that still hold the rows, and are deleted with them."""
    beyond: tuple[str, ...] = ()
    """Copies that cannot be reached, in words."""
    policy: dict[str, Any] = dataclasses.field(default_factory=dict)
    folder: str = "."
    """Where the project's file is, which its paths are relative to."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ProjectError(f"{self.name!r} cannot name a project.", "use letters, digits, dots and dashes.")
        _texts(self, "draws", "subject", "folder")
        _texts(self, "model", "bridge", "preprocessing", optional=True)
        if (self.model is None) == (self.bridge is None):
            raise ProjectError(
                "a project has a model or a bridge.", 'write model = "module:function", or bridge = "arviz".'
            )
        if self.model is not None and not FUNCTION.fullmatch(self.model):
            raise ProjectError(f"{self.model!r} names no function.", 'write it as "module:function".')
        if self.bridge is not None and self.bridge not in BRIDGES:
            raise ProjectError(
                f"there is no bridge {self.bridge!r} that needs a file only.",
                f'use {", ".join(BRIDGES)}; for others write a function: model = "module:function".',
            )
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0):
            raise ProjectError(f"seed is {self.seed!r}.", "use a whole number, not negative.")
        if isinstance(self.row_dim, str):
            object.__setattr__(self, "row_dim", (self.row_dim,))
        for name in ("row_dim", "owns", "beyond"):
            values = getattr(self, name)
            if not isinstance(values, (list, tuple)) or not all(isinstance(each, str) and each for each in values):
                raise ProjectError(f"{name} is {values!r}.", "use a list of texts.")
            object.__setattr__(self, name, tuple(values))
        if self.model is not None and self.row_dim:
            raise ProjectError("row_dim is for a bridge, and there is a model.", "leave one of them out.")
        if not isinstance(self.policy, dict):
            raise ProjectError(f"policy is {self.policy!r}.", "write it as a table: [policy].")

    @property
    def draws_path(self) -> Path:
        """The file of draws itself, where its name is a link."""
        return (Path(self.folder) / self.draws).resolve()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Project:
        """From plain JSON; a name that is none is answered with the nearest that is one."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                meant = did_you_mean(name, known[:-1], f"use {', '.join(known[:-1])}.")
                raise ProjectError(f"a project has no {name!r}.", meant)
        for name in ("name", "draws"):
            if name not in values:
                raise ProjectError(f"the project has no {name!r}.", f'add it: {name} = "…".')
        return cls(**values)

    @classmethod
    def read(cls, path: Path) -> Project:
        """From its TOML file."""
        values = read_toml(path, ProjectError)
        if "folder" in values:
            raise ProjectError("folder is where the file is.", "leave it out: paths are relative to the file.")
        project = cls.from_dict(values | {"folder": str(path.parent.resolve())})
        if not project.draws_path.is_file():
            raise ProjectError(
                f"there is no file {str(project.draws_path)!r}.", "save the draws there as netCDF: draws.save(path)."
            )
        return project


def _texts(project: Project, *names: str, optional: bool = False) -> None:
    for name in names:
        value = getattr(project, name)
        if not (optional and value is None) and (not isinstance(value, str) or not value):
            raise ProjectError(f"{name} is {value!r}.", "use text.")
