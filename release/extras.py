"""Every extra alone, in an environment of its own, on the lowest and on the highest Python."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.databases import missing as no_server
from tests.databases import new_database, postgresql_server

from posterase.cli.doctor import EXTRAS
from release.environments import ROOT, CheckError, new, project, pythons, uv, versions, wheel
from release.run_uses import missing, script, use


def run() -> dict[str, Any]:
    """Install each, and use it."""
    lowest, *_, highest = pythons()
    return {version: _on(version) for version in (lowest, highest)}


def _on(version: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    environments = {}
    for extra in project()["optional-dependencies"]:
        python = environments[extra] = new(f"extra-{version}-{extra}", version, f"{wheel()}[{extra}]")
        uv("pip", "check", "--quiet", "--python", python)
        installed = versions(python)
        found[extra] = {name: installed[name.lower()] for name in EXTRAS[extra]}
        with _at_hand(extra, environments) as (own, folder):
            use(extra, python, own, folder)
        print(f"  {version} [{extra}]", *(f"{name} {said}" for name, said in found[extra].items()), flush=True)
    for extra in ("postgresql", "service"):
        missing(extra, environments["record"])
    return found


@contextmanager
def _at_hand(extra: str, environments: dict[str, Path]) -> Iterator[tuple[dict[str, str], Path | None]]:
    """What an extra needs that it does not bring: a server, or a program that was compiled elsewhere."""
    if extra == "postgresql":
        if no_server():
            raise CheckError(no_server())
        with postgresql_server() as server:
            yield {"POSTERASE_RECORD": new_database(server, "release")}, None
    elif extra == "bridgestan":
        version = versions(environments[extra])["bridgestan"]
        source = ROOT / "tests" / "bridgestan_library.cpp"
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            script(folder, environments["stan"], "library", "--source", source, "--version", version)
            yield {}, folder
    else:
        yield {}, None
