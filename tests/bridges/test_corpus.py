"""The corpus of models: every request ends in the right answer, or in the refusal that the case declares.

`make test` runs the quick cases, `make test-all` all of them. The strict test (4.5 standard errors *and* 0.15 standard
deviations or 15 %) fails less than once in 10⁴ comparisons of two independent runs of NUTS; seeds are fixed.
"""

import dataclasses
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr

import posterase as pe
from tests.corpus.case import Case
from tests.corpus.judge import wrong_variables
from tests.corpus.outcome import ACCEPTABLE, REFERENCES, Result, references_of, run
from tests.corpus.page import LIBRARIES, write_page
from tests.corpus.registry import all_cases

CASES = all_cases()

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' warnings about their own fits


@pytest.fixture(autouse=True)
def precision():
    """PyMC's samplers by JAX switch 64 bits on for the whole process."""
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


def marked(case: Case) -> object:
    no_compiler = case.library == "stan" and shutil.which("g++") is None
    marks = [pytest.mark.skipif(no_compiler, reason="no C++ compiler here"), *([] if case.fast else [pytest.mark.slow])]
    return pytest.param(case, id=case.name, marks=marks)


@pytest.mark.parametrize("case", [marked(case) for case in CASES.values()])
def test_requests_end_right(case):
    outcomes = run(dataclasses.replace(case, draws=500) if case.fast else case).outcomes
    assert set(outcomes) == {"row", "group"}
    for request, outcome in outcomes.items():
        assert outcome.status in ACCEPTABLE, f"{request}: {outcome.status}. {outcome.detail}"
        assert bool(case.refusal) == (outcome.status == "right refusal")


COIN = CASES["numpyro-coin"]


def coin_posterior(rows) -> xr.Dataset:
    """Independent draws of the posterior without these rows, which is known: Beta(1 + heads, 1 + tails)."""
    flips = np.delete(COIN.data["flips"], rows)
    heads = np.random.default_rng(0).beta(1 + flips.sum(), 1 + len(flips) - flips.sum(), size=(4, 4000))
    return xr.Dataset({"heads": (("chain", "draw"), heads)})


def test_the_judge_sees_draws_that_were_not_moved():
    reference = references_of(COIN)["group"]
    assert wrong_variables(coin_posterior(COIN.group), reference, COIN.emptied_by("group")) == []
    assert "mean off" in wrong_variables(coin_posterior([]), reference, COIN.emptied_by("group"))[0]
    narrow = coin_posterior(COIN.group)
    narrow = narrow.mean() + 0.8 * (narrow - narrow.mean())
    assert "standard deviation 0.8" in wrong_variables(narrow, reference, COIN.emptied_by("group"))[0]
    assert "shape" in wrong_variables(narrow.expand_dims(more=2, axis=2), reference, COIN.emptied_by("group"))[0]


def test_an_erasure_that_erases_nothing_is_wrong(monkeypatch):
    """The broken twin: the draws come back as they were, and the verdict accepts them."""
    untouched = xr.DataTree.from_dict({"posterior": coin_posterior([])})
    verdict = SimpleNamespace(accepted=True, method="Reweight")
    monkeypatch.setattr(Case, "fit", lambda case: (None, None))
    monkeypatch.setattr(pe, "erase", lambda *_, **__: SimpleNamespace(verdict=verdict, to_arviz=lambda: untouched))
    assert run(COIN).outcomes["group"].status == "wrong"


def test_a_refusal_is_right_only_where_it_is_expected_and_names_what_works(monkeypatch):
    def refuse(case):
        raise pe.errors.UnsupportedModelError("no row can be taken out of it.", "write it as a pe.MaskedModel.")

    monkeypatch.setattr(Case, "fit", refuse)
    expected = dataclasses.replace(COIN, refusal="as a pe.MaskedModel")
    other = dataclasses.replace(COIN, refusal="pass the model of all rows")
    status = {name: run(case).outcomes["row"].status for name, case in {"yes": expected, "no": other, "": COIN}.items()}
    assert status == {"yes": "right refusal", "no": "refused", "": "refused"}


def test_draws_of_no_posterior_must_be_refused(monkeypatch):
    monkeypatch.setattr(Case, "fit", lambda case: (None, None))
    case = dataclasses.replace(COIN, is_posterior=False, refusal="pass the model of all rows")
    assert {each.status for each in run(case).outcomes.values()} == {"wrong"}


def test_tracebacks_are_recorded(monkeypatch):
    monkeypatch.setattr(Case, "fit", lambda case: 1 / 0)
    outcome = run(COIN).outcomes["row"]
    assert outcome.status == "traceback"
    assert "ZeroDivisionError" in outcome.detail


def test_the_corpus_is_as_large_as_was_asked():
    count = {
        library: sum(case.library == library for case in CASES.values()) for library in ("numpyro", "pymc", "stan")
    }
    assert count["numpyro"] >= 20
    assert count["pymc"] >= 20
    assert count["stan"] >= 10
    assert 0.09 <= sum(case.fast for case in CASES.values()) / len(CASES) <= 0.12


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_cases_are_complete(case):
    """A summary for the page; a reference, or words of the right refusal and a case that shows what they name."""
    assert case.shows
    assert (REFERENCES / f"{case.name}.json").exists() == (not case.refusal)
    assert bool(case.instead) == bool(case.refusal)
    if case.instead:
        assert not CASES[case.instead].refusal
    if not case.refusal:
        reference = references_of(case)
        assert set(reference) == {"row", "group"}
        finite = {np.isfinite(summary.mean).all() for each in reference.values() for summary in each.values()}
        assert finite == {True}


def test_the_page_shows_what_the_results_say(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.corpus.page.PAGE", tmp_path / "models.md")
    write_page()
    sections = dict(part.split("\n", 1) for part in (tmp_path / "models.md").read_text().split("\n## ")[1:])
    for case in CASES.values():
        result = Result.load(case)
        if result is not None and result.outcomes["group"].status == "right":
            beginning = f"| {case.name.removeprefix(f'{case.library}-')} | {case.shows.rstrip('.')} |"
            lines = sections[LIBRARIES[case.library]].splitlines()
            (line,) = [each for each in lines if each.startswith(beginning)]
            assert f"| {result.outcomes['group'].method} |" in line
