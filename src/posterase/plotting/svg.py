"""Pictures of a report: SVG inside the page, each with its words for those who cannot see it.

Colours are Okabe and Ito's, which colour-blind readers tell apart; what they say is told by dashes and marks as well.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from posterase.plotting.figures import Sample, density, points_of

WIDTH, HEIGHT = 300, 120
"""Of a picture, in its own units; it grows with the page."""

COLOURS = {"before": "before", "after": "after", "after (refused)": "after", "refit": "refit"}
"""Of lines, by the names that the page's style has for them."""

LONGEST_NAME = 14
"""Letters of a method's name beside a bar."""


def densities(samples: Sequence[Sample], at: int, said: str) -> str:
    """One number before, after, and refitted."""
    points = points_of(samples, at)
    curves = [density(each.values[:, at], each.weights, points) for each in samples]
    top = max(float(curve.max()) for curve in curves) or 1.0
    lines = [
        f'<path d="{_path(points, curve, top)}" class="curve {COLOURS[each.label]}"/>'
        for each, curve in zip(samples, curves, strict=True)
    ]
    first = f'<path d="{_path(points, curves[0], top)} L{WIDTH} {HEIGHT - 17} L0 {HEIGHT - 17}Z" class="area"/>'
    means = ", ".join(f"{each.label} {each.mean[at]:.3g} ± {each.sd[at]:.2g}" for each in samples)
    axis = (
        f'<line x1="0" y1="{HEIGHT - 16}" x2="{WIDTH}" y2="{HEIGHT - 16}" class="axis"/>'
        f'<text x="0" y="{HEIGHT - 3}">{points[0]:.3g}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 3}" text-anchor="end">{points[-1]:.3g}</text>'
    )
    return figure(said, f"Densities of {said}: {means}", first + axis + "".join(lines))


def _path(points: Float[np.ndarray, " n"], curve: Float[np.ndarray, " n"], top: float) -> str:
    x = WIDTH * (points - points[0]) / (points[-1] - points[0] or 1)
    y = (HEIGHT - 17) * (1 - 0.97 * curve / top)
    return "M" + " L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))


class Bar(NamedTuple):
    """A method's figure, and whether the method passed."""

    name: str
    value: float
    passed: bool


def bars(said: str, known: Sequence[Bar], limit: float, *, largest: float = np.inf, digits: int) -> str:
    """Bars with their numbers; what passed is told by a mark as well as by its colour."""
    values = [min(max(each.value, 0.0), largest) for each in known]
    scale = 165 / (max([*values, limit]) * 1.05 or 1.0)
    height = 24 * len(known) + 8
    line = 96 + scale * limit
    rows = [f'<line x1="{line:.1f}" y1="0" x2="{line:.1f}" y2="{height}" class="limit"/>']
    for place, (each, drawn) in enumerate(zip(known, values, strict=True)):
        y = 24 * place + 5
        mark = "✓" if each.passed else "✗"
        rows.append(
            f'<text x="0" y="{y + 12}">{mark} {html.escape(each.name[:LONGEST_NAME])}</text>'
            f'<rect x="96" y="{y}" width="{scale * drawn:.1f}" height="15" rx="2" '
            f'class="{"passed" if each.passed else "failed"}"/>'
            f'<text x="{101 + scale * drawn:.1f}" y="{y + 12}">{each.value:,.{digits}f}</text>'
        )
    told = "; ".join(f"{name} {value:,.{digits}f}, {'passed' if ok else 'not passed'}" for name, value, ok in known)
    return figure(said, f"{said}. Line at {limit:,.{digits}f}. {told}", "".join(rows), height=height)


