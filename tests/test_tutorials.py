"""The tutorials run, and print and draw what their pages show; `tests/tutorials.py` says how they are compared."""

import re
from pathlib import Path

import pytest
from matplotlib.image import imread

from tests.tutorials import BLOCK, FIGURE, FOLDER, MOST_SECONDS, NAMES, TutorialError, code_digest, differences, run

ROOT = FOLDER.parent.parent
QUICKEST = "forget-a-class"
NEEDS = {
    "forget-one-person": ["numpyro"],
    "forget-a-group": ["numpyro", "pymc"],
    "only-a-file": ["stan", "sklearn"],
    "forget-a-class": ["sklearn"],
    "request-to-certificate": ["numpyro", "cryptography", "sqlalchemy", "uvicorn", "httpx"],
}
MOST_BLOCKS = 25
WIDTH = 88
"""What fits a page without being cut."""


def page_of(name):
    return (FOLDER / f"{name}.md").read_text()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == QUICKEST else [pytest.mark.slow]) for name in NAMES]
)
def test_a_tutorial_runs_and_is_what_its_page_shows(name, tmp_path):
    for package in NEEDS[name]:
        pytest.importorskip(package)
    ran = run(page_of(name), tmp_path)
    found = [each for block in ran.blocks for each in differences(block.shown, block.printed)]
    assert not found, "\n\n".join(found)
    for figure, made in ran.figures.items():
        assert imread(made).shape == imread(FOLDER / "figures" / figure).shape, figure
        assert imread(made)[..., :3].std() > 0.05, f"{figure} is blank"


@pytest.mark.slow
def test_the_lines_of_the_home_page_run(tmp_path):
    """After the fit of the first tutorial, which made `mcmc` and `survey`."""
    pytest.importorskip("numpyro")
    data, fit = [found[0] for found in BLOCK.finditer(page_of("forget-one-person")) if found["language"] == "python"][
        :2
    ]
    (lines,) = [found[0] for found in BLOCK.finditer((ROOT / "docs" / "index.md").read_text())]
    blocks = run("\n".join([data, fit, lines]), tmp_path).blocks
    assert "1 row of 944: accepted by Reweight" in blocks[-1].printed


def test_every_tutorial_is_known():
    assert set(NAMES) == set(NEEDS)
    nav = (ROOT / "mkdocs.yml").read_text()
    assert all(f"tutorials/{name}.md" in nav for name in NAMES)
    shown = {figure for name in NAMES for figure in FIGURE.findall(page_of(name))}
    assert {path.name for path in (FOLDER / "figures").iterdir()} == shown


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_short_and_its_outputs_are_of_its_code(name):
    page = page_of(name)
    run_here = [found for found in BLOCK.finditer(page) if found["language"] in ("python", "sh") and not found["title"]]
    assert len(run_here) <= MOST_BLOCKS
    said = rf"Made by `python -m tests.tutorials {name}` in less than (\d+) s: .*, code {code_digest(page)}\. "
    made_by = re.search(said, page)
    assert made_by, f"outputs and figures are of other code: python -m tests.tutorials {name}"
    assert int(made_by[1]) <= MOST_SECONDS
    assert "shared/" not in "".join(found[0] for found in BLOCK.finditer(page))


@pytest.mark.parametrize("name", NAMES)
def test_code_fits_a_page(name):
    """`make lint` has ruff look at the rest of its form."""
    code = [found["text"] for found in BLOCK.finditer(page_of(name)) if found["language"] in ("python", "sh", "toml")]
    assert not [line for text in code for line in text.splitlines() if len(line) > WIDTH]


TABLE = """\
1 row of 944: accepted by Reweight: k̂ 0.05, ε ≈ 0.0000 ± 0.0001, ESS 950

method    k̂    ESS  ε                evaluations  seconds
Reweight  0.05  950  0.0000 ± 0.0001  1            0.92     accepted
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("k̂ 0.05", "k̂ -0.11"),
        ("Reweight  0.05  950", "Reweight  0.31  7  "),
        ("0.92 ", "14.1 "),
        ("ESS 950", "ESS 1583"),
    ],
)
def test_what_chance_changes_is_no_difference(old, new):
    assert old in TABLE
    assert differences(TABLE, TABLE.replace(old, new)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("accepted by Reweight", "accepted by Transport"),
        ("accepted by Reweight", "refused"),
        ("1 row of 944", "2 rows of 944"),
        ("ε ≈ 0.0000", "ε ≈ 0.0400"),
        ("accepted\n", "accepted\nand more\n"),
    ],
)
def test_what_chance_does_not_change_is_one(old, new):
    assert differences(TABLE, TABLE.replace(old, new))


def test_what_has_another_value_each_time_is_no_difference():
    line = "{} received: pending, due {}; signed by {}; root {}."
    ids = "7c9e6679-7425-40de-944b-e07fc1f90ae7", "0d5cbe4f-5d56-4d4b-9a9e-7f1d5d8f9b3c"
    dates = "2026-12-16T16:34:45Z", "2031-01-02T03:04:05Z"
    keys, roots = ("03833a25", "ccca5a02"), ("0ef32a41" * 8, "54110e02" * 8)
    old, new = zip(ids, dates, keys, roots, strict=True)
    assert differences(line.format(*old), line.format(*new)) == []
    assert differences(line.format(*old), line.format(*new).replace("pending", "refused"))


@pytest.mark.parametrize("language", ["python", "sh"])
def test_a_block_that_fails_ends_the_page(tmp_path, language):
    broken = {"python": "import sys\nraise ValueError('spoilt')\n", "sh": "echo spoilt >&2\nfalse\necho on\n"}
    with pytest.raises(TutorialError, match="spoilt"):
        run(f"```{language}\n{broken[language]}```\n", tmp_path)


def test_a_figure_that_no_code_makes_is_refused(tmp_path):
    with pytest.raises(TutorialError, match=re.escape("['nowhere.png']")):
        run("![A figure](figures/nowhere.png)\n", tmp_path)


def test_blocks_share_their_names_and_files_are_written(tmp_path):
    page = (
        'A file:\n\n```python title="own.py"\nvalue = 3\n```\n\nTwo blocks:\n\n```python\nimport own\n```\n\n'
        '```python\nprint(own.value)\n```\n\n```text title="prints"\n4\n```\n\n```sh\nexport name=x\n```\n\n'
        "```sh\necho $name > out\ncat out own.py\n```\n\nThe end.\n"
    )
    ran = run(page, tmp_path)
    assert [block.printed for block in ran.blocks] == ["", "3\n", "", "x\nvalue = 3\n"]
    assert differences(ran.blocks[1].shown, ran.blocks[1].printed)
    assert '```python\nprint(own.value)\n```\n\n```text title="prints"\n3\n```\n' in ran.page
    assert ran.page.endswith("The end.\n")
    assert run(ran.page, Path(tmp_path)).page == ran.page
