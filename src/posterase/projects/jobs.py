"""A job: which rows to erase from which draws, and where to write what comes of it.

    draws = "fit.nc"
    model = "radon_model:build"      # build(draws) -> (model, draws); without it, stored log-likelihoods
    rows = 'county == "ANOKA"'       # a condition; or ids: [3, 17], "3,17,40-49"; or a file: "@rows.txt"
    by = "person"                    # then rows lists values of this column

    out = "kept.nc"
    certificate = "certificate.json"
    report = "report.html"

    mesh = "2x4"                     # devices, chains x rows, where there are several; or "auto"

    [policy]
    epsilon = 0.05

Paths are relative to the file. Code is named, never pickled.
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from posterase.data.conditions import parsed
from posterase.data.selection import RowTable
from posterase.draws.draws import Draws
from posterase.errors import OutputError, PosteraseError, ProjectError, RowsError
from posterase.ladder.policy import Policy
from posterase.projects.builders import Builder, Fit, builder, open_fit, policy_of
from posterase.projects.meshes import check_mesh
from posterase.projects.spec import TEXT, TEXTS, FitFile
from posterase.runtime.files import check_writable
from posterase.runtime.text import written

OUTPUTS = ("out", "certificate", "report", "verdict", "diagnostics")
MOST_IDS = 10_000_000
"""Row ids that ranges may come to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(FitFile):
    """What an erasure from files needs to know."""

    kind = "job"

    rows: Any = None
    """A list of ids or labels; ids and ranges as text; a condition; or `@FILE`, which lists ids or values of `by`."""
    by: str | None = dataclasses.field(default=None, metadata=TEXT)
    """The column whose values `rows` lists: all rows that have them are removed."""
    methods: tuple[str, ...] = dataclasses.field(default=(), metadata=TEXTS)
    """Names of methods to try, in order. Default: the ladder of `pe.erase`."""
    mesh: str | None = dataclasses.field(default=None, metadata=TEXT)
    """Devices to spread over, chains x rows, as 2x4; or auto."""
    out: str | None = dataclasses.field(default=None, metadata=TEXT)
    """The netCDF file to write."""
    certificate: str | None = dataclasses.field(default=None, metadata=TEXT)
    report: str | None = dataclasses.field(default=None, metadata=TEXT)
    verdict: str | None = dataclasses.field(default=None, metadata=TEXT)
    diagnostics: str | None = dataclasses.field(default=None, metadata=TEXT)
    """A .json or .html file for all figures and the draws before and after: it holds information about the removed
    rows, and is created with mode 0600."""
    refits: tuple[str, ...] = dataclasses.field(default=(), metadata=TEXTS)
    """Files of draws without the rows, sampled anew, to compare with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        policy_of(self)
        check_mesh(self.mesh)
        if self.methods:
            from posterase.methods.registry import find_method

            for name in self.methods:
                find_method(name)

    @classmethod
    def of(cls, source: Path, **flags: Any) -> Job:
        """From a TOML file or a file of draws, with what was said on the command line instead, where something was."""
        job = (
            cls.read(source) if source.suffix == ".toml" else cls(draws=str(source.absolute()), folder=str(Path.cwd()))
        )
        said = {name: value for name, value in flags.items() if value not in (None, [], {}, ())}
        for name in OUTPUTS:
            if name in said:
                said[name] = str(Path(said[name]).absolute())
        if (listed := _listing(said.get("rows"))) is not None:
            said["rows"] = f"@{listed.absolute()}"
        if "refits" in said:
            said["refits"] = tuple(str(Path(each).absolute()) for each in said["refits"])
        if "model" in said:
            job = dataclasses.replace(job._absolute(), folder=str(Path.cwd()), bridge=None)
        return dataclasses.replace(job, **{**said, "policy": job.policy | said.get("policy", {})})

    def _absolute(self) -> Job:
        """The same, with paths that are relative to nothing."""
        named = [name for name in ("draws", *OUTPUTS) if getattr(self, name) is not None]
        paths: dict[str, Any] = {name: str(self.path(name)) for name in named}
        if (listed := _listing(self.rows)) is not None:
            paths["rows"] = f"@{Path(self.folder) / listed}"
        return dataclasses.replace(self, **paths, refits=tuple(map(str, self.refit_paths)))

    # --- checks, before anything is opened

    @property
    def refit_paths(self) -> list[Path]:
        """Files of refits."""
        return [Path(self.folder) / each for each in self.refits]

    def check_files(self) -> None:
        """Refuse a job that reads what is not there."""
        for path in (self.draws_path, *self.refit_paths):
            if not path.exists():
                raise ProjectError(f"there is no file {str(path)!r}.", "check the path.")

    def targets(self, *, force: bool) -> dict[str, Path]:
        """The files to write, all of which can be written."""
        found = {name: self.path(name) for name in OUTPUTS if getattr(self, name) is not None}
        if "out" not in found:
            raise ProjectError(
                "it is not said where to write the new draws.", 'say it: out = "kept.nc", or --out kept.nc.'
            )
        if found["out"].suffix in (".zarr", ".zip"):
            raise ProjectError(f"out is {found['out'].name!r}, and draws are written as netCDF.", "name it kept.nc.")
        if "diagnostics" in found and found["diagnostics"].suffix not in (".json", ".html"):
            name = found["diagnostics"].name
            raise ProjectError(
                f"diagnostics is {name!r}, which ends in neither .json nor .html.", "name it diagnostics.html."
            )
        places: dict[Path, str] = {}
        for name, target in found.items():
            check_writable(target)
            same = places.setdefault(target.resolve(), name)
            if same != name:
                raise ProjectError(f"{same} and {name} are one file, {str(target)!r}.", "name two.")
            if target.exists() and not force:
                raise OutputError(f"{str(target)!r} already exists.", "name another file, or pass --force.")
        return found

    def selection(self) -> Selection:
        """Which rows are meant, as far as that can be told without the data."""
        if self.rows is None:
            raise ProjectError(
                "the job does not say which rows.", 'write rows = [3, 17], or rows = "@rows.txt"; or --rows.'
            )
        if (listed := _listing(self.rows)) is not None:
            return Selection(self.by, self._listed(Path(self.folder) / listed))
        if self.by is not None:
            return Selection(self.by, _values(self.rows))
        return Selection(None, ids(self.rows) if isinstance(self.rows, str) else _ids_or_labels(self.rows))

    def builder(self) -> Builder | None:
        """The function that builds the model, where one is named."""
        if self.model is None:
            return None
        return builder(self.model, self.folder, failed=_failed)

    # --- opening

    def open(self, build: Builder | None) -> Fit:
        """Open the draws with their model. No subject of a job was erased before."""
        return open_fit(self, build, lambda subjects: [False for _ in subjects])

    @property
    def rules(self) -> Policy:
        """The job's policy."""
        return policy_of(self)

    def read_refits(self, like: Draws) -> list[Draws]:
        """Draws of refits, in the structure of the job's draws."""
        return [Draws.load(path, like=like.params) for path in self.refit_paths]

    def _listed(self, path: Path) -> list[Any]:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise ProjectError(f"{str(path)!r} cannot be read: {why}.", "check the path.") from None
        found: list[Any] = []
        for number, line in enumerate(lines, 1):
            bare = re.sub(r"(^|\s)#.*", "", line).strip()
            if not bare:
                continue
            try:
                found += _cells(bare) if self.by is not None else _numbers(bare)
            except RowsError as error:
                raise RowsError(f"{path.name}, line {number}: {error.problem}", error.advice) from None
        if not found:
            raise ProjectError(f"{str(path)!r} lists no rows.", "write ids in it, one or several a line.")
        return found


