"""Draws opened with their model: from a file alone, by stored log-likelihoods, or by a function that somebody wrote."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from posterase.bridges.registry import find_bridge
from posterase.data.selection import RowTable, table_of
from posterase.draws.draws import Draws
from posterase.errors import PosteraseError, ProjectError
from posterase.ladder.policy import Policy
from posterase.model.base import AbstractModel
from posterase.projects.spec import FitFile, WasErased
from posterase.runtime.text import did_you_mean
from posterase.version import __version__

DEFAULT_BRIDGE = "arviz"
"""The bridge of a file that names neither a model nor a bridge."""

CODE_OF_BRIDGES = {"arviz": "stored log-likelihoods"}
"""What certificates name instead of a digest of code."""

Failed = Callable[[str, Exception], PosteraseError]
"""What to tell of an error in somebody's code, given the function's name."""


class Fit(NamedTuple):
    """Draws and the model that they are of."""

    model: AbstractModel
    draws: Draws
    table: RowTable
    code: str
    """A digest of the code that built the model, or what stood in for it."""

    @classmethod
    def of(cls, model: AbstractModel, draws: Draws, code: str) -> Fit:
        """With what is known of the rows."""
        table = table_of(model.data, model.present) if draws.container is None else draws.container.table
        return cls(model, draws, table, code)


class Builder(NamedTuple):
    """A function that builds a model, named as `module:function`."""

    name: str
    folder: str
    """Where modules beside the function's are."""
    build: Callable[..., Any]
    code: str
    """A digest of its file."""
    beside: dict[str, types.ModuleType]
    """Modules that it has imported from the folder."""
    failed: Failed

    def __call__(self, draws: Path, erased: WasErased) -> Fit:
        """`build(draws)` or `build(draws, erased)`, by name where it has the name."""
        problem: PosteraseError
        try:
            with _importing_from(self.folder, self.beside):
                made = self._called(draws, erased)
            return Fit.of(*self._checked(made), _with_files(self.code, self.beside))
        except PosteraseError:
            raise
        except Exception as error:
            problem = self.failed(self.name, error)
        raise problem  # not while the other one is handled: it would be its context

    def _called(self, draws: Path, erased: WasErased) -> Any:
        try:
            parameters = inspect.signature(self.build).parameters
        except (TypeError, ValueError):
            return self.build(draws)
        if "erased" in parameters:
            return self.build(draws, erased=erased)
        return self.build(draws, erased) if len(parameters) > 1 else self.build(draws)

    def _checked(self, made: Any) -> tuple[AbstractModel, Draws]:
        if (
            not (isinstance(made, tuple) and len(made) == 2)
            or not isinstance(made[0], AbstractModel)
            or not isinstance(made[1], Draws)
        ):
            raise ProjectError(f"{self.name} returned {type(made).__name__}.", "return (model, draws), as bridges do.")
        return made


def builder(name: str, folder: str, *, failed: Failed) -> Builder:
    """The function of this name, from a file in the folder or from an installed module.

    Parameters
    ----------
    name
        `module:function`.
    folder
        Where the module's file may be.
    failed
        What becomes of an error in its code, whose text may hold data.
    """
    place, _, function = name.partition(":")
    problem: PosteraseError
    try:
        return Builder(name, folder, *_function(folder, place, function), failed)
    except PosteraseError:
        raise
    except Exception as error:
        problem = failed(name, error)
    raise problem


def open_fit(file: FitFile, build: Builder | None, erased: WasErased) -> Fit:
    """Open the draws of a job or project, with the model that its function or its bridge builds."""
    if build is None:
        return _open_by_bridge(file)
    fit = build(file.draws_path, erased)
    if file.preprocessing is None:
        return fit
    container = fit.draws.container
    if container is None:
        raise ProjectError(
            "preprocessing cannot be attached to draws that no bridge has read.",
            f"read them through a bridge in {build.name}: pe.from_numpyro(model, …, draws=draws).",
        )
    described = dataclasses.replace(container, preprocessing=file.preprocessing)
    return fit._replace(draws=fit.draws.inside(described))


