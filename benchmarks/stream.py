"""Rows streamed from a file beside the same rows in memory: seconds of `Transport`, and passes of every method.

With `python -m benchmarks stream`, docs/results/stream.md and .json are written anew.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import posterase as pe
from benchmarks.harness import Ratio, once, write_whole
from posterase.experiments.machine import machine

ROWS, COLUMNS, PARAMETERS, DRAWS, REMOVED = 1_000_000, 64, 4, 256, 100
SMALL = 20_000
REPEATS = 2
RESULTS = Path(__file__).parent.parent / "docs" / "results"


class Slow:
    """An array of a file that takes as long to read as a disk of so many megabytes a second would."""

    def __init__(self, array: Any, megabytes_a_second: float):
        self.array, self.rate = array, megabytes_a_second * 2**20
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, rows: Any) -> Any:
        found = np.array(self.array[rows])
        time.sleep(found.nbytes / self.rate)
        return found


def write(folder: Path, rows: int) -> dict[str, Any]:
    """Rows of a logistic regression, in files."""
    rng = np.random.default_rng(0)
    weights = combinations() @ rng.normal(size=PARAMETERS)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, COLUMNS))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (rows,))
    for start in range(0, rows, 100_000):
        part = slice(start, min(start + 100_000, rows))
        x[part] = rng.normal(size=x[part].shape)
        y[part] = rng.random(len(y[part])) < 1 / (1 + np.exp(-x[part] @ weights))
    x.flush()
    y.flush()
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy"}


def combinations() -> Any:
    """Of the columns: those that the regression is on."""
    return np.random.default_rng(2).normal(size=(COLUMNS, PARAMETERS)).astype(np.float32) / np.sqrt(COLUMNS)


def model_of(data: Any) -> pe.Model:
    fixed = jnp.asarray(combinations())

    def log_likelihood(params: Any, rows: Any) -> Any:
        scores = (rows["x"] @ fixed) @ params
        return rows["y"] * scores - jnp.logaddexp(0, scores)

    return pe.Model(lambda params: -0.5 * jnp.sum(params**2), log_likelihood, data)


def draws_of(files: dict[str, Any]) -> pe.Draws:
    """Of the Gaussian at the mode of the first rows, as wide as the posterior of all."""
    rng = np.random.default_rng(1)
    x, y = (np.array(files[name][:100_000], np.float64) for name in "xy")
    x = x @ combinations()
    mode = np.zeros(PARAMETERS)
    for _ in range(8):
        p = 1 / (1 + np.exp(-x @ mode))
        covariance = np.linalg.inv((x.T * (p * (1 - p))) @ x)
        mode = mode + covariance @ (x.T @ (y - p))
    covariance *= len(x) / len(files["x"])
    return pe.Draws(rng.multivariate_normal(mode, covariance, size=(4, DRAWS // 4)).astype(np.float32))


def seconds(files: dict[str, Any], draws: pe.Draws) -> dict[str, list[float]]:
    """Of `Transport`, everything in turn, after a first run each."""
    rate = 200.0
    slow = {name: Slow(array, rate) for name, array in files.items()}
    models = {
        "in memory": model_of({name: np.array(array) for name, array in files.items()}),
        "streamed": model_of(pe.stream(files)),
        "streamed, not ahead": model_of(pe.stream(files, read_ahead=False)),
        f"disk of {rate:.0f} MB/s": model_of(pe.stream(slow)),
        f"disk of {rate:.0f} MB/s, not ahead": model_of(pe.stream(slow, read_ahead=False)),
    }
    taken: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(REPEATS + 1):
        for name, model in models.items():
            change = model.change(remove=np.arange(REMOVED))
            spent = once(lambda: pe.Transport()(0, model, draws, change).draws.params)  # noqa: B023
            if turn:
                taken[name].append(spent)
    return taken


def passes(files: dict[str, Any], draws: pe.Draws) -> dict[str, float]:
    """Over the files, of every method, and of what `erase` does around them."""
    data = pe.stream(files, block_rows=SMALL // 20)
    model = model_of(data)
    change = model.change(remove=np.arange(REMOVED))
    found, before = {}, data.blocks_read
    for method in (pe.Reweight(), pe.Transport(), pe.Rejuvenate()):
        method(0, model, draws, change)
        found[type(method).__name__] = (data.blocks_read - before) / data.n_blocks
        before = data.blocks_read
    verdict = pe.erase(model, draws, change, policy=pe.Policy(ess=DRAWS / 4)).verdict
    name = f"`pe.erase`, {'accepted by ' + verdict.method if verdict.accepted else 'refused'}"
    found[name] = (data.blocks_read - before) / data.n_blocks
    return found


def run() -> Iterator[str | Ratio]:
    with tempfile.TemporaryDirectory() as folder:
        files = write(Path(folder), ROWS)
        megabytes = sum(array.nbytes for array in files.values()) / 2**20
        taken = seconds(files, draws_of(files))
    with tempfile.TemporaryDirectory() as folder:
        small = write(Path(folder), SMALL)
        counted = passes(small, draws_of(small))
    medians = {name: float(np.median(each)) for name, each in taken.items()}
    memory = medians.pop("in memory")
    ratios = [
        Ratio(f"Transport, {megabytes:.0f} MB: {name} / in memory", each, memory) for name, each in medians.items()
    ]
    yield from ratios
    yield from (f"{name}: {each:.3g} passes over the files" for name, each in counted.items())
    record = {
        "machine": machine(),
        "rows": ROWS,
        "columns": COLUMNS,
        "parameters": PARAMETERS,
        "draws": DRAWS,
        "removed": REMOVED,
        "megabytes": megabytes,
        "seconds": taken,
        "passes": counted,
    }
    for name, text in (
        ("stream.json", json.dumps(record, indent=1) + "\n"),
        ("stream.md", page(record, memory, medians)),
    ):
        write_whole(RESULTS / name, text)


def page(record: dict[str, Any], memory: float, medians: dict[str, float]) -> str:
    lines = [
        "# Data larger than memory",
        "",
        f"From `python -m benchmarks stream`: {record['machine']}.",
        "",
        f"Logistic regression, {record['rows']:,} rows ({record['megabytes']:.0f} MB) of {record['columns']} "
        f"columns, on {record['parameters']} fixed combinations of them, {record['draws']} draws, "
        f"{record['removed']} rows removed",
        f"by `Transport`; blocks of 16 MB. Median of {REPEATS} runs in turn, as a multiple of the same rows in memory",
        "in the same process. A disk of 200 MB/s is the same file with the time that such a disk would take",
        "slept away: the file itself is in the system's cache.",
        "",
        "| rows | time, in memory = 1 |",
        "| --- | --- |",
        *(f"| {name} | {each / memory:.2f} |" for name, each in medians.items()),
        "",
        f"How often all files are read, at {record['draws']} draws:",
        "",
        "| what | passes |",
        "| --- | --- |",
        *(f"| {name} | {each:.3g} |" for name, each in record["passes"].items()),
        "",
        "`Reweight` reads the removed rows alone. What `erase` adds to it are checks: that rows do not look at each",
        "other, that the density depends on every parameter, and that it falls off far out.",
        "",
    ]
    return "\n".join(lines)
