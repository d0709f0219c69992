"""From what was tried to a verdict: the reason, in figures and without them, and what to do."""

from __future__ import annotations

from collections.abc import Mapping

from posterase.draws.notes import Note
from posterase.draws.objections import Objection
from posterase.ladder.climb import TOO_EXPENSIVE
from posterase.ladder.policy import Policy
from posterase.ladder.result import MethodOutcome
from posterase.ladder.verdict import Verdict, epsilon_text

ALLOW = "allow a refit: policy=pe.Policy(refit=True)."

ADD = "add pe.Refit() to methods."


def make_verdict(
    tried: list[MethodOutcome],
    had: Mapping[str, float],
    policy: Policy,
    doubts: list[Objection],
    weaknesses: tuple[str, ...],
    way_out: str,
) -> Verdict:
    """Return the verdict on methods that were tried, the last of which was accepted or was the last resort."""
    if not tried:
        advice = _advised([doubt.advice for doubt in doubts], way_out)
        public = "; ".join(doubt.public for doubt in doubts)
        reason, page = "; ".join(doubt.reason for doubt in doubts), doubts[0].page
        return Verdict(False, "refused", "", reason, advice, page, public_reason=public)
    about_input = tuple(doubt.public for doubt in doubts)
    last = tried[-1]
    shown = last.diagnostics
    if last.objections or last.erased is None or shown is None:
        return _refusal(tried, had, policy, doubts, way_out)
    if last.erased.samples_anew:
        kind = "refitted"
        figures = [] if shown.rhat is None else [f"R̂ {shown.rhat:.3f}"]
    else:
        kind = "moved" if shown.epsilon is None else "measured"
        figures = [] if shown.pareto_k is None else [f"k̂ {shown.pareto_k:.2f}"]
        figures.append(epsilon_text(shown.epsilon))
    assert last.output is not None
    margin, ess = policy.margin(last.erased), min(last.output.ess.values())
    figures.append(f"ESS {ess:.0f}")
    missed = last.output.missed
    if missed is not None:
        figures.append(f"verified up to {max(missed, 0.01):.2f} sd")
    verified = " and the draws do not drift along the kept posterior" if last.output.is_verified else ""
    if last.jeffreys is not None:
        figures.append(f"Jeffreys from the refits, before weights, ≈ {last.jeffreys}")
    return Verdict(
        True,
        kind,  # type: ignore[arg-type]
        last.name,
        ", ".join(figures),
        pareto_k=shown.pareto_k,
        ess=ess,
        epsilon=shown.epsilon,
        notes=(*last.output.notes, *(Note("input", text) for text in (*about_input, *weaknesses))),
        missed=missed,
        margin=margin,
        draws=last.output.origin,
        verified=last.output.is_verified,
        public_reason=f"the diagnostics passed with a {margin} margin{verified}",
    )


def _refusal(
    tried: list[MethodOutcome], had: Mapping[str, float], policy: Policy, doubts: list[Objection], way_out: str
) -> Verdict:
    """Why nothing passed, and what to do about it."""
    last = tried[-1]
    named = tried[-2:] if TOO_EXPENSIVE in last.objections else tried[-1:]
    causes = [outcome.objections[0].cause for outcome in tried]
    if "improper" in causes and last.objections[0].cause != "improper":  # no sampler gets along with that
        named = [tried[causes.index("improper")], *named]
    reason = "; ".join(f"{outcome.name}: {outcome.objections[0].reason}" for outcome in named)
    worst = min(had, key=lambda name: had[name])
    public = "; ".join(f"{outcome.name}: {outcome.objections[0].public}" for outcome in named)
    advice, page = [], named[0].objections[0].page
    if doubts:
        page = doubts[0].page
        reason = "; ".join([*(doubt.reason for doubt in doubts), reason])
        public = "; ".join([*(doubt.public for doubt in doubts), public])
        advice += [doubt.advice for doubt in doubts]
    elif had[worst] < policy.least_ess:
        few = f"{had[worst]:.0f} effective draws of {worst}, below {policy.least_ess:.4g}"
        reason = f"the draws that went in have {few}; {reason}"
        public = f"the draws that went in have too few effective ones; {public}"
        advice.append("draw more.")
    else:
        cause = named[0].objections[0]
        advice.append(cause.advice)
        page = cause.page
    return Verdict(False, "refused", "", reason, _advised(advice, way_out), page, public_reason=public)


def _advised(advice: list[str], way_out: str) -> str:
    """Sentences of what to do, and at last what is always left to do."""
    given = [each for each in advice if each]
    if way_out:
        given.append(f"or {way_out}" if given and way_out in (ALLOW, ADD) else way_out)
    return " ".join(each[0].upper() + each[1:] for each in given)
