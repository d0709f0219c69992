"""The Python of the docs' pages runs as it stands there, and prints what is shown there; what they cite is there."""

import json
import re

import pytest

from tests import doc_pages

RUN = ["docs/when-not-to-trust.md", "docs/paper.md", pytest.param("docs/how-to-add.md", marks=pytest.mark.slow)]


@pytest.mark.parametrize("page", RUN)
def test_a_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert any(example.shown for example in doc_pages.examples(page)), "a page that shows nothing cannot be checked"
    doc_pages.run(page)


def test_what_a_page_shows_is_compared():
    assert doc_pages.alike("k̂ 0.31, ESS 1,863\n", "k̂ 0.32, ESS 1,850\n")
    assert not doc_pages.alike("k̂ 0.31\n", "k̂ 0.41\n")
    assert not doc_pages.alike("accepted by Reweight: 0.31\n", "accepted by Transport: 0.31\n")
    assert not doc_pages.alike("16 requests\n", "17 requests\n")


def text_of(page):
    return " ".join((doc_pages.ROOT / page).read_text().split())


@pytest.mark.parametrize("page", sorted(f"docs/{path.name}" for path in (doc_pages.ROOT / "docs").glob("*.md")))
def test_tests_that_a_page_names_are_there(page):
    for file, name in re.findall(r"`(tests/\w+\.py)(?:::(\w+))?`", text_of(page)):
        path = doc_pages.ROOT / file
        assert f"def {name}(" in path.read_text() if name else path.exists(), (file, name)


QUOTED = {
    "docs/paper.md": [
        ("Of the 223 figures that the tables print and we could compare, 174 match", "174 of 223 figures match"),
        ("differ by 94.7 to 98.5 % of what the untouched", "94.7 to 98.5 % of what Origin has"),
        ("In 8 of 8 blocks the choice of step sizes", "In 8 of 8 blocks the step sizes move fine-tuning's ε̂ by more"),
        ("make 17 to 74 % of what the method takes off", "they make 17 to 74 % by themselves"),
        ("its k̂ goes up to 3.41 where 0.50 can be trusted", "| 100 | 0.46 to 3.41 | 0.50 |"),
        ("differ by 0.445, from the same start", "| Retrain, another start | 0.445 ± 0.005 |"),
        ("by 0.221 (CIFAR-10, SGLD, 3,000 removed", "| floor: Retrain, another seed | 0.221 ± 0.006 |"),
    ]
}


def test_figures_that_are_quoted_are_the_results():
    results = text_of("docs/results/networks.md")
    for page, quotes in QUOTED.items():
        for said, source in quotes:
            assert said in text_of(page)
            assert source in results


def test_the_mixtures_table_is_the_results():
    found = json.loads((doc_pages.ROOT / "docs/results/gmm.json").read_text())["sgld"]["comparisons"]
    rows = re.findall(
        r"^\| ([^|]*) \| (\d\.\d{3}) \| (\d\.\d\d) \|$", (doc_pages.ROOT / "docs/paper.md").read_text(), re.M
    )
    figures = [(each["distance"], each["log_spread_ratio"]) for each in found.values()]
    assert [row[1:] for row in rows] == [(f"{distance:.3f}", f"{spread:.2f}") for distance, spread in figures]
