"""`posterase doctor`: what is installed, what jax runs on, where data and keys are, and what is wrong."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from posterase.errors import PosteraseError
from posterase.experiments.datasets import data_folders
from posterase.version import __version__

State = Literal["ok", "missing", "wrong"]

EXTRAS = {
    "plots": ("matplotlib",),
    "numpyro": ("numpyro",),
    "pymc": ("pymc",),
    "stan": ("pystan",),
    "bridgestan": ("bridgestan",),
    "networks": ("flax",),
    "zarr": ("zarr",),
    "parquet": ("pyarrow",),
    "data": ("pooch", "scikit-learn"),
    "record": ("sqlalchemy", "alembic", "cryptography", "filelock"),
    "postgresql": ("psycopg",),
    "service": ("fastapi", "uvicorn", "jinja2"),
}
"""What each extra brings, by the names of distributions."""

COMPILED_PROGRAMS = "compiled programs"


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    state: State
    """What is missing is needed for something only; what is wrong should be mended."""
    said: str
    advice: str = ""


def examine(keys: Path, record: str) -> Iterator[Finding]:
    """Look at everything, one after the other."""
    yield Finding("posterase", "ok", f"{__version__}, Python {platform.python_version()} on {platform.machine()}")
    yield _backend()
    yield _programs()
    for extra, names in EXTRAS.items():
        yield _extra(extra, names)
    yield _compiler()
    yield Finding("data", "ok", "looked for in " + ", ".join(map(str, data_folders(None))))
    if importlib.util.find_spec("cryptography") and importlib.util.find_spec("sqlalchemy"):
        yield _keys(keys)
        yield _record(record)


def _backend() -> Finding:
    import jax

    try:
        devices = jax.devices()
    except RuntimeError as error:
        said = str(error).splitlines()[0]
        return Finding("jax", "wrong", f"{jax.__version__} finds no device: {said}", "set JAX_PLATFORMS=cpu.")
    kinds = ", ".join(dict.fromkeys(f"{each.platform} ({each.device_kind})" for each in devices))
    return Finding("jax", "ok", f"{jax.__version__} on {len(devices)} device{'s' if len(devices) > 1 else ''}: {kinds}")


def _programs() -> Finding:
    from posterase.runtime import compilation_cache

    cache = compilation_cache.find_cache()
    another = f"use another folder: {compilation_cache.VARIABLE}=FOLDER, or off."
    if cache.folder is None:
        state: State = "wrong" if cache.is_ours else "ok"
        advice = f"allow only yourself to write there (chmod go-w), or {another}" if cache.is_ours else ""
        return Finding(COMPILED_PROGRAMS, state, f"not written to disk: {cache.reason}", advice)
    problem = compilation_cache.folder_problem(cache.folder) if cache.is_ours else ""
    if problem:
        return Finding(COMPILED_PROGRAMS, "wrong", problem, another)
    count, size = cache.measure()
    where = f"{count} in {cache.folder}, {size / 2**20:.1f} MiB, of the command line; {cache.reason}"
    return Finding(COMPILED_PROGRAMS, "ok", f"{where}; pe.enable_compilation_cache() in Python")


def _extra(extra: str, names: tuple[str, ...]) -> Finding:
    found, missing = [], []
    for name in names:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        said = f"{', '.join(missing)} is not installed"
        return Finding(f"[{extra}]", "missing", said, f"pip install 'posterase[{extra}]'")
    return Finding(f"[{extra}]", "ok", ", ".join(found))


def _compiler() -> Finding:
    from posterase.bridges.stan.programs import compiler

    try:
        command, *rest = compiler()
    except PosteraseError as error:
        return Finding("C++ compiler", "wrong", error.problem, error.advice)
    found = shutil.which(command)
    if found:
        return Finding("C++ compiler", "ok", " ".join([found, *rest]))
    if os.environ.get("CXX"):
        return Finding("C++ compiler", "wrong", f"CXX is {command}, which is not there", "name another one: CXX=…")
    return Finding("C++ compiler", "missing", "Stan programs cannot be compiled", "install g++ or clang++.")


def _keys(folder: Path) -> Finding:
    from posterase.record.ledger.keyring import FROM_ENVIRONMENT, load_keys

    given = [variable for variable in FROM_ENVIRONMENT.values() if os.environ.get(variable)]
    if not folder.exists() and not given:
        return Finding("keys", "missing", f"none in {folder}", f"posterase keys new NAME --keys {folder}")
    try:
        public = load_keys(folder).public
    except PosteraseError as error:
        return Finding("keys", "wrong", error.problem, error.advice)
    where = f"from {' and '.join(given)}" if given else f"in {folder}"
    return Finding("keys", "ok", f"{public.name}, key {public.id}, {where}")


def _record(url: str) -> Finding:
    from posterase.record.store.database import HEAD, Database

    try:
        database = Database(url)
        try:
            if database.files() and not database.files()[0].exists():
                return Finding("record", "missing", f"there is no {url} here", "it is begun with the first request.")
            revision = database.revision()
        finally:
            database.close()
    except PosteraseError as error:
        return Finding("record", "wrong", error.problem, error.advice)
    if revision is None:
        return Finding("record", "missing", "the database is empty", "it is begun with the first request.")
    if revision > HEAD:
        return Finding("record", "wrong", f"its tables ({revision}) are of a newer posterase", "update posterase.")
    where = database.url.render_as_string(hide_password=True)
    return Finding(
        "record", "ok", where if revision == HEAD else f"{where}; its tables are brought up to date when used"
    )
