"""What pre-training and the precision of products change: a block beside the same one run otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from posterase.experiments.bnn_tables import (
    DIFFERENCES,
    ERRORS,
    MIA,
    NAMES,
    OURS,
    Metric,
    Result,
    spread,
    text_of,
    values_of,
)
from posterase.experiments.grids import Grid, flat

COMPARED = ("retrain", "retrain 2", "origin", "paper", OURS)


class Variant(NamedTuple):
    """A block that was run otherwise, and the one that it is compared with."""

    result: Result
    base: Result


def main_blocks(results: Sequence[Result]) -> list[Result]:
    """Those of the data sets' own settings."""
    return [result for result in results if not result["variant"]]


def variants(results: Sequence[Result]) -> list[Variant]:
    """The others, each with the one that it differs from in that only."""
    by_block = {_block(result): result for result in main_blocks(results)}
    others = [result for result in results if result["variant"] and _block(result) in by_block]
    return [Variant(result, by_block[_block(result)]) for result in others]


def _block(result: Result) -> tuple[str, str, int]:
    settings = result["settings"]
    return settings["dataset"], settings["sampler"], settings["removed"]


def variant_grid(variant: Variant) -> Grid:
    """Every figure both ways, and whether they are within two joint standard deviations."""
    rows, apart = [], 0
    for method in COMPARED:
        for metric in (*ERRORS, MIA, *DIFFERENCES):
            ours, base = (spread(values_of(each, method, metric.key)) for each in variant)
            if ours is None or base is None or ours.failed or base.failed:
                continue
            within = abs(ours.mean - base.mean) <= 2 * math.hypot(ours.sd or 0.0, base.sd or 0.0) + _last_digit(metric)
            apart += not within
            shown = (text_of(each, metric.digits) for each in (base, ours))
            rows.append((NAMES[method], flat(metric.title), *shown, "yes" if within else "no"))
    title = f"{variant.base['title']}: {variant.result['variant']}"
    columns = ("method", "figure", "as the tables above", variant.result["variant"], "within the spread")
    return Grid(title, columns, rows, f"Within: two joint standard deviations. Not so: {apart} of {len(rows)}.")


def _last_digit(metric: Metric) -> float:
    return 0.5 * 10.0**-metric.digits
