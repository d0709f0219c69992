"""`posterase reproduce fashion-mnist | cifar10 | digits`: the paper's networks, block by block, resumable."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from posterase.errors import InvalidOptionError, MissingExtraError
from posterase.experiments import bnn, bnn_files, bnn_results, bnn_tables
from posterase.experiments.stages import Stages
from posterase.files import make_folder

BAR = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn())
SAMPLERS = ("sgld", "sghmc", "both")


def chosen(dataset: str, sampler: str, removed: int | None, quick: bool, **changes: Any) -> list[bnn.Settings]:
    """The blocks that were asked for."""
    if sampler not in SAMPLERS:
        raise InvalidOptionError(f"--sampler is {sampler!r}.", "use sgld, sghmc or both.")
    blocks = [each for each in bnn.blocks(dataset, quick=quick, **changes) if sampler in (each.sampler, "both")]
    sizes = sorted({each.removed for each in blocks})
    if removed is not None and removed not in sizes:
        told = " or ".join(map(str, sizes))
        raise InvalidOptionError(
            f"--removed is {removed}.", f"use {told}, the sizes of this experiment, or leave it out."
        )
    return [each for each in blocks if removed in (each.removed, None)]


def list_jobs(blocks: list[bnn.Settings], out: Path) -> None:
    """What would run, what is finished already, and about how long it takes on this machine."""
    console = Console()
    with console.status("timing one step on this machine"):
        seconds = bnn.seconds_a_gradient(blocks[0])
    stages = Stages(out / "stages") if (out / "stages").is_dir() else Stages(None)
    table = Table(title=f"{len(blocks)} blocks", title_justify="left", title_style="bold")
    for title, justify in (("block", "left"), ("stage", "left"), ("gradients a chain", "right"), ("about", "right")):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    total, seen = 0.0, set()
    for block in blocks:
        for job in bnn.jobs(block):
            path = stages.path(job.stage, job.depends_on)
            mark = (job.stage, str(sorted(job.depends_on.items())))
            if mark in seen:
                continue
            seen.add(mark)
            done = path is not None and path.exists()
            cost = 0.0 if done else job.gradients * seconds
            total += cost
            table.add_row(block.title, job.stage, f"{job.gradients:,.0f}", "finished" if done else _time(cost))
    console.print(table)
    console.print(
        f"About {_time(total)} in all on {jax.devices()[0].device_kind} ({blocks[0].chains} chains side by side; "
        f"compilation and evaluation come on top). Finished stages are kept in {out / 'stages'}: a run that is cut "
        "goes on at the last of them.",
        soft_wrap=True,
    )


def run_blocks(blocks: list[bnn.Settings], out: Path, data: Path | None) -> None:
    """Run the blocks, print their tables, and write results, tables and figures."""
    folder = make_folder(out)
    stages = Stages(folder / "stages")
    console = Console()
    found: list[dict[str, Any]] = []
    block: bnn.Block | None = None
    for settings in blocks:
        begun = time.perf_counter()
        with Progress(*BAR, console=console, transient=True) as progress:
            block = bnn.run(settings, data=data, stages=stages, report=_bars(progress, f"{settings.title}: "))
        with console.status(f"{settings.title}: comparing"):
            found.append(bnn_results.results(block))
        bnn_files.write_block(found[-1], folder)
        for table in bnn_tables.rich_tables(found[-1]):
            console.print(table, "")
        console.print(f"{settings.title}: {_time(time.perf_counter() - begun)}", "", soft_wrap=True)
    assert block is not None
    images = bnn.case_study_images(block.problem)
    try:
        paths = bnn_files.write(found, folder, images)
    except MissingExtraError as error:
        paths = bnn_files.write(found, folder, None, figures=False)
        console.print(f"No figures: {error.problem} To get them: {error.advice}", markup=False, soft_wrap=True)
    console.print(f"Results, tables and figures: {', '.join(str(path) for path in paths)}", soft_wrap=True)


def _bars(progress: Progress, prefix: str) -> Callable[[str, int, int], None]:
    tasks: dict[str, TaskID] = {}

    def report(title: str, done: int, total: int) -> None:
        if title not in tasks:
            tasks[title] = progress.add_task(prefix + title, total=total)
        progress.update(tasks[title], completed=done)

    return report


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
