"""The report of an erasure: one HTML file, for a person who knows no statistics, with the statistics folded in.

It needs no network, no scripts and no other file; it prints, and its pictures have their numbers in tables.
"""

from __future__ import annotations

import hashlib
import html
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float

from posterase.assess.bounds import total_variation
from posterase.erase import Erasure, Rung
from posterase.parameters import element_names
from posterase.plotting import Sample, density, moved_most, points_of, samples_of
from posterase.policy import epsilon_text
from posterase.version import __version__

WORDS = {
    "Reweight": "every draw got a weight: more where it does not need the removed rows, less where it does",
    "InfluenceShift": "every draw was moved by what the removed rows had pulled it",
    "Transport": "all draws were moved and stretched together to where they belong without the rows, and then weighed",
    "Rejuvenate": "the draws were led step by step to where they belong without the rows",
    "Refit": "the model was fitted anew, without the rows",
    "Continue": "the sampler went on from every draw, without the rows",
}
"""What each method does, for everybody."""

KINDS = {
    "measured": "How far the new draws are from those of a new fit was measured, and your policy allows as much.",
    "moved": "The method's own checks passed. How far the new draws are from those of a new fit was not measured.",
    "refitted": "The model was fitted anew without the rows; its chains agree with each other.",
    "matched empirically": "Its predictions match those of new fits as well as these match each other.",
}

WIDTH, HEIGHT = 300, 120
"""Of a picture, in its own units; it grows with the page."""