@dataclasses.dataclass(frozen=True)
class Selection:
    """Rows by ids, labels or a condition; or by the values of a column."""

    by: str | None
    rows: Any

    def ids(self, table: RowTable) -> Any:
        """Row ids, or a mask."""
        return table.select(self.rows) if self.by is None else table.having_any(self.by, self.rows)

    @property
    def named(self) -> list[str]:
        """Values that the rows were named by."""
        if isinstance(self.rows, str):
            return re.findall(r"""["']([^"']+)["']""", self.rows)
        return [each for each in self.rows if isinstance(each, str)]


def _listing(rows: Any) -> Path | None:
    """The file that `@FILE` names; None for other rows."""
    return Path(rows[1:]) if isinstance(rows, str) and rows.startswith("@") else None


def ids(text: str) -> str | list[int]:
    """Row ids such as `3,17,40-49`, or a condition as it is."""
    if re.fullmatch(r"[\d\s,-]+", text):
        return _numbers(text)
    parsed(text)
    return text


def policy_flags(flags: Iterable[str]) -> dict[str, Any]:
    """`epsilon=0.01`, `refit=false`: entries of a policy from the command line."""
    found: dict[str, Any] = {}
    for flag in flags:
        name, equals, value = flag.partition("=")
        words: dict[str, Any] = {"true": True, "false": False}
        try:
            found[name.strip()] = words[value.lower()] if value.lower() in words else float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise ProjectError(
                f"--policy: {flag!r} is no entry of a policy.", "write it as epsilon=0.01, or refit=false."
            )
    return found


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in re.split(r"[\s,]+", text.strip(" ,\t")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise RowsError(f"{part!r} is no row id and no range of them.", "write 3,17,40-49.")
        if last - first + len(found) >= MOST_IDS:
            raise RowsError(f"{part!r} are more rows than can be named by ids.", "write a condition.")
        found += range(first, last + 1)
    return found


def _cells(line: str) -> list[str]:
    """Values between commas; one with a comma in it stands in quotes."""
    return [each.strip() for each in next(csv.reader([line], skipinitialspace=True)) if each.strip()]


def _values(rows: Any) -> list[str]:
    """Values of a column, as people write them."""
    found = _cells(rows) if isinstance(rows, str) else [written(each) for each in _flat(rows)]
    if not found:
        raise RowsError(f"rows is {rows!r}.", "list values of the column.")
    return found


def _ids_or_labels(rows: Any) -> list[Any]:
    found = list(_flat(rows))
    if not found:
        raise RowsError("rows is an empty list.", "name at least one row.")
    if any(isinstance(each, str) for each in found) and not all(isinstance(each, str) for each in found):
        raise RowsError("rows mixes numbers with text.", "give ids, or labels.")
    return found


def _flat(rows: Any) -> Iterator[Any]:
    if not isinstance(rows, Sequence):
        raise RowsError(f"rows is {rows!r}.", "use a list, or text.")
    for each in rows:
        if isinstance(each, bool) or not isinstance(each, (int, float, str)):
            raise RowsError(f"rows lists {each!r}.", "list numbers or texts.")
        yield each


def _failed(name: str, error: Exception) -> PosteraseError:
    said = f"{type(error).__name__}: {error}".rstrip(".")
    return ProjectError(f"building the model ended in {said}.", f"fix {name}: it is called with the path of the draws.")
