"""The report of an erasure: one HTML file, for a person who knows no statistics, with the statistics folded in.

It needs no network, no scripts and no other file; it prints, and its pictures have their numbers in tables. It is made
from plain facts, as `Erasure.to_dict` and certificates hold them.
"""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from posterase.assess.bounds import total_variation
from posterase.assess.table import COLUMNS, Assessment
from posterase.assess.table import with_error as figures_of
from posterase.erasure import Erasure
from posterase.interfaces import pictures
from posterase.interfaces.pictures import Bar, Way
from posterase.numerics.cost import Cost
from posterase.numerics.weights import Estimate
from posterase.plotting import Sample, moved_most, samples_of
from posterase.policy import epsilon_text
from posterase.version import __version__

Told = Mapping[str, Any]
"""What `Erasure.to_dict` says."""

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

NOT_SHOWN = "What moved is not shown: pictures of the posterior before would keep what was erased."

LARGEST_K = 2.0
"""Where the bars of k̂ end."""


def report(
    result: Erasure,
    *,
    certificate: bytes | None = None,
    assessment: Assessment | None = None,
    title: str = "Erasure report",
) -> str:
    """The whole page of an erasure that was just made.

    Parameters
    ----------
    result
        What `pe.erase` returned.
    certificate
        The certificate of the request, where there is one.
    assessment
        What `pe.assess.assess` found against refits, where there are some.
    title
        The page's title.
    """
    return page(result.to_dict(), samples_of(result), certificate=certificate, assessment=assessment, title=title)


