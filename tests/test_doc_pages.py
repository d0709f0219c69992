"""The Python of the docs' pages runs as it stands there, and prints what is shown there; what they cite is there."""

import json
import re

import pytest

import posterase as pe
from posterase.model import transforms
from tests import doc_pages

RUN = ["docs/when-not-to-trust.md", "docs/what-an-output-tells.md", "docs/paper.md"]
RUN += [pytest.param("docs/how-to-add.md", marks=pytest.mark.slow)]


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
        ("every number of rows (8 of 8:", "In 8 of 8 blocks the step sizes move fine-tuning's ε̂ by more"),
        ("make 17 to 74 % of what the method takes off", "they make 17 to 74 % by themselves"),
        ("its k̂ goes up to 3.41 where 0.50 can be trusted", "| 100 | 0.46 to 3.41 | 0.50 |"),
        ("differ by 0.445, from the same start", "| Retrain, another start | 0.445 ± 0.005 |"),
        ("by 0.221 (CIFAR-10, SGLD, 3,000 removed", "| floor: Retrain, another seed | 0.221 ± 0.006 |"),
        ("| Origin: nothing done | 0.246 | 1.135 |", "| Origin: nothing done | 0.025 ± 0.002 | 0.246 ± 0.006 |"),
        ("| Origin: nothing done | 0.246 | 1.135 |", "| Origin: nothing done | 0.071 ± 0.002 | 1.135 ± 0.006 |"),
        (
            "| the paper's method | 0.118 | 0.382 |",
            "| the paper's method (Ours there) | 0.015 ± 0.002 | 0.118 ± 0.005 |",
        ),
        (
            "| the paper's method | 0.118 | 0.382 |",
            "| the paper's method (Ours there) | 0.034 ± 0.001 | 0.382 ± 0.033 |",
        ),
        ("`pe.CorrectedContinuation` | 0.081 | 0.118 |", "| corrected continuation | 0.002 ± 0.002 | 0.081 ± 0.006 |"),
        ("`pe.CorrectedContinuation` | 0.081 | 0.118 |", "| corrected continuation | 0.015 ± 0.001 | 0.118 ± 0.009 |"),
        ("`pe.Rewind` | 0.045 | 0.063 |", "| ours: rewound continuation | 0.028 ± 0.002 | 0.045 ± 0.007 |"),
        ("`pe.Rewind` | 0.045 | 0.063 |", "| ours: rewound continuation | 0.035 ± 0.001 | 0.063 ± 0.006 |"),
        ("it reached 30 of 48 aims", "of 48 aims that we had set it beforehand, 30 are reached"),
        ("takes 8.11 times as long", "LeNet: a gradient, 1 chain(s), direct / windows | 65.9 ms | 8.13 ms | 8.11 |"),
        ("26.51 % of test rows instead of 32.29", "| Retrain | error on test rows, % | 32.29 ± 0.78 | 26.51 ± 0.23 |"),
        (
            "off by 0.43 posterior standard deviations",
            "| radon | 30 counties | untouched draws | 0.427 (0.012) | 0.274 |",
        ),
        ("by 0.26 after the", "| radon | 30 counties | InfluenceShift, the paper's | 0.264 (0.012) | 0.274 |"),
        ("by 0.09 after ours", "| radon | 30 counties | InfluenceShift | 0.087 (0.012) | 0.274 |"),
        ("by 0.03 after `Transport`", "| radon | 30 counties | Transport | 0.026 (0.025) | 0.028 |"),
    ]
}


def test_figures_that_are_quoted_are_the_results():
    results = text_of("docs/results/networks.md") + text_of("docs/results/sides.md")
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


def test_the_api_has_every_name():
    """Of `posterase`, `posterase.metrics` and `posterase.record`, and what How to add imports."""
    listed = set(re.findall(r"^::: ([\w.]+)$", (doc_pages.ROOT / "docs/api.md").read_text(), re.M))
    named = {f"posterase.{name}" for name in dir(pe)} - {
        "posterase.errors",
        "posterase.metrics",
        "posterase.__version__",
    }
    for package in ("metrics", "record"):
        source = (doc_pages.ROOT / "src/posterase" / package / "__init__.py").read_text()
        named |= {f"posterase.{package}.{name}" for name in re.findall(r"import \w+ as (\w+)", source)}
    imports = re.findall(
        r"^from (posterase[\w.]*) import (.*)$", (doc_pages.ROOT / "docs/how-to-add.md").read_text(), re.M
    )
    assert imports
    named |= {f"{module}.{name}" for module, names in imports for name in names.split(", ")}
    in_modules = {name for name in named - listed if name.startswith("posterase.errors.")}  # listed as a whole
    in_modules |= {f"posterase.{name}" for name in dir(transforms)}
    assert named - listed - in_modules == set()
