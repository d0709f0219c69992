"""Tables, checks, page and files of the networks' experiment, on results that are made up."""

import copy
import dataclasses
import io
import json
import math
import re
import sys

import numpy as np
import pytest
from rich.console import Console

from posterase.errors import InputFileError, MissingExtraError
from posterase.experiments import bnn, bnn_files, bnn_page, bnn_results, bnn_speed, bnn_variants, figures, grids
from posterase.experiments import bnn_tables as tables

CLASSES = ["plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
BORROWED = {"retrain 2": "retrain", "steps alone": "is", "importance sampling": "origin", "corrected": "retrain"}
BORROWED["rewound"] = "retrain"
"""Whose figures of the paper stand in for those that it has none of."""


def make(settings):
    """Plausible results of a block: about the paper's, five chains."""
    rng = np.random.default_rng([settings.removed, len(settings.dataset), len(settings.sampler)])
    paper = tables.papers_figures()
    block = settings.dataset, settings.sampler, settings.removed

    def around(value, sd):
        draws = rng.normal(size=settings.chains)
        draws = (draws - draws.mean()) / draws.std(ddof=1)
        return (value + sd * draws).tolist()

    methods = {}
    for name in ("origin", "retrain", "retrain 2", *list(tables.NAMES)[3:]):
        row = paper[*block, tables.IN_THE_PAPER.get(name) or BORROWED[name]]
        values = {
            f"error_{each}": around(row[f"error_{each}"].mean, row[f"error_{each}"].sd) for each in bnn_results.SETS
        }
        values["mia"] = around(row["mia"].mean, row["mia"].sd)
        for each in bnn_results.SETS:
            figure = row.get(f"prediction_difference_{each}")
            values[f"difference_{each}"] = around(figure.mean if figure else 0.12, 0.01)
        epsilon = row["epsilon_knn_1e3"]
        least = 0.97 * paper[*block, "ours"]["epsilon_knn_1e3"].mean  # about where two retrainings are
        values["epsilon_as_run"] = around(1e3 * (epsilon.mean if epsilon else least), 900.0)
        values["epsilon"] = [value - 5000.0 for value in values["epsilon_as_run"]]
        methods[name] = {**values, "notes": {"seconds": 7.0, "step_scale": 1e-7}}
    panels = rng.dirichlet(np.ones(10), size=(len(settings.case_study), bnn.PANELS)).tolist()
    requests = -(-settings.removed // settings.request_rows)
    notes = {
        "fine-tuning": {"seconds": 0.71, "requests": requests},
        "steps alone": {"seconds": 0.01, "requests": requests, "last_term": None, "refused_shifts": 0},
        "paper": {
            "seconds": 0.033,
            "requests": requests,
            "last_term": {"median": 0.31, "largest": 1.7},
            "refused_shifts": 3,
            "panels": panels,
            "panel_removed": [0, 1000, 2000, 3000],
        },
        "importance sampling": {"seconds": 2.1, "requests": 1, "k_hat": [1.2, 0.9] * 2 + [1.4], "ess": [1.0, 2.5] * 2},
        "rewound": {
            "seconds": 0.4,
            "requests": 1,
            "steps": [250] * 5,
            "refused_rounds": [0, 1, 0, 0, 0],
            "settled": [False] * 5,
            "share_of_retraining": 0.047,
            "panels": panels,
            "panel_removed": [0, 1000, 2000, 3000],
        },
    }
    for name, told in notes.items():
        methods[name]["notes"] = told
    return {
        "settings": dataclasses.asdict(settings),
        "title": settings.title,
        "name": settings.name,
        "variant": settings.variant,
        "other_starts": {f"difference_{each}": around(0.4, 0.01) for each in bnn_results.SETS},
        "parameters": 61_706,
        "rows": {"all": 60_000, "kept": 60_000 - settings.removed},
        "classes": CLASSES,
        "case_study_labels": [0, 0, 3, 8][: len(settings.case_study)],
        "methods": methods,
        "floor": {f"difference_{each}": methods["retrain"][f"difference_{each}"] for each in bnn_results.SETS},
        "machine": "2026-01-02 · x86_64, gpu (some GPU) · Python 3.11.7 · jax 0.10.2 · posterase 0.1.0",
        "versions": {"posterase": "0.1.0", "jax": "0.10.2", "python": "3.11.7"},
    }


@pytest.fixture(scope="module")
def paper_blocks():
    return [make(settings) for dataset in ("cifar10", "fashion-mnist") for settings in bnn.blocks(dataset)]


@pytest.fixture
def block(paper_blocks):
    """Fashion-MNIST + SGLD, 4,000 rows removed; to be changed at will."""
    return copy.deepcopy(paper_blocks[4])


@pytest.fixture
def poor(block):
    """What a run leaves that was cut short: half of everything is missing, or not a number."""
    for key in ("epsilon", "epsilon_as_run"):
        for values in block["methods"].values():
            values[key] = None
    del block["methods"]["steps alone"], block["methods"]["retrain 2"]
    del block["methods"]["importance sampling"]["notes"]["ess"]
    block["methods"]["importance sampling"]["notes"]["k_hat"] = [math.inf, math.nan, 0.8, 1.1, 1.3]
    block["methods"]["paper"]["notes"] = {"refused_shifts": None}
    block["methods"]["paper"]["difference_removed"][2] = math.nan
    block["methods"]["rewound"]["notes"] = {}
    block["floor"] = None
    return block


# --- the paper's figures


def test_the_papers_copy_is_whole():
    found = tables.papers_figures()
    assert len(found) == 8 * 4
    assert found["fashion-mnist", "sgld", 4000, "ours"]["error_removed"] == tables.Spread(35.84, 1.85)
    assert found["cifar10", "sgld", 5000, "is"]["prediction_difference_removed"] == tables.Spread(0.92, 0.03)
    missing = [key for key, row in found.items() if row["epsilon_knn_1e3"] is None]
    assert len(missing) == 9  # every Retrain, and one Origin
    assert ("cifar10", "sghmc", 3000, "origin") in missing
    assert "prediction_difference_kept" not in found["cifar10", "sgld", 5000, "retrain"]


def test_what_the_paper_did_not_measure_is_never_a_zero(paper_blocks):
    cifar = next(each for each in paper_blocks if each["title"].startswith("CIFAR-10 + SGHMC, 3,000"))
    rows = {row[0]: row for row in tables.errors_grid(cifar).rows}
    as_run = 5
    assert rows["↳ printed: Retrain"][as_run] == rows["↳ printed: Origin"][as_run] == "not measured"
    assert rows["↳ printed: Ours"][as_run] == "4137.04 ± 2.42"


def test_no_figures_of_the_paper_beside_another_size(block):
    block["settings"]["rows"] = 6000
    assert not any("printed" in row[0] for row in tables.errors_grid(block).rows)
    assert tables.matches(block).summary == "it prints no figures for this"


# --- numbers


def test_paired_differences_have_the_error_of_their_mean():
    rng = np.random.default_rng(0)
    values, floor = rng.normal(size=(2, 5))
    value, error = tables.paired(values.tolist(), floor.tolist())
    assert value == pytest.approx(np.mean(values - floor))
    assert error == pytest.approx(np.std(values - floor, ddof=1) / np.sqrt(5))
    assert error != pytest.approx(np.hypot(values.std(ddof=1), floor.std(ddof=1)) / np.sqrt(5), rel=1e-3)


def test_spreads_of_one_chain_and_of_chains_that_failed():
    assert tables.spread([3.0]).text() == "3.00"
    assert tables.spread([1.0, None, math.inf]).text() == "not finite in 2 of 3 chains"
    assert tables.spread([]) is None
    assert tables.spread([-0.001, 0.001]).text(1) == "0.0 ± 0.0"


# --- matching


def one_figure(block, values):
    """The paper prints 12.81 ± 0.49 for Retrain's error on kept rows."""
    block["methods"]["retrain"]["error_kept"] = values
    found = [*tables.matches(block).compared, *tables.matches(block).unmeasured]
    return next(each for each in found if each.method == "retrain" and each.metric.key == "error_kept")


def test_the_matching_rule_by_hand(block):
    shape = np.array([-1.0, 0.0, 1.0])  # standard deviation 1: 2√(0.49² + 1²) + 0.005 = 2.232 apart at most
    allowed = 2 * math.sqrt(0.49**2 + 1) + 0.005
    assert one_figure(block, (12.81 + allowed - 1e-6 + shape).tolist()).agrees
    assert not one_figure(block, (12.81 + allowed + 1e-6 + shape).tolist()).agrees
    assert not one_figure(block, (12.81 - allowed - 1e-6 + shape).tolist()).agrees
    assert one_figure(block, [12.81 + 2 * 0.49 + 0.0049]).agrees  # a single chain has no spread of its own
    assert not one_figure(block, [12.81 + 2 * 0.49 + 0.0051]).agrees
    assert not one_figure(block, [12.81, None, 12.81]).agrees


def test_figures_that_were_not_measured_are_counted_apart(block):
    whole = tables.matches(block)
    assert whole.summary == f"{len(whole.compared)} of {len(whole.compared)} figures match"
    assert len(whole.compared) == 4 * 4 + 3 + 3 * 3  # errors and MIA, ε̂ but Retrain's, differences but Retrain's
    block["methods"]["paper"]["epsilon_as_run"] = None
    found = tables.matches(block)
    assert len(found.unmeasured) == 1
    assert found.summary == "27 of 27 figures match, 1 not measured here"


def test_misses_are_listed_with_both_values(block):
    block["methods"]["origin"]["mia"] = [90.0, 91.0, 92.0, 93.0, 94.0]
    (row,) = tables.matches_grid([block]).rows
    assert row[1:5] == ("Origin: nothing done", "MIA, %", "92.00 ± 1.58", "10.86 ± 8.02")
    assert "27 of 28 figures match" in tables.matches_grid([block]).note


# --- targets


def test_targets_reached_and_missed(block, paper_blocks):
    found = tables.targets(block)
    assert [each.reached for each in found] == [True] * 6
    assert [each.bound for each in found] == [0.03, 1.0, 1.0, 1.0, pytest.approx(5.79), 5.0]
    floor = block["floor"]["difference_removed"]
    block["methods"]["rewound"]["difference_removed"] = [value + 0.031 for value in floor]
    block["methods"]["rewound"]["error_kept"] = [value + 1.01 for value in block["methods"]["retrain"]["error_kept"]]
    block["methods"]["rewound"]["notes"]["share_of_retraining"] = 0.0501
    missed = tables.targets(block)
    assert [each.reached for each in missed] == [False, False, True, True, True, False]
    assert missed[0].text == "0.031 ± 0.000 ≤ 0.030: no"
    assert tables.targets_grid([block]).rows[0][-1] == "3 of 6"
    larger = tables.targets(paper_blocks[5])
    assert larger[0].bound == 0.06


def test_a_tenth_has_the_bounds_of_the_whole(block):
    for removed, bound in ((400, 0.03), (600, 0.06)):
        block["settings"].update(rows=6000, removed=removed)
        assert tables.targets(block)[0].bound == bound


def test_targets_that_were_not_measured(poor):
    found = tables.targets(poor)
    assert found[0].reached is None
    assert found[0].text == found[-1].text == "not measured"


# --- renderings


def numbers(text):
    return sorted(re.findall(r"\d+\.\d+", text))


def test_the_three_renderings_agree(paper_blocks):
    for grid in bnn_page.all_grids(paper_blocks):
        stream = io.StringIO()
        Console(file=stream, width=400).print(grids.rich_table(grid))
        tex = grids.latex(grid)
        assert numbers(grids.markdown(grid)) == numbers(tex) == numbers(stream.getvalue())
        assert tex.isascii(), tex
        assert r"\_1" not in tex  # mathematics is not escaped twice
        assert len({line.count(" & ") for line in tex.splitlines() if line.endswith(r"\\")}) == 1
        lines = [line for line in grids.markdown(grid).splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) == 1


def test_ε_has_its_floor_beside_it(block):
    columns = tables.errors_grid(block).columns
    floors = [f"{np.mean(block['methods']['retrain 2'][key]) / 1e3:.2f}" for key in ("epsilon_as_run", "epsilon")]
    assert [title.splitlines()[-1] for title in columns[-2:]] == [f"floor {floor}" for floor in floors]


# --- the page


def test_the_page_holds_every_table(paper_blocks):
    page = bnn_page.page(paper_blocks)
    for result in paper_blocks:
        assert f"### {result['title']}" in page
    for grid in bnn_page.all_grids(paper_blocks):
        assert grid.title == "Figures that do not match" or grids.markdown(grid) in page
    assert "posterase reproduce cifar10\n" in page
    assert "](networks/cifar10-sgld-5000-case-study-rewound.png)" in page
    assert not re.search(r"\b(nan|None|inf)\b", page)


def test_the_page_says_what_was_not_measured(poor):
    page = bnn_page.page([poor])
    assert not re.search(r"\b(nan|None|inf)\b", page)
    assert page.lower().count("not measured") > 20
    assert "0.80 to 1.30; none that is finite in 2 of 5 chains" in page
    assert "not finite in 1 of 5 chains" in page


def test_variants_stand_beside_their_block_and_apart_from_the_tables(paper_blocks, tmp_path):
    base = bnn.blocks("cifar10")[0]
    exact = make(dataclasses.replace(base, precision="float32"))
    other = make(dataclasses.replace(base, pretraining=None))
    assert (exact["name"], other["name"]) == (
        "cifar10-sgld-3000-products-in-float32",
        "cifar10-sgld-3000-not-pre-trained",
    )
    other["methods"]["retrain"]["error_test"] = [value + 9 for value in other["methods"]["retrain"]["error_test"]]
    del other["methods"]["fine-tuning"]
    bnn_files.write([exact, other, *paper_blocks], tmp_path, figures=False)
    everything = bnn_files.read(tmp_path)
    assert [result["variant"] for result in everything[-2:]] == ["not pre-trained", "products in float32"]
    found = bnn_variants.variants(everything)
    assert [each.base["name"] for each in found] == ["cifar10-sgld-3000"] * 2
    missed = [row for row in bnn_variants.variant_grid(found[0]).rows if row[-1] == "no"]
    assert [row[:2] for row in missed] == [("Retrain", "error on test rows, %")]
    page = bnn_page.page(everything)
    assert page.count("### CIFAR-10 + SGLD, 3,000 rows removed\n") == 1
    assert "posterase reproduce cifar10 --sampler sgld --removed 3000 --precision float32\n" in page
    assert "--removed 3000 --no-pretraining --without 'fine-tuning'" in page
    assert "Not run yet" not in page
    assert "Not run yet: CIFAR-10 + SGLD, 3,000 rows." in bnn_page.page(paper_blocks[1:])


def test_speeds_are_read_and_judged(tmp_path):
    ratios = [
        ("LeNet: a request, 64 terms, PyTorch (cuda) / ours", 0.66, 0.022),
        ("CIFAR network: a step of SGLD, PyTorch (cuda) / ours", 0.003, 0.0006),
        ("LeNet: a step, 5 chains / one", 2.9e-4, 1.3e-4),
        ("LeNet: something else", 1.0, 2.0),
    ]
    told = [dict(zip(("what", "first", "second"), each, strict=True)) for each in ratios]
    (tmp_path / "speed-gpu.json").write_text(json.dumps({"machine": "gpu (some)", "ratios": told}))
    (speeds,) = bnn_speed.read_speeds(tmp_path)
    rows = bnn_speed.speed_grid(speeds).rows
    assert [row[-2:] for row in rows] == [("at least 25", "yes"), ("at least 8", "no"), ("below 3", "yes"), ("", "")]
    assert rows[2][1:4] == ("290 µs", "130 µs", "2.23")
    (tmp_path / "speed-gpu.json").write_text("[]")
    with pytest.raises(InputFileError, match="speed-gpu"):
        bnn_speed.read_speeds(tmp_path)


def test_first_steps_are_read_and_told(block, tmp_path):
    what = "digits + SGLD, 60 rows removed: 5 % of a retraining, alone / after 256 rows, 10 iterations"
    told = {"machine": "gpu (some)", "ratios": [{"what": what, "first": 0.1, "second": 0.0734, "unit": ""}]}
    (tmp_path / "first-step.json").write_text(json.dumps(told))
    found = bnn_speed.read_speeds(tmp_path, "first-step")
    assert bnn_speed.first_step_grid(found[0]).rows[0][1:] == (
        "5 % of a retraining",
        "256 rows, 10 iterations",
        "0.100",
        "0.073",
    )
    assert "nearer to retrained ones in 1 of 1 cases" in bnn_page.page([block], first_steps=found)
    (tmp_path / "first-step.json").write_text("[]")
    with pytest.raises(InputFileError, match="benchmarks first_step"):
        bnn_speed.read_speeds(tmp_path, "first-step")


# --- files


def test_results_come_back_as_they_were_written(paper_blocks, tmp_path):
    written = bnn_files.write(paper_blocks, tmp_path / "new", figures=False)
    assert {path.name for path in written} == {
        *(f"{tables.name_of(each)}.json" for each in paper_blocks),
        "tables.md",
        "tables.tex",
    }
    assert bnn_files.read(tmp_path / "new") == json.loads(json.dumps(paper_blocks))


def test_numbers_that_are_not_finite_become_null(poor, tmp_path):
    path = bnn_files.write_block(poor, tmp_path)
    assert not re.search("NaN|Infinity", path.read_text())
    (found,) = bnn_files.read(tmp_path)
    assert bnn_page.page([found]) == bnn_page.page([poor])


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"settings": {}, "methods": {}}', '{"settings": 1, "methods": 2}'])
def test_broken_files_are_refused(text, tmp_path):
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(InputFileError, match=r"broken\.json"):
        bnn_files.read(tmp_path)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(InputFileError, match="no results"):
        bnn_files.read(tmp_path)


def test_without_matplotlib_the_tables_are_written(block, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match="matplotlib"):
        bnn_files.write([block], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"fashion-mnist-sgld-4000.json", "tables.md", "tables.tex"}


# --- figures


@pytest.fixture(scope="module")
def one_image():
    """A block with a single image in its case study."""
    found = make(dataclasses.replace(bnn.blocks("cifar10")[1], case_study=(3,)))
    del found["methods"]["rewound"]["notes"]["panels"]
    return found


def test_figures_are_written_and_the_same_every_time(one_image, block, tmp_path):
    pytest.importorskip("matplotlib")
    block["methods"]["rewound"]["notes"]["seconds"] = None
    images = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), dtype=np.uint8)
    first = bnn_files.write([one_image, block], tmp_path, {"cifar10": images})
    pictures = {path.name: path.read_bytes() for path in first if path.suffix in (".png", ".svg")}
    case = "cifar10-sgld-5000-case-study-paper"
    assert set(pictures) == {f"{stem}.{kind}" for stem in ("request-times", case) for kind in ("png", "svg")}
    again = [
        *figures.draw_request_times([one_image, block], tmp_path / "request-times"),
        *figures.draw_case_study(one_image, images, tmp_path / case),
    ]
    for path in again:
        assert path.read_bytes() == pictures[path.name]
    assert figures.TRUE.lower() in (tmp_path / f"{case}.svg").read_text()


def test_images_without_known_classes_have_nothing_red(one_image, tmp_path):
    pytest.importorskip("matplotlib")
    unknown = {key: value for key, value in one_image.items() if key != "case_study_labels"}
    _, plain = figures.draw_case_study(unknown, np.zeros((1, 8, 8, 1), np.uint8), tmp_path / "plain")
    assert figures.TRUE.lower() not in plain.read_text()
