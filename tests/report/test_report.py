"""The report, one file that anyone may read; and the page of diagnostics, with its numbers behind its pictures."""

import dataclasses
import datetime as dt
import hashlib
import html
import json
import re
from html.parser import HTMLParser

import jax.numpy as jnp
import numpy as np
import pytest

import posterase as pe
from posterase.draws.origins import ORIGINS
from posterase.methods.rejuvenate import RejuvenateDetails, Stage
from posterase.metrics.table import Assessment, Figure
from posterase.numerics.weights import Estimate
from posterase.plotting.figures import samples_of
from posterase.record.certificate import CAUTIONS
from posterase.report.diagnostics import BANNER, NOT_SHOWN, diagnostics_page, diagnostics_report
from posterase.report.report import MEANINGS, page, report


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    y = rng.normal(size=100)
    model = pe.Model(
        lambda p: -0.5 * jnp.sum(p["a<b"] ** 2),
        lambda p, rows: -0.5 * (rows["y"] - p["a<b"]) ** 2,
        {"y": jnp.asarray(y)},
    )

    def draws(values):
        return pe.Draws(
            {"a<b": values.sum() / (len(values) + 1) + rng.normal(size=(4, 500)) / (len(values) + 1) ** 0.5}
        )

    return model, draws(y), draws(y[5:])


@pytest.fixture(scope="module")
def accepted(problem):
    model, draws, refit = problem
    return pe.erase(model, draws, list(range(5)), random_seed=0, methods=[pe.Reweight()], refits=refit)


