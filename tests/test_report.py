"""The report: one file that anyone can read, with its numbers behind its pictures."""

import re
from html.parser import HTMLParser

import jax.numpy as jnp
import numpy as np
import pytest

import posterase as pe
from posterase.interfaces.report import report


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
    return pe.erase(model, draws, list(range(5)), rungs=[pe.Reweight()], refits=refit)


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
        if tag not in ("meta", "br", "line", "path", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if tag in self.open:
            assert self.open.pop() == tag, tag


def test_the_page_is_whole_and_needs_nothing_else(accepted):
    text = report(accepted, certificate=b"a certificate")
    outline = Outline(text)
    assert outline.open == []
    assert outline.headings[0] == 1
    assert all(after - before <= 1 for before, after in zip(outline.headings, outline.headings[1:], strict=False))
    assert all(each.get("aria-label") or each.get("aria-hidden") for each in outline.pictures)
    assert outline.attributes == []
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"] * text.count("xmlns")
    assert "<script" not in text


def test_the_verdict_comes_first_in_plain_words(accepted):
    text = report(accepted)
    words = re.sub(r"<[^>]*>", " ", text.split("</h1>")[1])
    assert words.split("\n")[1].strip().startswith("Accepted: 5 rows of 100 were erased from the posterior.")


def test_numbers_are_behind_the_pictures(accepted):
    text = report(accepted)
    after = accepted.draws
    mean = float((after.weights * after.params["a<b"]).sum())
    assert f"<td>{mean:.4g}</td>" in text
    assert "a&lt;b" in text
    assert "<td>refit</td>" in text
    assert f"{accepted.verdict.pareto_k:.2f}" in text


def test_a_refusal_says_why_and_what_to_do(problem):
    model, draws, _ = problem
    refused = pe.erase(model, draws, list(range(5)), rungs=[pe.Reweight()], policy=pe.Policy(ess=1999.0))
    assert not refused.verdict.accepted
    text = report(refused)
    assert "Refused: 5 rows of 100 could not be erased this way." in text
    assert "Nothing was changed." in text
    assert "What to do:" in text
    assert "after (refused)" in text