def _open_by_bridge(file: FitFile) -> Fit:
    name = file.bridge or DEFAULT_BRIDGE
    given = {"row_dim": file.row_dim or None, "preprocessing": file.preprocessing}
    options = {option: value for option, value in given.items() if value is not None}
    model, draws = find_bridge(name)(file.draws_path, **options)
    return Fit.of(model, draws, f"posterase {__version__}, {CODE_OF_BRIDGES.get(name, f'bridge {name}')}")


def policy_of(file: FitFile) -> Policy:
    """Make the policy of a job or project."""
    names = [field.name for field in dataclasses.fields(Policy)]
    values = file.policy
    for name in values:
        if name not in names:
            raise ProjectError(f"a policy has no {name!r}.", did_you_mean(name, names, f"use {', '.join(names)}."))
    numbers = {name: float(value) for name, value in values.items() if type(value) is int}
    return Policy(**{**values, **numbers})


_imported: set[str] = set()
"""Names of modules that a builder has imported from its folder: the next one may have others of these names."""


@contextmanager
def _importing_from(folder: str, beside: dict[str, types.ModuleType]) -> Iterator[None]:
    """Modules beside the model's are found by their names; those that were are added to `beside`.

    Modules of other builders are forgotten when one begins, not when it ends: a model may import later.
    """
    for name in _imported:
        sys.modules.pop(name, None)
    _imported.clear()
    known = {name.partition(".")[0] for name in sys.modules}
    sys.modules.update(beside)
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)
        new = {name: module for name, module in sys.modules.items() if name.partition(".")[0] not in known}
        tops = {name for name, module in new.items() if _lies_in(module, folder)}
        beside.update({name: module for name, module in new.items() if name.partition(".")[0] in tops})
        _imported.update(beside)


def _lies_in(module: types.ModuleType, folder: str) -> bool:
    """Whether a module is a file of the folder, or a package that is a folder of it."""
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    return any(Path(place).absolute().parent == Path(folder).absolute() for place in places if place)


def _with_files(code: str, beside: Mapping[str, types.ModuleType]) -> str:
    """A digest of the function's file and of those beside it, where it has imported any."""
    files = {name: getattr(module, "__file__", None) for name, module in sorted(beside.items())}
    lines = [f"{name} {hashlib.sha256(Path(file).read_bytes()).hexdigest()}" for name, file in files.items() if file]
    return f"sha256:{hashlib.sha256(chr(10).join([code, *lines]).encode()).hexdigest()}" if lines else code


def _function(folder: str, place: str, name: str) -> tuple[Callable[..., Any], str, dict[str, types.ModuleType]]:
    """The function that builds the model, a digest of its file, and what it has imported from the folder.

    A file in the folder is read each time, and apart from others of its name: several may share a process.
    """
    beside: dict[str, types.ModuleType] = {}
    file = Path(folder, *place.split(".")).with_suffix(".py")
    if file.is_file():
        source = file.read_bytes()
        digest = hashlib.sha256(source).hexdigest()
        module = types.ModuleType(f"{place} of {file}")  # a name that no import asks for
        module.__file__ = str(file)
        sys.modules[module.__name__] = module  # where dataclasses and others look for it
        with _importing_from(folder, beside):
            exec(compile(source, str(file), "exec"), module.__dict__)
    else:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name not in (place, place.partition(".")[0]):
                raise
            bare = place.removesuffix(".py")
            meant = f"put {place}.py in {folder!r}." if bare == place else f"leave .py out: {bare}:{name}."
            raise ProjectError(f"there is no module {place!r}.", meant) from None
        origin = getattr(module, "__file__", None)
        digest = hashlib.sha256(Path(origin).read_bytes()).hexdigest() if origin else ""
    build = getattr(module, name, None)
    if not callable(build):
        raise ProjectError(f"{place!r} has no function {name!r}.", "name the one that builds the model.")
    return build, f"sha256:{digest}" if digest else "unknown", beside