def page(
    told: Told,
    samples: Sequence[Sample] = (),
    *,
    certificate: bytes | None = None,
    assessment: Assessment | None = None,
    title: str = "Erasure report",
) -> str:
    """The whole page, from plain facts.

    Parameters
    ----------
    told
        What `Erasure.to_dict` says.
    samples
        The draws before, after, and of refits. Without them what moved is not shown.
    certificate
        The certificate, where there is one.
    assessment
        What `pe.assess.assess` found against refits, where there are some.
    title
        The page's title.
    """
    parts = [
        _head(title),
        _verdict(told),
        _asked(told),
        _done(told),
        _sure(told),
        _against_refits(assessment) if assessment is not None else "",
        _moved(samples),
        _not_erased(told),
        _certificate(certificate) if certificate is not None else "",
        f"<footer><p>Made by posterase {html.escape(__version__)}.</p></footer></main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


# --- sections


def _verdict(told: Told) -> str:
    verdict, rows = told["verdict"], _count(told["removed_rows"], "row")
    if verdict["accepted"]:
        were = "were" if told["removed_rows"] != 1 else "was"
        said, mark = f"Accepted: {rows} of {_total(told)} {were} erased from the posterior.", "accepted"
        rest = KINDS[verdict["kind"]]
    else:
        said, mark = f"Refused: {rows} of {_total(told)} could not be erased this way.", "refused"
        rest = f"Nothing was changed. Why: {verdict['reason']}. What to do: {verdict['advice']}"
    return f'<p class="verdict {mark}"><strong>{html.escape(said)}</strong> {html.escape(rest)}</p>'


def _asked(told: Told) -> str:
    policy = told["policy"]
    facts = [("Rows to erase", f"{told['removed_rows']} of {_total(told)}")]
    if "chains" in told:
        facts.append(("Draws", f"{_count(told['chains'], 'chain')} of {told['draws']:,}"))
    wanted = [f"at least {policy['ess']:g} effective draws"] if policy.get("ess") is not None else []
    if policy.get("epsilon") is not None:
        wanted.append(f"ε at most {policy['epsilon']:g} nats where measured")
    facts.append(("Asked of the result", "; ".join(wanted) or "nothing that is known here"))
    facts.append(("A new fit", "allowed, where nothing cheaper passes" if policy.get("refit") else "not allowed"))
    return _section("What was asked", _facts(facts))


def _done(told: Told) -> str:
    rungs = told["rungs"]
    if not rungs:
        return ""
    items = []
    for rung in rungs:
        ended = "this was accepted" if rung["passed"] else f"not accepted: {_objections(rung)}"
        said = f"{WORDS[rung['name']]}; {ended}" if rung["name"] in WORDS else ended
        items.append(f"<li><strong>{html.escape(rung['name'])}</strong>: {html.escape(said)}.</li>")
    head = ("method", "k̂", "effective draws", "ε", "evaluations", "seconds", "verdict")
    table = _table("Every method that was tried", head, [_rung(rung) for rung in rungs])
    paths = "".join(_path(rung) for rung in rungs)
    return _section(
        "What was done",
        "<p>Methods are tried from the cheapest to the exact one, and the first that passes its checks is taken.</p>"
        f"<ol>{''.join(items)}</ol>{_folded('The figures of each method', table)}{paths}",
    )


def _path(rung: Told) -> str:
    """How draws got where they are: the stages of a path."""
    stages = rung.get("path") or []
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
    said = (
        "λ goes from 0, the posterior of all rows, to 1, that without them. At each stage draws are weighed and "
        "resampled, then moved until they have forgotten where they were: little correlation is left."
    )
    picture = pictures.stages("Effective draws at every stage", stages) if len(stages) > 1 else ""
    table = _table(f"The path of {rung['name']}", head, rows)
    return _folded(f"The path of {rung['name']}, stage by stage", f"<p>{said}</p>{picture}{table}")


def _sure(told: Told) -> str:
    verdict = told["verdict"]
    epsilon = _estimate(verdict["epsilon"])
    lines = []
    if epsilon is not None:
        guessed = 50 * (1 + total_variation([epsilon.value]))
        lines.append(
            f"{epsilon_text(epsilon)} nats: how far a returned draw's distribution is from that of a new fit; "
            f"0 is the same. By this estimate, who sees one draw can tell which of the two it is from in at most "
            f"{guessed:.0f} of 100 cases, where 50 is mere guessing."
        )
    elif verdict["accepted"]:
        lines.append("ε was not measured: the method has no density to measure it with.")
    if verdict["pareto_k"] is not None:
        lines.append(f"k̂ is {verdict['pareto_k']:.2f}: below its threshold the weights can be trusted.")
    if verdict["ess"] is not None:
        lines.append(
            f"The draws are worth {verdict['ess']:,.0f} independent ones, for the parameter where they are worth least."
        )
    lines += _last(told)
    if not lines:
        lines.append("No method came to figures that could be trusted.")
    shown = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    figures = f"<div class=figures>{_figure_of_k(told)}{_figure_of_ess(told)}</div>" if told["rungs"] else ""
    return _section("How sure we are", f"<ul>{shown}</ul>{figures}")


def _last(told: Told) -> list[str]:
    """What the last method's other diagnostics say."""
    last = told["rungs"][-1] if told["rungs"] else {}
    lines = []
    stages = last.get("path") or []
    if stages:
        end = stages[-1]
        lines.append(
            f"The draws were led in {_count(len(stages), 'stage')}; on the last, {_percent(end['acceptance'])} of the "
            f"moves were accepted, and a correlation of {_number(end['correlation'], 2)} with where they began is left."
        )
    if last.get("rhat") is not None:
        lines.append(f"R̂ of the new chains is {last['rhat']:.3f}: 1 where they agree with each other.")
    if last.get("divergences"):
        lines.append(f"{last['divergences']} of the sampler's steps diverged.")
    if last.get("residual") is not None:
        lines.append(f"The solver left {last['residual']:.1%} of what it had to solve.")
    return lines


def _against_refits(assessment: Assessment) -> str:
    """Metrics against their floors."""
    metrics = assessment["metrics"].to_dataset()
    rows = []
    for number, name in enumerate(metrics["metric"].values.tolist()):
        pairs = [(float(metrics[c].values[number]), float(metrics[f"{c}_error"].values[number])) for c in COLUMNS]
        rows.append((name, *(figures_of(*each) for each in pairs), str(metrics["verdict"].values[number])))
    head = ("metric", "before", "after", "refit", "floor", "verdict")
    table = _table("Every metric against its floor", head, rows)
    reasons = assessment["left_out"].to_dataset()
    left = list(zip(reasons["metric"].values.tolist(), reasons["why"].values.tolist(), strict=True))
    missing = _table("What was left out", ("metric", "why"), left) if left else ""
    seen = _ways(assessment)
    caption = "Where the new draws are, between new fits and the draws before; bars: two standard errors"
    picture = pictures.ways(caption, seen) if seen else ""
    refits = _count(int(assessment.attrs["refits"]), "new fit")
    said = (
        f"The draws were held against {refits} without the rows. A metric is at its floor where the new draws differ "
        "from a new fit no more than two new fits differ from each other, and the draws before differ more."
    )
    return _section(
        "Against new fits",
        f"<p>{html.escape(said)}</p><p><strong>{html.escape(_summary(assessment))}</strong></p>{picture}"
        f"{_folded('The numbers behind the picture', table + missing)}",
    )


def _summary(assessment: Assessment) -> str:
    """In one plain sentence."""
    floor, off = len(assessment.at_the_floor), len(assessment.off)
    unsure = sum(verdict.startswith("cannot tell") for verdict in assessment.verdicts.values())
    return f"{_count(floor, 'metric')} at the floor, {off} off, {unsure} that cannot tell."


def _ways(assessment: Assessment) -> list[Way]:
    """How far from refits the erased draws are, of the way that the untouched ones are, by metrics that see these."""
    metrics, verdicts = assessment["metrics"].to_dataset(), assessment.verdicts
    found = []
    for name in metrics["metric"].values.tolist():
        verdict, one = verdicts[name], metrics.sel(metric=name)
        way = float(one["origin"]) - float(one["target"])
        if (verdict == "at the floor" or verdict.startswith("off")) and np.isfinite(way) and way != 0:
            left = (float(one["erased"]) - float(one["target"])) / way
            found.append(Way(name, left, abs(float(one["erased_error"]) / way), verdict))
    return found


def _moved(samples: Sequence[Sample]) -> str:
    if not samples:
        return _section("What moved", f"<p>{NOT_SHOWN}</p>")
    names = samples[0].names
    figures, rows = [], []
    for at, moved in moved_most(samples).items():
        figures.append(pictures.densities(samples, at, f"{names[at]} moved by {moved:.2g} standard deviations"))
        for each in samples:
            cells = (names[at], each.label, f"{each.mean[at]:.4g}", f"{each.sd[at]:.4g}")
            rows.append(cells)
    table = _table("Means and standard deviations", ("parameter", "draws", "mean", "standard deviation"), rows)
    return _section(
        "What moved",
        "<p>The parameters that moved most, as the posterior was before and as it is after.</p>"
        f"{pictures.key([each.label for each in samples])}<div class=figures>{''.join(figures)}</div>"
        f"{_folded('The numbers behind the pictures', table)}",
    )


def _not_erased(told: Told) -> str:
    notes = [
        *told["verdict"]["notes"],
        "backups and copies of the draws, of their data and of anything computed from them",
    ]
    shown = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return _section("What else to know, and what was not erased", f"<ul>{shown}</ul>")


def _certificate(certificate: bytes) -> str:
    digest = hashlib.sha256(certificate).hexdigest()
    ledger = "" if _alone(certificate) else "LEDGER "
    facts = [
        ("Fingerprint", f"sha256:{digest}"),
        ("To verify it", f"posterase verify {ledger}--key public.key --certificate certificate.json"),
    ]
    said = (
        "The certificate says the same, signed. Whoever has it and the public key of who issued it can check that "
        "nothing was changed since."
    )
    return _section("The certificate", f"<p>{said}</p>{_facts(facts)}")


def _alone(certificate: bytes) -> bool:
    """Whether a certificate is in no ledger."""
    try:
        value = json.loads(certificate)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("ledger", "") is None


# --- figures


def _figure_of_k(told: Told) -> str:
    known = [rung for rung in told["rungs"] if rung.get("pareto_k") is not None]
    limits = [rung["threshold"] for rung in known if rung.get("threshold") is not None]
    if not limits:
        return ""
    limit = limits[0] if told["policy"].get("pareto_k") is None else told["policy"]["pareto_k"]
    shown = [Bar(rung["name"], float(rung["pareto_k"]), rung["pareto_k"] <= limit) for rung in known]
    return pictures.bars("k̂ of each method: trusted left of the line", shown, float(limit), largest=LARGEST_K, digits=2)


def _figure_of_ess(told: Told) -> str:
    known = [(rung, _least(rung)) for rung in told["rungs"]]
    wanted = told["policy"].get("ess")
    if wanted is None or all(ess is None for _, ess in known):
        return ""
    shown = [Bar(rung["name"], ess, ess >= wanted) for rung, ess in known if ess is not None]
    return pictures.bars("Effective draws of each method: wanted right of the line", shown, float(wanted), digits=0)


# --- pieces


def _rung(rung: Told) -> tuple[str, ...]:
    seconds = f"{rung['seconds']:.2f}"
    least = _least(rung)
    if least is None:
        return rung["name"], "–", "–", "–", "–", seconds, _objections(rung)
    cost = Cost(rung.get("gradients") or 0.0, rung.get("densities") or 0.0)
    return (
        rung["name"],
        _number(rung.get("pareto_k"), 2),
        f"{least:,.0f}",
        epsilon_text(_estimate(rung.get("epsilon"))),
        f"{cost.evaluations:,.0f}",
        seconds,
        _objections(rung) or "accepted",
    )


def _least(rung: Told) -> float | None:
    """Effective draws of the worst parameter."""
    known = [value for value in rung.get("ess", {}).values() if value is not None]
    return min(known) if known else None


def _estimate(value: Mapping[str, Any] | None) -> Estimate | None:
    if value is None or value["value"] is None:
        return None
    return Estimate(float(value["value"]), float("nan") if value["error"] is None else float(value["error"]))


def _objections(rung: Told) -> str:
    return ", ".join(reason.rstrip(".") for reason in rung["objections"])


def _total(told: Told) -> int:
    return told["kept_rows"] + told["removed_rows"]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{inside}</section>"


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
:root{color-scheme:light dark;--ink:#1d2125;--soft:#565d66;--paper:#fff;--card:#f6f7f8;--line:#d3d7dc;--good:#00664b;
--bad:#a33d00;--before:#767d86;--after:#d55e00;--refit:#0072b2;--pass:#009e73;--fail:#9aa1a9}
@media (prefers-color-scheme:dark){:root{--ink:#e6e8ea;--soft:#a5acb5;--paper:#15181b;--card:#1d2125;--line:#3a4047;
--good:#4cc9a0;--bad:#ff9a5c;--before:#9aa1a9;--after:#ff8533;--refit:#56b4e9;--pass:#1fb98c;--fail:#6b727a}}
@page{size:A4;margin:14mm}
body{font:16px/1.55 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0}
main{max-width:50rem;margin:2.5rem auto;padding:0 1.2rem}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 1rem}
h2{font-size:1.15rem;margin:2.2rem 0 .6rem;padding-bottom:.25rem;border-bottom:1px solid var(--line)}
p,ul,ol{margin:.5rem 0}li{margin:.25rem 0}ul,ol{padding-left:1.3rem}
.verdict{font-size:1.1rem;background:var(--card);border-left:.35rem solid;border-radius:.3rem;padding:.9rem 1.1rem}
.verdict strong{display:block;font-size:1.2rem;margin-bottom:.2rem}
.accepted{border-color:var(--good)}.accepted strong{color:var(--good)}
.refused{border-color:var(--bad)}.refused strong{color:var(--bad)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.4rem 0}
caption{text-align:left;font-weight:600;padding:.3rem 0}
th,td{text-align:left;vertical-align:top;padding:.25rem 1.1rem .25rem 0}
thead th,tbody tr+tr{border-top:0}thead th{border-bottom:1px solid var(--line);font-size:.9rem;color:var(--soft)}
.facts th{min-width:9rem;font-weight:600}.facts td{overflow-wrap:anywhere}
.wide{overflow-x:auto;font-size:.92rem}.wide td{min-width:3.5rem}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(17rem,100%),1fr));gap:.6rem 1.6rem}
figure{margin:.8rem 0;max-width:27rem;break-inside:avoid}
figcaption{font-size:.9rem;color:var(--soft);margin-top:.2rem}
svg{width:100%;height:auto;overflow:visible}
svg text{font:11px system-ui,sans-serif;fill:var(--ink);stroke:var(--paper);stroke-width:3px;paint-order:stroke}
.axis,.limit{stroke:var(--soft);stroke-width:1}.limit{stroke-dasharray:4 3}.rail{stroke:var(--line);stroke-width:1}
.tick{stroke-width:2}.tick.before{stroke:var(--before)}.tick.refit{stroke:var(--refit)}
.curve{fill:none;stroke-width:2}.curve.before{stroke:var(--before)}.curve.after{stroke:var(--after)}
.curve.refit{stroke:var(--refit);stroke-dasharray:5 3}.area{fill:var(--before);opacity:.13}
.passed{fill:var(--pass)}.failed{fill:var(--fail)}.off{fill:var(--after)}
.dot.after{fill:var(--after)}
.error{stroke-width:2}.error.passed{stroke:var(--pass)}.error.off{stroke:var(--after)}
.key span{margin-right:1.3rem;white-space:nowrap}.key svg{width:24px;height:8px}
details{margin:.6rem 0;border:1px solid var(--line);border-radius:.3rem;padding:0 .8rem}
summary{cursor:pointer;padding:.45rem 0}
footer{font-size:.85rem;color:var(--soft);margin-top:2.5rem;border-top:1px solid var(--line)}
@media print{:root{color-scheme:light;--ink:#000;--soft:#444;--paper:#fff;--card:#fff;--line:#bbb;--good:#00664b;
--bad:#a33d00;--before:#767d86;--after:#d55e00;--refit:#0072b2;--pass:#009e73;--fail:#9aa1a9}
html{font-size:10.5px}body{font-size:1rem}main{margin:0;max-width:none;padding:0}h2{margin-top:1.2rem;break-after:avoid}
details{border:0;padding:0}details:not([open])>.wide{display:block}details::details-content{content-visibility:visible;display:block;height:auto}
tr,li{break-inside:avoid}}
"""
