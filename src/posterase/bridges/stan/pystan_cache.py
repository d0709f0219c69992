"""The draws that PyStan keeps.

PyStan writes each chain that it samples with a random seed to a file in the user's cache, to answer the same question
from there the next time. An erasure does not reach these files: they hold the draws from before it. They lie in one
folder per program; its name is computed from the program's text, httpstan's version and this Python, so that draws
sampled by another Python are not found from here.
"""

from __future__ import annotations

from pathlib import Path


def cached_chains(code: str) -> list[Path]:
    """Files of PyStan's cache with draws of this program, one per chain."""
    import httpstan.cache
    import httpstan.models

    folder = httpstan.cache.fit_path(f"{httpstan.models.calculate_model_name(code)}/fits/any").parent
    return sorted(folder.glob("*.jsonlines.gz"))


def describe_cached_chains(code: str) -> tuple[str, ...]:
    """What a verdict says of PyStan's cache; nothing where it holds no draws of this program."""
    found = cached_chains(code)
    if not found:
        return ()
    folder, home = found[0].parent, Path.home()
    shown = f"~/{folder.relative_to(home).as_posix()}" if folder.is_relative_to(home) else str(folder)
    chains = "1 chain" if len(found) == 1 else f"{len(found)} chains"
    return (
        f"not erased: PyStan's cache held draws of {chains} of this program, in {shown}, when from_stan was called; "
        "posterase.bridges.clear_pystan_cache(program) deletes them",
    )


def delete_cached_chains(code: str) -> int:
    """Delete the files of `cached_chains`, and return how many there were. The compiled program stays."""
    found = cached_chains(code)
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)