def stages(said: str, path: Sequence[Mapping[str, Any]]) -> str:
    """Effective draws along a path, stage by stage."""
    known = [(float(each["to"]), float(each["ess"])) for each in path if each["ess"] is not None]
    top = max((ess for _, ess in known), default=0.0) or 1.0
    places = [(WIDTH * to, (HEIGHT - 34) * (1 - ess / (1.1 * top)) + 8) for to, ess in known]
    line = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="dot after"/>' for x, y in places)
    base = HEIGHT - 22
    axis = (
        f'<line x1="0" y1="{base}" x2="{WIDTH}" y2="{base}" class="axis"/>'
        f'<text x="0" y="{base + 15}">all rows</text>'
        f'<text x="{WIDTH}" y="{base + 15}" text-anchor="end">without them</text>'
        f'<text x="0" y="8">{top:,.0f}</text>'
    )
    told = "; ".join(f"at {to:.2f} {ess:,.0f}" for to, ess in known)
    return figure(said, f"{said}: {told}", f'{axis}<path d="{line}" class="curve after"/>{dots}')


class Way(NamedTuple):
    """How much of the way from refits (0) back to the untouched draws (1) is left by a metric, and its error."""

    name: str
    left: float
    error: float
    passed: bool
    verdict: str


def ways(said: str, known: Sequence[Way]) -> str:
    """A line for each metric: refits at one end, the untouched draws at the other, the erased ones in between."""
    low, high, start, stop = -0.35, 1.35, 4.0, 280.0
    zero, one = (_along(x, low, high, start, stop) for x in (0.0, 1.0))
    height = 36 * len(known) + 22
    ends = (zero, "refit", "as new fits are"), (one, "before", "as before")
    feet = [f'<text x="{x:.1f}" y="{height - 2}" text-anchor="middle">{what}</text>' for x, _, what in ends]
    rows = []
    for place, each in enumerate(known):
        y = 36 * place + 28
        kind, mark = ("passed", "✓") if each.passed else ("off", "✗")
        at, a, b = (
            _along(x, low, high, start, stop)
            for x in (each.left, each.left - 2 * each.error, each.left + 2 * each.error)
        )
        rows += [
            f'<line x1="{x:.1f}" y1="{y - 7}" x2="{x:.1f}" y2="{y + 7}" class="tick {which}"/>' for x, which, _ in ends
        ]
        rows.append(
            f'<line x1="{start:.1f}" y1="{y}" x2="{stop:.1f}" y2="{y}" class="rail"/>'
            f'<line x1="{a:.1f}" y1="{y}" x2="{b:.1f}" y2="{y}" class="error {kind}"/>'
            f'<circle cx="{at:.1f}" cy="{y}" r="4.5" class="dot {kind}"/>'
            f'<text x="0" y="{y - 9}">{html.escape(each.name)}</text><text x="288" y="{y + 4}">{mark}</text>'
        )
    told = "; ".join(f"{each.name}: {each.left:.0%} of the way left, {each.verdict}" for each in known)
    return figure(said, f"{said}: {told}", "".join(rows + feet), height=height)


def _along(x: float, low: float, high: float, start: float, end: float) -> float:
    """Where a number is on a line, or which end of it is nearest."""
    return start + (end - start) * (min(max(x, low), high) - low) / (high - low)


def key(labels: Sequence[str]) -> str:
    """Which line is which."""
    parts = [
        f'<span><svg viewBox="0 0 24 8" width="24" height="8" aria-hidden="true"><line x1="0" y1="4" x2="24" y2="4" '
        f'class="curve {COLOURS[label]}"/></svg> {html.escape(label)}</span>'
        for label in dict.fromkeys(labels)
    ]
    return f"<p class=key>{' '.join(parts)}</p>"


def figure(caption: str, said: str, inside: str, height: int = HEIGHT) -> str:
    """A picture with what it shows, in words."""
    picture = (
        f'<svg viewBox="-2 -2 {WIDTH + 4} {height + 4}" role="img" aria-label="{html.escape(said)}" '
        f'xmlns="http://www.w3.org/2000/svg">{inside}</svg>'
    )
    return f"<figure>{picture}<figcaption>{html.escape(caption)}</figcaption></figure>"
