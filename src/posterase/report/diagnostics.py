"""The page of an erasure's diagnostics: every figure of every method, and the draws before beside those after.

It contains information about the removed rows, and says so in a banner: keep it no longer than the draws before. The
statistics are folded in for those who want them; pictures have their numbers in tables. It is made from plain facts,
as `Result.diagnostics_dict` holds them.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posterase.draws.notes import CONTAINS
from posterase.ladder.result import Result
from posterase.ladder.verdict import epsilon_text
from posterase.metrics.table import COLUMNS, Assessment, Outcome
from posterase.metrics.table import with_error as figures_of
from posterase.numerics.cost import Cost
from posterase.numerics.weights import Estimate, total_variation
from posterase.plotting import svg
from posterase.plotting.figures import Sample, moved_most, samples_of
from posterase.plotting.svg import Bar, Way
from posterase.report.html import bullets, count, folded, page_of, section, table
from posterase.report.report import (
    Facts,
    asked_section,
    certificate_section,
    meanings_section,
    methods_section,
    notes_section,
    objections_of,
    verdict_section,
)

BANNER = f"Contains {CONTAINS}. Keep this page no longer than the draws before."

NOT_SHOWN = "What moved is not shown: the draws before and after were not given."

LARGEST_K = 2.0
"""Where the bars of k̂ end."""


def diagnostics_report(
    result: Result,
    *,
    certificate: bytes | None = None,
    assessment: Assessment | None = None,
    title: str = "Erasure diagnostics",
) -> str:
    """Make the page of an erasure's diagnostics.

    Parameters
    ----------
    result
        What `pe.erase` returned.
    certificate
        The certificate of the request, if there is one.
    assessment
        What `pe.assess` found against refits, if there are some.
    title
        The page's title.
    """
    facts, samples = result.diagnostics_dict(), samples_of(result)
    return diagnostics_page(facts, samples, certificate=certificate, assessment=assessment, title=title)


def diagnostics_page(
    facts: Facts,
    samples: Sequence[Sample] = (),
    *,
    certificate: bytes | None = None,
    assessment: Assessment | None = None,
    title: str = "Erasure diagnostics",
) -> str:
    """Make the page from plain facts.

    Parameters
    ----------
    facts
        What `Result.diagnostics_dict` returns.
    samples
        The draws before, after, and of refits. Without them what moved is not shown.
    certificate
        The certificate, if there is one.
    assessment
        What `pe.assess` found against refits, if there are some.
    title
        The page's title.
    """
    parts = [
        verdict_section(facts),
        asked_section(facts),
        methods_section(facts["methods"], _figures(facts["methods"])),
        _sure(facts),
        _against_refits(assessment) if assessment is not None else "",
        _moved(samples),
        notes_section(facts),
        certificate_section(certificate) if certificate is not None else "",
    ]
    return page_of(title, [*parts, meanings_section(parts)], banner=BANNER)


# --- sections


def _figures(methods: Sequence[Facts]) -> str:
    head = ("method", "k̂", "effective draws", "ε", "evaluations", "seconds", "verdict")
    figures = table("Every method that was tried", head, [_row(method) for method in methods])
    return folded("The figures of each method", figures) + "".join(_path(method) for method in methods)


def _path(method: Facts) -> str:
    """The stages of a tempered path."""
    stages = method.get("path") or []
    if not stages:
        return ""
    head = ("stage", "λ", "effective draws", "k̂", "moves", "moves accepted", "correlation left")
    rows = [
        (
            str(number),
            _number(each["to"], 3),
            _number(each["ess"], 0),
            _number(each["pareto_k"], 2),
            _number(each["moves"], 0),
            _percent(each["acceptance"]),
            _number(each["correlation"], 2),
        )
        for number, each in enumerate(stages, 1)
    ]
    text = (
        "λ goes from 0, the posterior of all rows, to 1, that without them. At each stage the draws are weighted and "
        "resampled, then moved until they have forgotten where they were: little correlation is left."
    )
    picture = svg.stages("Effective draws at every stage", stages) if len(stages) > 1 else ""
    numbers = table(f"The path of {method['name']}", head, rows)
    return folded(f"The path of {method['name']}, stage by stage", f"<p>{text}</p>{picture}{numbers}")


def _sure(facts: Facts) -> str:
    verdict = facts["verdict"]
    epsilon = _estimate(verdict["epsilon"])
    lines = []
    if epsilon is not None:
        guessed = 50 * (1 + total_variation([epsilon.value]))
        lines.append(
            f"{epsilon_text(epsilon)} nats: how far a returned draw's distribution is from that of a new fit; "
            f"0 is the same. By this estimate, whoever sees one draw can tell which of the two it is from in at most "
            f"{guessed:.0f} of 100 cases; guessing alone gives 50."
        )
    elif verdict["accepted"]:
        lines.append("ε was not measured: the method has no density to measure it with.")
    if verdict["pareto_k"] is not None:
        lines.append(f"k̂ is {verdict['pareto_k']:.2f}: below its threshold the weights can be trusted.")
    if verdict["ess"] is not None:
        lines.append(
            f"The draws are worth {verdict['ess']:,.0f} independent ones for the parameter where they are worth least."
        )
    lines += _last(facts)
    if not lines:
        lines.append("No method gave figures that can be trusted.")
    figures = f"<div class=figures>{_figure_of_k(facts)}{_figure_of_ess(facts)}</div>" if facts["methods"] else ""
    return section("How sure we are", bullets(lines) + figures)


def _last(facts: Facts) -> list[str]:
    """The other diagnostics of the last method."""
    last = facts["methods"][-1] if facts["methods"] else {}
    lines = []
    stages = last.get("path") or []
    if stages:
        end = stages[-1]
        lines.append(
            f"The path has {count(len(stages), 'stage')}. On the last, {_percent(end['acceptance'])} of the moves were "
            f"accepted, and a correlation of {_number(end['correlation'], 2)} with where the draws began is left."
        )
    if last.get("rhat") is not None:
        lines.append(f"R̂ of the new chains is {last['rhat']:.3f}: 1 where they agree with each other.")
    if last.get("divergences"):
        lines.append(f"{last['divergences']} of the sampler's steps diverged.")
    if last.get("residual") is not None:
        lines.append(f"The solver's relative residual is {last['residual']:.1%}.")
    return lines


def _against_refits(assessment: Assessment) -> str:
    """Metrics against their floors."""
    metrics = assessment["metrics"].to_dataset()
    rows = []
    for number, name in enumerate(metrics["metric"].values.tolist()):
        pairs = [(float(metrics[c].values[number]), float(metrics[f"{c}_error"].values[number])) for c in COLUMNS]
        rows.append((name, *(figures_of(*each) for each in pairs), str(metrics["verdict"].values[number])))
    head = ("metric", "before", "after", "refit", "floor", "verdict")
    numbers = table("Every metric against its floor", head, rows)
    reasons = assessment["left_out"].to_dataset()
    left = list(zip(reasons["metric"].values.tolist(), reasons["why"].values.tolist(), strict=True))
    missing = table("What was left out", ("metric", "why"), left) if left else ""
    seen = _ways(assessment)
    caption = "Where the new draws are, between new fits and the draws before; bars: two standard errors"
    picture = svg.ways(caption, seen) if seen else ""
    refits = count(int(assessment.attrs["refits"]), "new fit")
    text = (
        f"The draws were compared with {refits} without the rows. A metric is at its floor if the new draws differ "
        "from a new fit no more than two new fits differ from each other, and the draws before differ more."
    )
    return section(
        "Against new fits",
        f"<p>{html.escape(text)}</p><p><strong>{html.escape(_summary(assessment))}</strong></p>{picture}"
        f"{folded('The numbers behind the picture', numbers + missing)}",
    )


def _summary(assessment: Assessment) -> str:
    """How many metrics are at their floors."""
    floor, off = len(assessment.at_the_floor), len(assessment.off)
    unsure = len(assessment.with_outcome(Outcome.CANNOT_TELL))
    return f"{count(floor, 'metric')} at the floor, {off} off, {unsure} that cannot tell."


def _ways(assessment: Assessment) -> list[Way]:
    """How much of the way from refits back to the untouched draws is left, by each metric that tells these apart."""
    metrics, verdicts = assessment["metrics"].to_dataset(), assessment.verdicts
    at_the_floor = assessment.at_the_floor
    found = []
    for name in assessment.with_outcome(Outcome.AT_FLOOR, Outcome.OFF):
        one = metrics.sel(metric=name)
        way = float(one["origin"]) - float(one["target"])
        if np.isfinite(way) and way != 0:
            left = (float(one["erased"]) - float(one["target"])) / way
            error = abs(float(one["erased_error"]) / way)
            found.append(Way(name, left, error, name in at_the_floor, verdicts[name]))
    return found


def _moved(samples: Sequence[Sample]) -> str:
    if not samples:
        return section("What moved", f"<p>{NOT_SHOWN}</p>")
    names = samples[0].names
    figures, rows = [], []
    for at, moved in moved_most(samples).items():
        figures.append(svg.densities(samples, at, f"{names[at]} moved by {moved:.2g} standard deviations"))
        for each in samples:
            cells = (names[at], each.label, f"{each.mean[at]:.4g}", f"{each.sd[at]:.4g}")
            rows.append(cells)
    numbers = table("Means and standard deviations", ("parameter", "draws", "mean", "standard deviation"), rows)
    return section(
        "What moved",
        "<p>The parameters that moved most: the posterior before and after.</p>"
        f"{svg.key([each.label for each in samples])}<div class=figures>{''.join(figures)}</div>"
        f"{folded('The numbers behind the pictures', numbers)}",
    )


# --- figures


def _figure_of_k(facts: Facts) -> str:
    known = [method for method in facts["methods"] if method.get("pareto_k") is not None]
    limits = [method["threshold"] for method in known if method.get("threshold") is not None]
    if not limits:
        return ""
    limit = limits[0] if facts["policy"].get("pareto_k") is None else facts["policy"]["pareto_k"]
    shown = [Bar(method["name"], float(method["pareto_k"]), method["pareto_k"] <= limit) for method in known]
    return svg.bars("k̂ of each method: trusted left of the line", shown, float(limit), largest=LARGEST_K, digits=2)


def _figure_of_ess(facts: Facts) -> str:
    known = [(method, _least(method)) for method in facts["methods"]]
    wanted = facts.get("demanded_ess", facts["policy"].get("ess"))
    if wanted is None or all(ess is None for _, ess in known):
        return ""
    shown = [Bar(method["name"], ess, ess >= wanted) for method, ess in known if ess is not None]
    return svg.bars("Effective draws of each method: wanted right of the line", shown, float(wanted), digits=0)


# --- pieces


def _row(method: Facts) -> tuple[str, ...]:
    seconds = f"{method['seconds']:.2f}"
    least = _least(method)
    if least is None:
        return method["name"], "–", "–", "–", "–", seconds, objections_of(method)
    cost = Cost(method.get("gradients") or 0.0, method.get("densities") or 0.0)
    return (
        method["name"],
        _number(method.get("pareto_k"), 2),
        f"{least:,.0f}",
        epsilon_text(_estimate(method.get("epsilon"))),
        f"{cost.evaluations:,.0f}",
        seconds,
        objections_of(method) or "accepted",
    )


def _least(method: Facts) -> float | None:
    """Effective draws of the worst parameter."""
    known = [value for value in method.get("ess", {}).values() if value is not None]
    return min(known) if known else None


def _estimate(value: Mapping[str, Any] | None) -> Estimate | None:
    if value is None or value["value"] is None:
        return None
    return Estimate(float(value["value"]), float("nan") if value["error"] is None else float(value["error"]))


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
