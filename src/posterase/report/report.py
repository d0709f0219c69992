"""The report of an erasure: one HTML file that anyone may read.

It says what was asked, what was done and what became of the draws. It shows no figures of the methods and no summaries
of the draws before, since the removed rows can be read from them: those are for `diagnostics_report`. It is made from
plain facts, as `Result.to_dict` and certificates hold them.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from posterase.draws.origins import ORIGINS
from posterase.record.certificate import CAUTIONS, KINDS, VERIFIED
from posterase.report.html import bullets, count, fact_table, page_of, section

if TYPE_CHECKING:
    from posterase.ladder.result import Result
    from posterase.metrics.table import Assessment

Facts = Mapping[str, Any]
"""What `Result.to_dict` returns; or `Result.diagnostics_dict`, whose verdict and policy have the same keys.

What the command line writes also has `date`, and `draws_files`: the names of the files of draws, without their folders.
"""

MEANINGS = {
    "k̂": "k̂ is how heavy the tail of the weights is: up to its limit (at most 0.7) the weighted draws can be trusted.",
    "ε": "ε is an estimate of how far the distribution of a returned draw is from the posterior of the kept rows, in "
    "nats (Kullback–Leibler divergence); 0 is no difference.",
    "R̂": "R̂ is how far several chains disagree: 1 is not at all.",
    "ESS": "ESS, the effective sample size, is how many independent draws the draws are worth.",
}
"""The symbols of reports, each in a line."""

WORDS = {
    "Reweight": "every draw got a weight: more where it does not need the removed rows, less where it does",
    "InfluenceShift": "every draw was moved by what the removed rows had pulled it",
    "Transport": "all draws were moved and stretched together to where they belong without the rows, and then weighed",
    "Rejuvenate": "the draws were led step by step to where they belong without the rows",
    "Refit": "the model was fitted anew, without the rows",
    "ContinueSampling": "the sampler went on from every draw, without the rows",
}
"""What each method does, for everybody."""


def report(
    result: Result,
    *,
    certificate: bytes | None = None,
    assessment: Assessment | None = None,
    title: str = "Erasure report",
) -> str:
    """Make the report of an erasure, a page of HTML.

    Parameters
    ----------
    result
        What `pe.erase` returned.
    certificate
        The certificate of the request, if there is one.
    assessment
        What `pe.assess` found against refits, if there are some: the report says that they were compared with.
    title
        The page's title.
    """
    return page(result.to_dict(), certificate=certificate, assessment=assessment, title=title)


def page(
    facts: Facts,
    *,
    certificate: bytes | None = None,
    assessment: Assessment | None = None,
    title: str = "Erasure report",
    date: dt.date | None = None,
) -> str:
    """Make the report from plain facts.

    Parameters
    ----------
    facts
        What `Result.to_dict` returns, or a certificate's `erasure`.
    certificate
        The certificate, if there is one.
    assessment
        What `pe.assess` found against refits, if there are some.
    title
        The page's title.
    date
        When it was made. Default: today, in UTC.
    """
    accepted = facts["verdict"]["accepted"]
    if date is not None:
        facts = {"date": date.isoformat(), **facts}
    parts = [
        verdict_section(facts),
        asked_section(facts),
        methods_section(facts["methods"], _outcome(facts)),
        _compared(assessment) if assessment is not None else "",
        notes_section(facts),
        section("What can still be learned", bullets(CAUTIONS if accepted else CAUTIONS[1:])),
        certificate_section(certificate) if certificate is not None else "",
    ]
    return page_of(title, [*parts, meanings_section(parts)], date=date)


def meanings_section(parts: Sequence[str]) -> str:
    """What the symbols mean that a page uses."""
    used = [line for symbol, line in MEANINGS.items() if any(symbol in part for part in parts)]
    return section("What the symbols mean", bullets(used)) if used else ""


def verdict_section(facts: Facts) -> str:
    """The verdict, in a sentence or two."""
    verdict, rows = facts["verdict"], count(facts["removed_rows"], "row")
    if verdict["accepted"]:
        were = "were" if facts["removed_rows"] != 1 else "was"
        headline, mark = f"Accepted: {rows} of {_total(facts)} {were} removed from the posterior.", "accepted"
        rest = KINDS[verdict["kind"]]
    else:
        headline, mark = f"Refused: {rows} of {_total(facts)} could not be removed this way.", "refused"
        advice = f" What to do: {verdict['advice']}" if verdict["advice"] else ""
        rest = f"Nothing was changed. Why: {verdict['reason'].rstrip('.')}.{advice}"
    return f'<p class="verdict {mark}"><strong>{html.escape(headline)}</strong> {html.escape(rest)}</p>'


def asked_section(facts: Facts) -> str:
    """The rows, and what the policy asks of the result."""
    policy, files = facts["policy"], facts.get("draws_files", {})
    asked = [("Date", facts["date"])] if "date" in facts else []
    asked += [(f"Draws {which}", files[which]) for which in ("before", "after") if which in files]
    asked.append(("Rows to remove", f"{facts['removed_rows']} of {_total(facts)}"))
    ess = "the default" if policy.get("ess") is None else f"{policy['ess']:g}"
    wanted = [f"effective draws of every parameter: at least {ess}"]
    if policy.get("epsilon") is not None:
        wanted.append(f"ε at most {policy['epsilon']:g} nats where measured")
    asked.append(("Asked of the result", "; ".join(wanted)))
    asked.append(("A new fit", "allowed, where nothing cheaper passes" if policy.get("refit") else "not allowed"))
    return section("What was asked", fact_table(asked))


def methods_section(methods: Sequence[Facts], below: str) -> str:
    """Every method that was tried, and whether it passed."""
    if not methods:
        return ""
    items = []
    for each in methods:
        ended = "this was accepted" if each["passed"] else f"not accepted: {objections_of(each)}"
        text = f"{WORDS[each['name']]}; {ended}" if each["name"] in WORDS else ended
        items.append(f"<li><strong>{html.escape(each['name'])}</strong>: {html.escape(text)}.</li>")
    return section(
        "What was done",
        "<p>Methods are tried from the cheapest to the exact one, and the first that passes its checks is accepted.</p>"
        f"<ol>{''.join(items)}</ol>{below}",
    )


def notes_section(facts: Facts) -> str:
    """The verdict's notes: what the result rests on, and what else to know, with what no erasure reaches."""
    notes = facts["verdict"]["notes"]
    about_input = [note["text"] for note in notes if note["kind"] == "input"]
    others = [note["text"] for note in notes if note["kind"] != "input"]
    copies = "backups and copies of the draws, of their data and of anything computed from them"
    rests_on = section("What this rests on", bullets(about_input)) if about_input else ""
    return rests_on + section("What else to know, and what was not erased", bullets([*others, copies]))


