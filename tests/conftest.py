"""Shapes and types are checked in every test; `--record FILE` keeps the record of a full run."""

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from jaxtyping import install_import_hook

if "JAX_DISABLE_MOST_OPTIMIZATIONS" in os.environ and version("jaxlib").startswith("0.10."):
    # `make test`. What XLA had before its new emitters compiles in half the time; later ones have it no more.
    quick = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quick}"

os.environ["POSTERASE_COMPILATION_CACHE"] = "off"  # of processes that tests start, too: the user's folder is left alone

with install_import_hook("posterase", "beartype.beartype"):
    import posterase

    for name in dir(posterase):
        getattr(posterase, name)

import jax
import pytest

import posterase.ladder.erase
from tests.databases import missing, postgresql_server

# `pe.erase` without a key draws fresh entropy. Tests have a fixed key, so that what passes goes on passing;
# test_output.py checks that the entropy is fresh.
posterase.ladder.erase.fresh_key = lambda: jax.random.key(0)


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs() -> Iterator[None]:
    """Thousands of compiled programs in one process exhaust the memory maps that Linux allows it, and XLA crashes."""
    yield
    jax.clear_caches()


@pytest.fixture
def x64() -> Iterator[None]:
    """64-bit numbers, for closed forms."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=["float32", "float64"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """The same test in both precisions."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A PostgreSQL server: see `tests/databases.py`."""
    if missing():
        pytest.skip(missing())
    with postgresql_server() as url:
        yield url


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, help="write commit, date and counts of this run to a JSON file")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if jax.default_backend() == "cpu":
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no GPU here"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Written even when tests failed: the record says what the last full run found."""
    target = config.getoption("--record")
    if target is None:
        return
    counts = {kind: len(terminalreporter.getreports(kind)) for kind in ("passed", "failed", "error", "skipped")}
    record = {
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--", ".", f":!{target}")),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "counts": counts,
        "backend": jax.default_backend(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "posterase": posterase.__version__,
    }
    target.write_text(json.dumps(record, indent=2) + "\n")
    terminalreporter.write_line(f"record of this run: {target}")


def _git(*arguments: str) -> str:
    root = Path(__file__).parent.parent
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip()