def report(result: Erasure, *, certificate: bytes | None = None, title: str = "Erasure report") -> str:
    """The whole page.

    Parameters
    ----------
    result
        What `pe.erase` returned.
    certificate
        The certificate of the request, where there is one.
    title
        The page's title.
    """
    parts = [
        _head(title),
        _verdict(result),
        _asked(result),
        _done(result),
        _sure(result),
        _moved(result),
        _not_erased(result),
        _certificate(certificate) if certificate is not None else "",
        f"<footer><p>Made by posterase {html.escape(__version__)}.</p></footer></main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


# --- sections


def _verdict(result: Erasure) -> str:
    rows = _count(result.n_removed, "row")
    if result.verdict.accepted:
        were = "were" if result.n_removed != 1 else "was"
        said, mark = f"Accepted: {rows} of {_total(result)} {were} erased from the posterior.", "accepted"
        rest = KINDS[result.verdict.kind]
    else:
        said, mark = f"Refused: {rows} of {_total(result)} could not be erased this way.", "refused"
        rest = f"Nothing was changed. Why: {result.verdict.reason}. What to do: {result.verdict.advice}"
    return f'<p class="verdict {mark}"><strong>{html.escape(said)}</strong> {html.escape(rest)}</p>'


def _asked(result: Erasure) -> str:
    policy = result.policy
    facts = [
        ("Rows to erase", f"{result.n_removed} of {_total(result)}"),
        ("Draws", f"{result.before.n_chains} chains of {result.before.n_draws}"),
        (
            "Asked of the result",
            f"at least {policy.ess:g} effective draws; ε at most {policy.epsilon:g} nats where measured",
        ),
        ("A new fit", "allowed, where nothing cheaper passes" if policy.refit else "not allowed"),
    ]
    return f"<section><h2>What was asked</h2>{_facts(facts)}</section>"


def _done(result: Erasure) -> str:
    if not result.rungs:
        return ""
    items = []
    for rung in result.rungs:
        told = WORDS.get(rung.name, "")
        ended = "this was accepted" if not rung.objections else f"not accepted: {_objections(rung)}"
        items.append(f"<li><strong>{html.escape(rung.name)}</strong>: {html.escape(told)}; {html.escape(ended)}.</li>")
    head = ("method", "k̂", "effective draws", "ε", "evaluations", "seconds", "verdict")
    table = _table("Every method that was tried", head, [_rung(rung) for rung in result.rungs])
    folded = _folded("The figures of each method", table)
    return (
        "<section><h2>What was done</h2><p>Methods are tried from the cheapest to the exact one, and the first that "
        f"passes its checks is taken.</p><ol>{''.join(items)}</ol>{folded}</section>"
    )


def _sure(result: Erasure) -> str:
    verdict = result.verdict
    lines = []
    if verdict.epsilon is not None:
        guessed = 50 * (1 + total_variation([verdict.epsilon.value]))
        lines.append(
            f"{epsilon_text(verdict.epsilon)} nats: how far a returned draw's distribution is from that of a new fit; "
            f"0 is the same. By this estimate, who sees one draw can tell which of the two it is from in at most "
            f"{guessed:.0f} of 100 cases, where 50 is mere guessing."
        )
    elif verdict.accepted:
        lines.append("ε was not measured: the method has no density to measure it with.")
    if verdict.pareto_k is not None:
        lines.append(f"k̂ is {verdict.pareto_k:.2f}: below its threshold the weights can be trusted.")
    if verdict.ess is not None:
        lines.append(
            f"The draws are worth {verdict.ess:,.0f} independent ones, for the parameter where they are worth least."
        )
    shown = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    figures = f"<div class=figures>{_figure_of_k(result)}{_figure_of_ess(result)}</div>"
    return f"<section><h2>How sure we are</h2><ul>{shown}</ul>{figures}</section>"


def _moved(result: Erasure) -> str:
    samples, names = samples_of(result), element_names(result.before.params)
    figures, rows = [], []
    for at, moved in moved_most(samples).items():
        figures.append(_densities(samples, at, f"{names[at]} moved by {moved:.2g} standard deviations"))
        for each in samples:
            cells = (names[at], each.label, f"{each.mean[at]:.4g}", f"{each.sd[at]:.4g}")
            rows.append(cells)
    table = _table("Means and standard deviations", ("parameter", "draws", "mean", "standard deviation"), rows)
    folded = _folded("The numbers behind the pictures", table)
    return (
        "<section><h2>What moved</h2><p>The parameters that moved most, as the posterior was before and as it is after."
        f"</p>{_key(samples)}<div class=figures>{''.join(figures)}</div>{folded}</section>"
    )


def _not_erased(result: Erasure) -> str:
    notes = [
        *result.verdict.notes,
        "backups and other copies of the draws, of their data, and of what was made of them",
    ]
    shown = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return f"<section><h2>What else to know, and what was not erased</h2><ul>{shown}</ul></section>"


def _certificate(certificate: bytes) -> str:
    digest = hashlib.sha256(certificate).hexdigest()
    facts = [
        ("Fingerprint", f"sha256:{digest}"),
        ("To verify it", "posterase verify LEDGER --key PUBLIC.key --certificate CERTIFICATE.json"),
    ]
    return f"<section><h2>The certificate</h2>{_facts(facts)}</section>"


# --- pictures

COLOURS = {"before": "#767676", "after": "#D55E00", "after (refused)": "#D55E00", "refit": "#0072B2"}
DASHES = {"before": "", "after": "", "after (refused)": "", "refit": "4 3"}


def _densities(samples: Sequence[Sample], at: int, said: str) -> str:
    points = points_of(samples, at)
    curves = [density(each.values[:, at], each.weights, points) for each in samples]
    top = max(float(curve.max()) for curve in curves) or 1.0
    lines = [
        f'<path d="{_path(points, curve, top)}" fill="none" stroke="{COLOURS[each.label]}" '
        f'stroke-width="2" stroke-dasharray="{DASHES[each.label]}"/>'
        for each, curve in zip(samples, curves, strict=True)
    ]
    means = ", ".join(f"{each.label} {each.mean[at]:.3g} ± {each.sd[at]:.2g}" for each in samples)
    axis = (
        f'<line x1="0" y1="{HEIGHT - 16}" x2="{WIDTH}" y2="{HEIGHT - 16}" class="axis"/>'
        f'<text x="0" y="{HEIGHT - 3}">{points[0]:.3g}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 3}" text-anchor="end">{points[-1]:.3g}</text>'
    )
    picture = _svg(f"Densities: {means}", axis + "".join(lines))
    return f"<figure>{picture}<figcaption>{html.escape(said)}</figcaption></figure>"


def _path(points: Float[np.ndarray, " n"], curve: Float[np.ndarray, " n"], top: float) -> str:
    x = WIDTH * (points - points[0]) / (points[-1] - points[0] or 1)
    y = (HEIGHT - 17) * (1 - 0.97 * curve / top)
    return "M" + " L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))


def _figure_of_k(result: Erasure) -> str:
    shown = [(rung, rung.evidence) for rung in result.rungs]
    known = [(rung.name, float(e.pareto_k), not rung.objections) for rung, e in shown if e and e.pareto_k is not None]
    limits = [e.threshold for _, e in shown if e and e.threshold is not None]
    if not known or not limits:
        return ""
    limit = limits[0] if result.policy.pareto_k is None else result.policy.pareto_k
    return _bars("k̂ of each method: trusted left of the line", known, limit, largest=2.0, digits=2)


def _figure_of_ess(result: Erasure) -> str:
    known = [(r.name, float(r.evidence.least_ess), not r.objections) for r in result.rungs if r.evidence is not None]
    if not known:
        return ""
    return _bars("Effective draws of each method: wanted right of the line", known, result.policy.ess, digits=0)


def _bars(
    said: str, known: Sequence[tuple[str, float, bool]], limit: float, *, largest: float = np.inf, digits: int
) -> str:
    """Bars with their numbers; what passed is told by a mark as well as by its colour."""
    values = [min(max(value, 0.0), largest) for _, value, _ in known]
    scale = 190 / (max([*values, limit]) * 1.05)
    height = 22 * len(known) + 8
    rows = []
    for place, ((name, value, passed), drawn) in enumerate(zip(known, values, strict=True)):
        y = 22 * place + 4
        colour, mark = ("#009E73", "✓") if passed else ("#767676", "✗")
        rows.append(
            f'<text x="0" y="{y + 12}">{mark} {html.escape(name)}</text>'
            f'<rect x="90" y="{y}" width="{scale * drawn:.1f}" height="15" fill="{colour}"/>'
            f'<text x="{94 + scale * drawn:.1f}" y="{y + 12}">{value:.{digits}f}</text>'
        )
    line = 90 + scale * limit
    rows.append(f'<line x1="{line:.1f}" y1="0" x2="{line:.1f}" y2="{height}" class="limit"/>')
    told = "; ".join(f"{name} {value:.{digits}f}, {'passed' if ok else 'not passed'}" for name, value, ok in known)
    picture = _svg(f"{said}. Line at {limit:.{digits}f}. {told}", "".join(rows), width=330, height=height)
    return f"<figure>{picture}<figcaption>{html.escape(said)}</figcaption></figure>"


def _svg(said: str, inside: str, width: int = WIDTH, height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="-2 -2 {width + 4} {height + 4}" role="img" aria-label="{html.escape(said)}" '
        f'xmlns="http://www.w3.org/2000/svg">{inside}</svg>'
    )


def _key(samples: Sequence[Sample]) -> str:
    shown = dict.fromkeys(each.label for each in samples)
    parts = [
        f'<span><svg viewBox="0 0 24 8" width="24" height="8" aria-hidden="true"><line x1="0" y1="4" x2="24" y2="4" '
        f'stroke="{COLOURS[label]}" stroke-width="3" stroke-dasharray="{DASHES[label]}"/></svg> {label}</span>'
        for label in shown
    ]
    return f"<p class=key>{' '.join(parts)}</p>"


# --- pieces


def _rung(rung: Rung) -> tuple[str, ...]:
    shown = rung.evidence
    if shown is None:
        return rung.name, "–", "–", "–", "–", f"{rung.seconds:.2f}", _objections(rung)
    return (
        rung.name,
        "–" if shown.pareto_k is None else f"{shown.pareto_k:.2f}",
        f"{shown.least_ess:,.0f}",
        epsilon_text(shown.epsilon),
        f"{shown.cost.evaluations:,.0f}",
        f"{rung.seconds:.2f}",
        _objections(rung) or "accepted",
    )


def _objections(rung: Rung) -> str:
    return ", ".join(objection.reason.rstrip(".") for objection in rung.objections)


def _total(result: Erasure) -> int:
    return result.model.n_rows + result.n_removed


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><th scope=row>{html.escape(a)}</th><td>{html.escape(b)}</td></tr>" for a, b in facts)
    return f"<table class=facts><tbody>{rows}</tbody></table>"


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th scope=col>{html.escape(each)}</th>" for each in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(each)}</td>" for each in row) + "</tr>" for row in rows)
    return f"<table><caption>{html.escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _folded(summary: str, content: str) -> str:
    return f"<details><summary>{html.escape(summary)}</summary><div class=wide>{content}</div></details>"


