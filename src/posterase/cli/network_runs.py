"""`posterase reproduce fashion-mnist | cifar10 | digits`: the paper's networks, block by block, resumable."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posterase.cli.output import Said, print_line
from posterase.cli.progress_bars import bars, shown_on
from posterase.errors import InvalidOptionError, MissingExtraError, OutputError, PosteraseError
from posterase.experiments import bnn, bnn_files, bnn_page, bnn_results, bnn_speed, bnn_tables, datasets
from posterase.experiments.recipes import named_samplers
from posterase.experiments.stages import Stages
from posterase.runtime.files import make_folder, written_whole

OPTIONAL = [name for name in bnn.METHODS if name not in ("retrain", "origin")]


def chosen(dataset: str, sampler: str, removed: int | None, quick: bool, **changes: Any) -> list[bnn.Settings]:
    """The blocks that were asked for."""
    names = named_samplers(sampler)
    blocks = [each for each in bnn.blocks(dataset, quick=quick, **changes) if each.sampler in names]
    sizes = sorted({each.removed for each in blocks})
    if removed is not None and removed not in sizes:
        told = " or ".join(map(str, sizes))
        raise InvalidOptionError(
            f"--removed is {removed}.", f"use {told}, the sizes of this experiment, or leave it out."
        )
    return [each for each in blocks if removed in (each.removed, None)]


def all_but(without: Sequence[str]) -> list[str]:
    """The methods that are run."""
    names = {name.replace("-", " "): name for name in OPTIONAL}  # "importance-sampling" needs no quotes
    unknown = [name for name in without if name.replace("-", " ") not in names]
    if unknown:
        raise InvalidOptionError(f"--without is {unknown[0]!r}.", f"use some of: {', '.join(OPTIONAL)}.")
    left_out = {names[name.replace("-", " ")] for name in without}
    return [name for name in bnn.METHODS if name not in left_out]


def dry_run(said: Said, blocks: list[bnn.Settings], out: Path, methods: Sequence[str] = bnn.METHODS) -> None:
    """What would run, what is finished already, and about how long it takes on this machine."""
    console = Console()
    with said.aside.status("timing one step on this machine"):
        seconds = bnn.seconds_a_gradient(blocks[0])
    left_out = {"retrain 2" if name == "floor" else name for name in set(bnn.METHODS) - set(methods)}
    stages = Stages(out / "stages") if (out / "stages").is_dir() else Stages(None)
    total, seen = 0.0, set()
    listed: list[dict[str, Any]] = []
    for block in blocks:
        table = Table(title=block.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        table.add_column("stage", min_width=20)
        table.add_column("gradients a chain", justify="right")
        table.add_column("about", justify="right", min_width=16)
        for job in (each for each in bnn.jobs(block) if each.stage not in left_out):
            path = stages.path(job.stage, job.depends_on)
            mark = (job.stage, str(sorted(job.depends_on.items())))
            done = path is not None and path.exists()
            cost = 0.0 if done or mark in seen else job.gradients * seconds
            told = "finished" if done else "with the above" if mark in seen else _time(cost)
            seen.add(mark)
            total += cost
            listed.append({"block": block.title, "stage": job.stage, "seconds": cost, "finished": done})
            table.add_row(job.stage, f"{job.gradients:,.0f}", told)
        console.print(table)
    print_line(
        f"About {_time(total)} in all on {jax.devices()[0].device_kind} ({blocks[0].chains} chains side by side; "
        f"compilation and evaluation come on top). Finished stages are kept in {out / 'stages'}: a run that is cut "
        "goes on at the last of them."
    )
    said.json({"seconds": total, "stages": listed})


def run_blocks(
    said: Said, blocks: list[bnn.Settings], out: Path, data: Path | None, methods: Sequence[str] = bnn.METHODS
) -> None:
    """Run the blocks, print their tables, and write results, tables and figures; of blocks run before, too."""
    folder = make_folder(out)
    for settings in blocks:
        _check_free(folder, settings, methods)
    stages = Stages(folder / "stages")
    console = Console()
    failed: dict[str, dict[str, str]] = {}
    for settings in blocks:
        begun = time.perf_counter()
        with shown_on(said.aside) as progress:
            block = bnn.run(
                settings, data=data, stages=stages, methods=methods, report=bars(progress, f"{settings.title}: ")
            )
        with said.aside.status(f"{settings.title}: comparing"):
            result = bnn_results.results(block)
        bnn_files.write_block(result, folder)
        for table in bnn_tables.rich_tables(result):
            console.print(table, "")
        failed[settings.name] = dict(block.failed)
        for method, reason in block.failed.items():
            print_line(f"{method} gave no network: {reason}")
        print_line(f"{settings.title}: {_time(time.perf_counter() - begun)}")
        try:
            paths = bnn_files.write(bnn_files.read(folder), folder, bnn.case_study_images(block.problem))
        except MissingExtraError as error:
            paths = bnn_files.write(bnn_files.read(folder), folder, figures=False)
            print_line(f"No figures: {error.problem} To get them: {error.advice}")
    print_line(f"In {folder}: {', '.join(path.name for path in paths)}")
    said.json({"folder": str(folder), "files": [path.name for path in paths], "failed": failed})


def write_page(folder: Path, target: Path, data: Path | None) -> list[Path]:
    """The page of all blocks in a folder; their tables and figures are written into the folder again."""
    results = bnn_files.read(folder)
    measured = [bnn_speed.read_speeds(folder, each) for each in bnn_speed.MEASURED]
    paths = bnn_files.write(results, folder, _pictures(results, data))
    figures = os.path.relpath(folder, target.parent)
    make_folder(target.parent)
    with written_whole(target) as beside:
        beside.write_text(bnn_page.page(results, figures, *measured), encoding="utf-8")
    return [target, *paths]


def _pictures(results: Sequence[bnn_tables.Result], data: Path | None) -> dict[str, bnn_files.Pictures]:
    """Case studies' images by data set, where it is here."""
    found = {}
    for result in results:
        settings = result["settings"]
        dataset, asked = settings["dataset"], settings["case_study"]
        if asked and dataset not in found and settings.get("rows") is None:
            try:
                test = datasets.load(dataset, data).test
            except PosteraseError:  # the figures that are there stay as they are
                continue
            assert test is not None
            found[dataset] = test.x[list(asked)]
    return found


def _check_free(folder: Path, settings: bnn.Settings, methods: Sequence[str]) -> None:
    """Refuse a folder with results of the same block from other settings, or more of them: they would be lost."""
    target = folder / f"{settings.name}.json"
    if not target.exists():
        return
    ours = {**dataclasses.asdict(settings), "case_study": list(settings.case_study)}
    (found,) = (each for each in bnn_files.read(folder) if bnn_tables.name_of(each) == settings.name)
    theirs = found["settings"]
    lost = [name for name in OPTIONAL if name not in methods and name in found["methods"]]
    if lost:
        raise OutputError(
            f"{str(target)!r} has results of {', '.join(lost)}, which would be lost.",
            "choose another folder: --out FOLDER.",
        )
    differ = [name for name, value in ours.items() if theirs.get(name) != value]
    if differ:
        raise OutputError(
            f"{str(target)!r} holds results with another {', '.join(differ)}.",
            "choose another folder: --out FOLDER.",
        )


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
