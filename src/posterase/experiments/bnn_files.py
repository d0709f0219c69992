"""Files of the networks' experiment: results of every block, tables, figures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from posterase.errors import InputFileError
from posterase.experiments import figures as drawing
from posterase.experiments.bnn_page import all_grids
from posterase.experiments.bnn_speed import MEASURED
from posterase.experiments.bnn_tables import OURS, Result, name_of, note_of
from posterase.experiments.bnn_variants import main_blocks, variant_grid, variants
from posterase.experiments.grids import latex, markdown
from posterase.experiments.recipes import SAMPLERS
from posterase.runtime.files import make_folder, written_whole

Pictures = UInt8[np.ndarray, "images height width channels"]
"""The test images of a data set's case study, in its order."""


def write(
    results: Sequence[Result],
    folder: Path,
    images: Pictures | Mapping[str, Pictures] | None = None,
    *,
    figures: bool = True,
) -> list[Path]:
    """Write results, tables and figures, each file whole or not at all.

    Parameters
    ----------
    results
        One a block.
    folder
        Made where it is not there.
    images
        Of the case study; by data set where there are several.
    figures
        Without matplotlib, everything else is written before `MissingExtraError` is raised; False: no figures.
    """
    make_folder(folder)
    paths = [write_block(result, folder) for result in results]
    grids = [*all_grids(main_blocks(results)), *map(variant_grid, variants(results))]
    for name, render in (("tables.md", markdown), ("tables.tex", latex)):
        paths.append(_write_text(folder / name, "\n\n".join(map(render, grids)) + "\n"))
    if not figures:
        return paths
    paths += drawing.draw_request_times(main_blocks(results), folder / "request-times")
    for result in main_blocks(results):
        settings = result["settings"]
        shown = images.get(settings["dataset"]) if isinstance(images, Mapping) else images
        if shown is None or len(shown) == 0:
            continue
        for method in ("paper", OURS):
            if len(note_of(result, method, "panels") or ()) == len(shown):
                target = folder / f"{name_of(result)}-case-study-{method}"
                paths += drawing.draw_case_study(result, shown, target, method=method)
    return paths


def write_block(result: Result, folder: Path) -> Path:
    """One block's results; numbers that are not finite become null."""
    return _write_text(
        folder / f"{name_of(result)}.json", json.dumps(_finite(result), indent=1, allow_nan=False) + "\n"
    )


def read(folder: Path) -> list[Result]:
    """The blocks that were written to a folder, by data set, sampler (SGLD first) and size; variants come last."""
    found = [_read_block(path) for path in sorted(folder.glob("*.json")) if not path.name.startswith(MEASURED)]
    if not found:
        raise InputFileError(
            f"there are no results in {str(folder)!r}.", "name the folder that `posterase reproduce` wrote to."
        )
    return sorted(found, key=_order)


def _order(result: Result) -> tuple[str, str, int, int]:
    settings = result["settings"]
    return result["variant"], settings["dataset"], SAMPLERS.index(settings["sampler"]), settings["removed"]


def _read_block(path: Path) -> Result:
    again = "write it again: `posterase reproduce` goes on from its finished stages."
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputFileError(f"{str(path)!r} cannot be read as JSON: {error}.", again) from error
    known = isinstance(result, dict) and isinstance(result.get("methods"), dict) and {"name", "variant"} <= set(result)
    settings = result.get("settings") if known else None
    if not isinstance(settings, dict) or not {"dataset", "sampler", "removed", "chains"} <= set(settings):
        raise InputFileError(f"{str(path)!r} does not hold the results of a block.", again)
    if settings["sampler"] not in SAMPLERS:
        raise InputFileError(f"{str(path)!r} is of an unknown sampler, {settings['sampler']!r}.", again)
    return result


def _finite(value: Any) -> Any:
    """The same with null for every number that is not finite, which JSON has no word for."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_text(path: Path, text: str) -> Path:
    with written_whole(path) as beside:
        beside.write_text(text, encoding="utf-8")
    return path