def _head(title: str) -> str:
    name = html.escape(title)
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        f'<meta name=viewport content="width=device-width,initial-scale=1"><title>{name}</title>'
        f"<style>{_STYLE}</style></head><body><main><h1>{name}</h1>"
    )


_STYLE = """
:root{--ink:#1a1a1a;--paper:#fff;--line:#b5b5b5;--good:#00664b;--bad:#a33d00}
@media (prefers-color-scheme:dark){:root{--ink:#eee;--paper:#161616;--line:#555;--good:#4cc9a0;--bad:#ff9a5c}}
@page{size:A4;margin:14mm}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0}
main{max-width:52rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.7rem;margin:0 0 .8rem}
h2{font-size:1.15rem;margin:1.6rem 0 .4rem;border-bottom:1px solid var(--line)}
.verdict{font-size:1.15rem;border-left:.35rem solid;padding:.5rem .9rem;margin:0}
.accepted{border-color:var(--good)}.accepted strong{color:var(--good)}
.refused{border-color:var(--bad)}.refused strong{color:var(--bad)}
table{border-collapse:collapse}
caption{text-align:left;font-weight:600;padding:.3rem 0}
th,td{text-align:left;vertical-align:top;padding:.15rem .9rem .15rem 0;overflow-wrap:anywhere}
thead th{border-bottom:1px solid var(--line)}
.facts th{min-width:10rem;font-weight:600}
.wide{overflow-x:auto}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(16rem,1fr));gap:1rem}
figure{margin:.6rem 0;max-width:26rem;break-inside:avoid}
figcaption{font-size:.9rem}
svg{width:100%;height:auto;overflow:visible}
svg text{font:11px system-ui,sans-serif;fill:var(--ink)}
.axis,.limit{stroke:var(--ink);stroke-width:1}
.limit{stroke-dasharray:4 3}
.key span{margin-right:1.2rem;white-space:nowrap}
.key svg{width:24px;height:8px}
summary{cursor:pointer;padding:.3rem 0}
footer{font-size:.85rem;margin-top:2rem;border-top:1px solid var(--line)}
@media print{body{font-size:11px}main{margin:0;max-width:none;padding:0}details:not([open])>.wide{display:block}}
"""