class Outline(HTMLParser):
    """Headings, pictures, and whether tags are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.headings, self.pictures, self.open, self.attributes = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.attributes += [value or "" for name, value in attrs if name in ("src", "href", "style")]
        if re.fullmatch(r"h\d", tag):
            self.headings.append(int(tag[1]))
        if tag == "svg":
            self.pictures.append(dict(attrs))
        if tag not in ("meta", "br", "line", "path", "rect", "circle"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if tag in self.open:
            assert self.open.pop() == tag, tag


@pytest.fixture(scope="module")
def refused(problem):
    model, draws, _ = problem
    found = pe.erase(model, draws, list(range(5)), random_seed=0, methods=[pe.Reweight()], policy=pe.Policy(ess=1999.0))
    assert not found.verdict.accepted
    return found


PAGES = pytest.mark.parametrize("make", [report, diagnostics_report])


@PAGES
def test_the_page_is_whole_and_needs_nothing_else(accepted, make):
    text = make(accepted, certificate=b"a certificate")
    outline = Outline(text)
    assert outline.open == []
    assert outline.headings[0] == 1
    assert all(after - before <= 1 for before, after in zip(outline.headings, outline.headings[1:], strict=False))
    assert all(each.get("aria-label") or each.get("aria-hidden") for each in outline.pictures)
    assert outline.attributes == []
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"] * text.count("xmlns")
    assert "<script" not in text


def test_the_verdict_comes_first_in_plain_words(accepted):
    for make, before in ((report, []), (diagnostics_report, [BANNER])):
        words = re.sub(r"<[^>]*>", " ", make(accepted).split("</h1>")[1])
        lines = [line.strip() for line in words.split("\n")[1:]]
        assert lines[: len(before)] == before
        assert lines[len(before)].startswith("Accepted: 5 rows of 100 were removed from the posterior.")


def test_a_report_says_what_happened_to_the_draws_and_what_can_still_be_learned(accepted):
    text = html.unescape(page(accepted.to_dict(), date=dt.date(2026, 1, 2)))
    assert ORIGINS[accepted.verdict.draws] in text
    assert f"passed with a {accepted.verdict.margin} margin" in text
    for caution in CAUTIONS:
        assert caution in text
    assert f"Made on 2026-01-02 by posterase {pe.__version__}" in text


def test_a_report_shows_nothing_of_the_draws_before_and_no_figures(accepted, refused):
    """Nothing but what `to_dict` publishes is in it, and that is not changed by other figures."""
    for result in (accepted, refused):
        text = report(result)
        assert "<svg" not in text
        for figure in ("k̂", "ESS") if result.verdict.accepted else ("ESS",):
            assert figure not in text
        other = dataclasses.replace(
            result,
            before=pe.Draws({"a<b": result.before.params["a<b"] + 3}),
            spent=result.spent + 1e-9,
            verdict=dataclasses.replace(result.verdict, pareto_k=0.123, ess=456.0, epsilon=Estimate(0.001, 0.001)),
        )
        assert report(other) == text
        assert diagnostics_report(other) != diagnostics_report(result)


def test_numbers_are_behind_the_pictures(accepted):
    text = diagnostics_report(accepted)
    mean = next(each for each in samples_of(accepted) if each.label == "after").mean[0]
    assert f"<td>{mean:.4g}</td>" in text
    assert "a&lt;b" in text
    assert "<td>refit</td>" in text
    assert f"{accepted.verdict.pareto_k:.2f}" in text


def test_what_moved_is_told_from_before_to_after(problem, accepted):
    """Not to a refit, which may be anywhere."""
    model, draws, refit = problem
    far = pe.Draws({"a<b": refit.params["a<b"] + 50})
    with_far = pe.erase(model, draws, list(range(5)), random_seed=0, methods=[pe.Reweight()], refits=far)
    moved = [re.search(r"moved by ([\d.e+-]+) standard", diagnostics_report(each))[1] for each in (accepted, with_far)]
    assert moved[0] == moved[1]


def test_marks_say_which_line_was_passed(refused):
    """k̂ may be fine where the draws are too few."""
    text = diagnostics_report(refused)
    k, ess = (re.search(rf'aria-label="({name}[^"]*)"', text)[1] for name in ("k̂ of each", "Effective draws"))
    assert ", passed" in k
    assert "not passed" in ess


def test_a_refusal_says_why_and_what_to_do(refused):
    text = report(refused)
    assert "Refused: 5 rows of 100 could not be removed this way." in text
    assert "Nothing was changed." in text
    assert f"Why: {refused.to_dict()['verdict']['reason']}" in html.unescape(text)
    assert "What to do:" in text
    assert CAUTIONS[0] not in html.unescape(text)
    assert "after (refused)" in diagnostics_report(refused)


def test_pages_from_plain_facts(accepted):
    facts, figures = (json.loads(json.dumps(each)) for each in (accepted.to_dict(), accepted.diagnostics_dict()))
    assert page(facts) == report(accepted)
    bare, whole = diagnostics_page(figures), diagnostics_page(figures, samples_of(accepted))
    assert NOT_SHOWN in bare
    assert NOT_SHOWN not in whole
    assert whole == diagnostics_report(accepted)
    returned = facts["returned"]
    assert f"{returned['chains']} chains of {returned['draws']}" in page(facts)


def test_every_symbol_of_a_page_is_explained_in_a_line(accepted, refused):
    for text in map(html.unescape, (report(accepted), report(refused), diagnostics_report(accepted))):
        explained = text.partition("What the symbols mean")[2]
        used = [symbol for symbol in MEANINGS if symbol in text.partition("What the symbols mean")[0]]
        assert used
        assert [symbol for symbol, line in MEANINGS.items() if line in explained] == used


def test_the_path_is_told_stage_by_stage(accepted):
    stages = [Stage(0.5, 700.0, 0.4, 3, 0.8, 0.45), Stage(1.0, 900.0, 0.3, 5, 0.77, 0.15)]
    diagnostics = RejuvenateDetails(stages, 600, np.zeros((4, 500), int), Estimate(0, 1), None, True, 2000, 0.7)
    erased = dataclasses.replace(accepted.outcomes[0].erased, details=diagnostics)
    walked = dataclasses.replace(accepted, outcomes=[dataclasses.replace(accepted.outcomes[0], erased=erased)])
    text = diagnostics_report(walked)
    assert "The path of Reweight, stage by stage" in text
    assert "<td>0.500</td><td>700</td><td>0.40</td><td>3</td><td>80%</td><td>0.45</td>" in text
    assert "The path has 2 stages. On the last, 77% of the moves were accepted" in text
    outline = Outline(text)
    assert outline.open == []
    assert any("at 0.50 700; at 1.00 900" in each.get("aria-label", "") for each in outline.pictures)


def test_a_refit_tells_whether_its_chains_agree(accepted):
    figures = accepted.diagnostics_dict()
    figures["methods"][-1] |= {"rhat": 1.004, "divergences": 3, "residual": 0.012}
    text = html.unescape(diagnostics_page(figures))
    assert "R̂ of the new chains is 1.004" in text
    assert "3 of the sampler's steps diverged" in text
    assert "The solver's relative residual is 1.2%" in text


def test_metrics_stand_against_their_floors(accepted):
    figures = [
        Figure("means", Estimate(2, 0.1), Estimate(0.2, 0.1), None, Estimate(0.1, 0.1), 1e-9, 0.5, 0.0),
        Figure("spreads", Estimate(2, 0.1), Estimate(1, 0.1), None, Estimate(0.0, 0.1), 1e-9, 1e-9, 0.0),
        Figure("blind", Estimate(0.1, 0.1), Estimate(0.1, 0.1), None, Estimate(0.1, 0.1), 0.5, 0.5, 0.0),
    ]
    found = Assessment.of(figures, {"attack": "needs test rows"}, {"removed_rows": 5, "kept_rows": 95, "refits": 2})
    public = report(accepted, assessment=found)
    assert "The draws were also compared with 2 new fits" in public
    assert public.replace("2 new fits", "") == report(
        accepted, assessment=Assessment.of(figures[:1], {}, {"removed_rows": 5, "kept_rows": 95, "refits": 2})
    ).replace("2 new fits", "")
    text = diagnostics_report(accepted, assessment=found)
    outline = Outline(text)
    assert outline.open == []
    assert "The draws were compared with 2 new fits" in text
    assert "1 metric at the floor, 1 off, 1 that cannot tell." in text
    assert "<td>means</td><td>2.00 ± 0.10</td><td>0.20 ± 0.10</td><td>–</td><td>0.10 ± 0.10</td>" in text
    assert "<td>attack</td><td>needs test rows</td>" in text
    told = next(each["aria-label"] for each in outline.pictures if "means" in each.get("aria-label", ""))
    assert "means: 5% of the way left, at the floor; spreads: 50% of the way left, off: 50% of the way" in told
    assert "blind" not in told


def test_a_certificate_in_a_ledger_is_verified_with_it(accepted):
    inside, alone = (json.dumps({"ledger": ledger}).encode() for ledger in ({"size": 3}, None))
    assert "posterase verify LEDGER --key" in report(accepted, certificate=inside)
    assert "posterase verify --key" in report(accepted, certificate=alone)
    assert hashlib.sha256(alone).hexdigest() in report(accepted, certificate=alone)