def certificate_section(certificate: bytes) -> str:
    """The certificate's fingerprint, and how to verify it."""
    ledger = "" if _is_outside_a_record(certificate) else "LEDGER "
    verified = [
        ("Fingerprint", f"sha256:{hashlib.sha256(certificate).hexdigest()}"),
        ("To verify it", f"posterase verify {ledger}--key public.key --certificate certificate.json"),
    ]
    text = (
        "The certificate says, signed, what was done, what it rests on and what was not erased. Whoever has it and the "
        "public key of its issuer can check that nothing was changed since."
    )
    return section("The certificate", f"<p>{text}</p>{fact_table(verified)}")


def objections_of(method: Facts) -> str:
    """Why a method was not accepted."""
    return ", ".join(reason.rstrip(".") for reason in method["objections"])


def _outcome(facts: Facts) -> str:
    """What became of the draws, and at what price."""
    verdict, budget = facts["verdict"], facts["policy"].get("budget")
    outcome = [("Time", f"about {facts['seconds']:g} s")]
    if verdict["accepted"]:
        spent = f"{facts['spent']:g}" if budget is None else f"{facts['spent']:g} of {budget:g}"
        size = f"{count(facts['returned']['chains'], 'chain')} of {facts['returned']['draws']:,}"
        margin = [("Margin", f"passed with a {verdict['margin']} margin")] if verdict["margin"] else []
        drawn = ("The draws", f"{ORIGINS[verdict['draws']]} There are {size}.")
        verified = [] if verdict["verified"] is None else [("Verified", VERIFIED[verdict["verified"]])]
        outcome = [drawn, *verified, *margin, *outcome, ("Budget spent", spent)]
    return fact_table(outcome)


def _compared(assessment: Assessment) -> str:
    refits = count(int(assessment.attrs["refits"]), "new fit")
    text = f"The draws were also compared with {refits} without the rows. The figures are in the diagnostics."
    return section("Against new fits", f"<p>{html.escape(text)}</p>")


def _is_outside_a_record(certificate: bytes) -> bool:
    try:
        value = json.loads(certificate)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("ledger", "") is None


def _total(facts: Facts) -> int:
    return facts["kept_rows"] + facts["removed_rows"]
