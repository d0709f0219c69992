"""The schema of job and project files: what they share (`FitFile`), and what only a project has.

A project says where the draws are, how to build their model, how a subject's key finds rows, and what the policy is:

    name = "radon"
    draws = "draws.nc"
    model = "radon_model:build"     # build(draws, erased) -> (model, draws); or: bridge = "arviz"
    subject = "county"              # the column of the data that says whose row it is

    owns = ["cache/*.npz"]          # files that hold the rows too, and are deleted with them
    beyond = ["nightly backups"]    # copies that posterase cannot reach: certificates list them

    [policy]
    epsilon = 0.05

Paths are relative to the file. Code is named, never pickled.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, Self

from posterase.bridges.registry import BRIDGES, bridge_names
from posterase.errors import ProjectError
from posterase.runtime.text import FUNCTION, did_you_mean

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

WasErased = Callable[[Iterable[Any]], list[bool]]
"""Tells which of these subjects were erased before."""


# --- fields: each parses its own value


def _parse_text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ProjectError(f"{name} is {value!r}.", "use text.")
    return value


def _parse_texts(name: str, value: Any) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, (list, tuple)) or not all(isinstance(each, str) and each for each in values):
        raise ProjectError(f"{name} is {value!r}.", "use text, or a list of texts.")
    return tuple(values)


def _parse_name(_: str, value: Any) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ProjectError(f"{value!r} cannot name a project.", "use letters, digits, dots and dashes.")
    return value


def _parse_function(name: str, value: Any) -> str:
    if not FUNCTION.fullmatch(_parse_text(name, value)):
        raise ProjectError(f"{value!r} names no function.", 'write it as "module:function".')
    return str(value)


def _parse_bridge(name: str, value: Any) -> str:
    if _parse_text(name, value) in BRIDGES.own or value in bridge_names():  # the latter searches all packages
        return str(value)
    raise ProjectError(
        f"there is no bridge {value!r} that needs a file only.",
        f'use {", ".join(bridge_names())}; for others write a function: model = "module:function".',
    )


def _parse_seed(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ProjectError(f"{name} is {value!r}.", "use a whole number, not negative.")
    return value


def _parse_table(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProjectError(f"{name} is {value!r}.", f"write it as a table: [{name}].")
    return value


TEXT = {"parse": _parse_text}
TEXTS = {"parse": _parse_texts}
"""Metadata of fields that are a text, or a text or a list of them. A field whose default is None may be None."""


# --- what job and project files share


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitFile:
    """Draws, how to build their model, and the policy: the fields of every job and project file."""

    kind: ClassVar[str]
    """What errors call it."""
    required: ClassVar[tuple[str, ...]] = ("draws",)

    draws: str = dataclasses.field(metadata=TEXT)
    """A file of draws: netCDF; for a job a zarr folder too."""
    model: str | None = dataclasses.field(default=None, metadata={"parse": _parse_function})
    """`module:function`, called with the path of the draws and with `erased`; returns a model and draws."""
    bridge: str | None = dataclasses.field(default=None, metadata={"parse": _parse_bridge})
    """Or a bridge that reads everything from the file. Default, without a model: `arviz`."""
    row_dim: tuple[str, ...] = dataclasses.field(default=(), metadata=TEXTS)
    """Which axis of the log-likelihoods is the rows, if a bridge finds several."""
    preprocessing: str | None = dataclasses.field(default=None, metadata=TEXT)
    """What was computed from all rows before the fit, in words; or none."""
    seed: int | None = dataclasses.field(default=None, metadata={"parse": _parse_seed})
    """Of all random numbers, for tests. Default: fresh entropy from the operating system. With a known seed, anyone who
    knows the method can replay the random numbers."""
    policy: dict[str, Any] = dataclasses.field(default_factory=dict, metadata={"parse": _parse_table})
    """Entries of `pe.Policy`."""
    folder: str = dataclasses.field(default=".", metadata=TEXT)
    """The folder of the file, which its paths are relative to."""

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if "parse" in each.metadata and not (value is None and each.default is None):
                object.__setattr__(self, each.name, each.metadata["parse"](each.name, value))
        if self.model is not None and self.bridge is not None:
            raise ProjectError(
                f"a {self.kind} has a model or a bridge, and this one has both.", "leave one of them out."
            )
        if self.model is not None and self.row_dim:
            raise ProjectError("row_dim is for stored log-likelihoods, and there is a model.", "leave one of them out.")

    @property
    def draws_path(self) -> Path:
        """The file of draws."""
        return self.path("draws")

    def path(self, name: str) -> Path:
        """Return the path that a field names."""
        return Path(self.folder) / getattr(self, name)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Make it from plain JSON. An unknown key raises an error that suggests the closest match."""
        known = [field.name for field in dataclasses.fields(cls) if field.name != "folder"]
        for name in values:
            if name not in (*known, "folder"):
                meant = did_you_mean(name, known, f"use {', '.join(known)}.")
                raise ProjectError(f"a {cls.kind} has no {name!r}.", meant)
        for name in cls.required:
            if name not in values:
                raise ProjectError(f"the {cls.kind} has no {name!r}.", f'add it: {name} = "…".')
        return cls(**values)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read it from its TOML file."""
        values = _read_toml(path)
        if "folder" in values:
            raise ProjectError("folder is where the file is.", "leave it out: paths are relative to the file.")
        return cls.from_dict(values | {"folder": str(path.parent.resolve())})


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ProjectError(f"{str(path)!r} cannot be read: {error.strerror}.", "check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProjectError(f"{str(path)!r} is not TOML: {error}.", "fix it there.") from None


# --- projects


@dataclasses.dataclass(frozen=True, kw_only=True)
class Project(FitFile):
    """What erasures of one posterior need to know."""

    kind = "project"
    required = ("name", "draws")

    name: str = dataclasses.field(metadata={"parse": _parse_name})
    subject: str = dataclasses.field(default="subject", metadata=TEXT)
    """The column that says whose row it is."""
    owns: tuple[str, ...] = dataclasses.field(default=(), metadata=TEXTS)
    """Patterns of files that still hold the rows, and are deleted with them."""
    beyond: tuple[str, ...] = dataclasses.field(default=(), metadata=TEXTS)
    """Copies that cannot be reached, in words."""

    @property
    def draws_path(self) -> Path:
        """The file of draws itself, if its name is a link."""
        return self.path("draws").resolve()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read it from its TOML file, and check that its draws exist."""
        project = super().read(path)
        if not project.draws_path.is_file():
            raise ProjectError(
                f"there is no file {str(project.draws_path)!r}.", "save the draws there as netCDF: draws.save(path)."
            )
        return project
