"""The networks' experiment, end to end on digits: what it measures, how it resumes, what its seeds decide."""

import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from posterase.cli import network_runs
from posterase.cli.main import app
from posterase.cli.output import Said
from posterase.errors import InputFileError, InvalidOptionError, NonFiniteResultError, OutputError
from posterase.experiments import bnn, bnn_files, bnn_results, bnn_tables, grids
from posterase.experiments.stages import Stages

TINY = dataclasses.replace(
    bnn.PAPER["digits"][0],
    removed=60,
    rows=600,
    test_rows=100,
    chains=2,
    steps=300,
    noise_free_steps=250,
    order=2,
    request_rows=16,
    fine_tuning_steps=10,
    draws=30,
    case_study=(0, 3),
)
NAMES = {"origin", "retrain", "retrain 2", "fine-tuning", "paper", "steps alone", "importance sampling", "corrected"}
NAMES |= {"rewound"}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One block, run once, with its finished stages kept."""
    folder = tmp_path_factory.mktemp("stages")
    block = bnn.run(TINY, stages=Stages(folder))
    return folder, block, bnn_results.results(block)


def without_times(result):
    """What a seed decides: everything but clocks and machines."""
    methods = {
        name: {**row, "notes": {key: value for key, value in row["notes"].items() if key != "seconds"}}
        for name, row in result["methods"].items()
    }
    return json.dumps({**result, "methods": methods, "machine": None}, sort_keys=True)


def test_every_method_has_every_figure(ran):
    _, _, result = ran
    assert set(result["methods"]) == NAMES
    for name, row in result["methods"].items():
        for key in ("error_kept", "error_removed", "error_test", "mia"):
            assert len(row[key]) == 2, name
            assert all(0 <= value <= 100 for value in row[key]), name
        for key in ("difference_kept", "difference_removed", "difference_test", "epsilon", "epsilon_as_run"):
            assert np.isfinite(row[key]).all(), name
        assert row["notes"]["seconds"] > 0
    assert json.loads(json.dumps(result)) == result
    assert result["parameters"] == 3658
    for name in ("corrected", "rewound"):
        assert 0 < result["methods"][name]["notes"]["share_of_retraining"] <= TINY.budget


def test_the_networks_learn_and_retraining_forgets(ran):
    """A whole class is removed: the original network knows it, the retrained ones never name it."""
    methods = ran[2]["methods"]
    assert np.mean(methods["origin"]["error_kept"]) < 25
    assert np.mean(methods["origin"]["error_removed"]) < 25
    assert methods["retrain"]["error_removed"] == [100.0, 100.0]
    assert np.mean(methods["retrain"]["error_kept"]) < 25
    origin, floor = methods["origin"], methods["retrain"]
    assert np.mean(origin["difference_removed"]) > 2 * np.mean(floor["difference_removed"])


def test_figures_are_what_they_say(ran):
    """Errors, differences and the floor, from the networks' own outputs."""
    _, block, result = ran
    problem, removed = block.problem, block.problem.removed
    x, y = np.asarray(problem.model.data["x"])[removed], np.asarray(problem.model.data["y"])[removed]
    assert set(y) == {0}
    seen = {
        name: np.asarray(bnn.probabilities(problem.network, arm.state.theta, x)) for name, arm in block.arms.items()
    }
    for name in ("origin", "corrected"):
        wrong = 100 * np.mean(seen[name].argmax(-1) != y, axis=1)
        np.testing.assert_allclose(result["methods"][name]["error_removed"], wrong, atol=1e-4)
        targets = [np.abs(seen[name] - seen[other]).sum(-1).mean(1) for other in ("retrain", "retrain 2")]
        np.testing.assert_allclose(result["methods"][name]["difference_removed"], np.mean(targets, axis=0), rtol=1e-4)
    pair = np.abs(seen["retrain"] - seen["retrain 2"]).sum(-1).mean(1)
    np.testing.assert_allclose(result["floor"]["difference_removed"], pair, rtol=1e-4)
    np.testing.assert_allclose(result["methods"]["retrain 2"]["difference_removed"], pair, rtol=1e-4)


def test_nothing_of_the_removed_rows_is_left_to_go_on_from(ran):
    _, block, _ = ran
    for name, arm in block.arms.items():
        if name == "origin":
            continue
        assert not np.asarray(arm.model.present)[block.problem.removed].any()
        left = np.asarray(arm.model.data["y"])[block.problem.removed]
        assert 0 not in left, name
        assert np.asarray(arm.sampler.schedule.a) == pytest.approx(TINY.rate / block.problem.kept.n_rows, rel=1e-4)


def test_a_finished_run_is_read_and_not_run_again(ran, monkeypatch):
    folder, _, result = ran
    for name in ("train", "fine_tune", "paper", "continue_on", "importance_sample"):
        monkeypatch.setattr(bnn, name, never)
    again = bnn_results.results(bnn.run(TINY, stages=Stages(folder)))
    assert without_times(again) == without_times(result)


def test_a_cut_run_goes_on_at_the_last_finished_stage(ran, monkeypatch, tmp_path):
    """The same to the bit as the run that was not cut."""
    folder, _, result = ran
    for path in folder.iterdir():
        if not path.name.startswith(("paper", "corrected")):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    for name in ("train", "fine_tune", "importance_sample"):
        monkeypatch.setattr(bnn, name, never)
    again = bnn_results.results(bnn.run(TINY, stages=Stages(tmp_path)))
    assert without_times(again) == without_times(result)


def never(*_, **__):
    raise AssertionError("a finished stage was run again")


def test_stages_belong_to_their_settings(ran):
    """Another seed, sampler or rate finds nothing; another number of removed rows finds the original chains only."""
    stages = Stages(ran[0])

    def found(settings):
        return {job.stage for job in bnn.jobs(settings) if stages.path(job.stage, job.depends_on).exists()}

    assert found(TINY) == {job.stage for job in bnn.jobs(TINY)}
    assert found(dataclasses.replace(TINY, removed=20)) == {"origin"}
    for change in ({"seed": 1}, {"sampler": "sghmc"}, {"rate": 0.02}, {"precision": "bfloat16"}):
        assert found(dataclasses.replace(TINY, **change)) == set(), change
    assert found(dataclasses.replace(TINY, corrected_rate=0.01)) == found(TINY) - {"corrected"}
    assert found(dataclasses.replace(TINY, fine_tuning_steps=11)) == found(TINY) - {"fine-tuning"}


def test_a_broken_stage_is_named(ran, tmp_path):
    for path in ran[0].iterdir():
        content = path.read_bytes()
        (tmp_path / path.name).write_bytes(content[:100] if path.name.startswith("origin") else content)
    with pytest.raises(InputFileError, match="delete the file"):
        bnn.run(TINY, stages=Stages(tmp_path))


def test_the_corrected_continuation_keeps_to_its_budget():
    for dataset in ("fashion-mnist", "cifar10"):
        for settings in bnn.blocks(dataset):
            method = bnn.corrected_method(settings)
            rounds = method.steps / method.round_steps
            rows = 2 * method.steps * settings.batch + settings.removed + method.control_rows * (1 + (rounds + 1) / 3)
            assert 0.04 < rows / (settings.steps * settings.batch) <= 0.05, settings.title


def test_a_method_that_fails_is_named_and_the_others_go_on(ran, monkeypatch, tmp_path):
    folder, _, whole = ran
    for path in folder.iterdir():
        if not path.name.startswith("paper"):
            (tmp_path / path.name).write_bytes(path.read_bytes())

    def diverge(*_, **__):
        raise NonFiniteResultError("chain 1 was not finite after step 7.", "use smaller steps.")

    monkeypatch.setattr(bnn, "paper", diverge)
    result = bnn_results.results(bnn.run(TINY, stages=Stages(tmp_path)))
    assert result["methods"]["paper"] == {"notes": {"failed": "chain 1 was not finite after step 7."}}
    assert result["methods"]["corrected"]["error_kept"] == whole["methods"]["corrected"]["error_kept"]
    shown = "\n".join(grids.markdown(grid) for grid in bnn_tables.block_grids(result))
    assert "not measured" in shown


def test_rows_that_are_not_there_cannot_be_removed():
    with pytest.raises(InvalidOptionError, match="of 60"):
        bnn.prepare(dataclasses.replace(TINY, removed=61))
    with pytest.raises(InvalidOptionError, match="no method 'magic'"):
        bnn.run(TINY, methods=("magic",))


def test_a_part_of_the_rows_has_as_many_of_each_class():
    rows = bnn.prepare(dataclasses.replace(TINY, rows=200, removed=5)).model.data["y"]
    np.testing.assert_array_equal(np.bincount(rows), np.full(10, 20))


def test_blocks_are_the_papers():
    fashion, cifar = bnn.blocks("fashion-mnist"), bnn.blocks("cifar10")
    assert [(each.sampler, each.removed) for each in fashion + cifar] == [
        (sampler, removed)
        for sizes in ((4000, 6000), (3000, 5000))
        for sampler in ("sgld", "sghmc")
        for removed in sizes
    ]
    assert (fashion[0].pretraining_steps, fashion[0].steps, fashion[0].noise_free_steps) == (2000, 10_000, 1000)
    assert (cifar[0].pretraining_steps, cifar[0].steps, cifar[0].noise_free_steps) == (10_000, 20_000, 5000)
    assert (fashion[0].scale, cifar[0].scale, fashion[0].order, fashion[0].request_rows) == (0.05, 0.08, 64, 64)
    assert cifar[0].case_study == (4217, 6872, 7349, 492)
    quick = bnn.blocks("cifar10", quick=True)[0]
    assert (quick.rows, quick.removed, quick.steps, quick.pretraining_steps) == (5000, 300, 2000, 1000)


# --- the command line


@pytest.mark.slow
def test_the_time_of_a_step_is_measured():
    assert 0 < bnn.seconds_a_gradient(TINY) < 10


def test_a_dry_run_lists_and_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(bnn, "seconds_a_gradient", lambda _: 1.0)
    result = CliRunner().invoke(app, ["reproduce", "digits", "--dry-run", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "fine-tuning" in result.output
    assert "in all" in result.output
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_run_is_refused_at_once():
    with pytest.raises(InvalidOptionError, match="--sampler"):
        network_runs.chosen("digits", "nuts", None, False)
    with pytest.raises(InvalidOptionError, match="use 130 or 143"):
        network_runs.chosen("digits", "sgld", 5, False)


def test_results_of_other_settings_are_not_overwritten(ran, tmp_path):
    bnn_files.write_block(ran[2], tmp_path)
    other = dataclasses.replace(TINY, seed=5)
    with pytest.raises(OutputError, match=r"\.json' holds results with another seed"):
        network_runs.run_blocks(Said(False, False), [other], tmp_path, None)


def test_the_command_writes_tables_and_figures(ran, monkeypatch, tmp_path):
    """From finished stages, so that only the comparison is run."""
    (tmp_path / "stages").mkdir()
    for path in ran[0].iterdir():
        (tmp_path / "stages" / path.name).write_bytes(path.read_bytes())
    monkeypatch.setitem(bnn.PAPER, "digits", (TINY, (TINY.removed, TINY.removed)))
    monkeypatch.setattr(network_runs, "chosen", lambda *_, **__: [TINY])
    result = CliRunner().invoke(app, ["reproduce", "digits", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    written = {path.name for path in tmp_path.iterdir()}
    assert {"digits-sgld-60.json", "tables.md", "tables.tex", "request-times.png", "request-times.svg"} <= written
    assert without_times(json.loads((tmp_path / "digits-sgld-60.json").read_text())) == without_times(ran[2])
    page = tmp_path / "pages" / "networks.md"
    result = CliRunner().invoke(app, ["reproduce", "page", str(tmp_path), "--out", str(page)])
    assert result.exit_code == 0, result.output
    assert "](../request-times.png)" in page.read_text()


def test_methods_can_be_left_out():
    assert network_runs.all_but(["fine-tuning", "floor"])[:3] == ["retrain", "origin", "paper"]
    assert "importance sampling" not in network_runs.all_but(["importance-sampling"])
    for name in ("retrain", "magic"):
        with pytest.raises(InvalidOptionError, match="--without"):
            network_runs.all_but([name])


def test_rewinding_keeps_to_its_budget_and_writes_for_as_long_as_it_rewound():
    for dataset in ("fashion-mnist", "cifar10"):
        for settings in bnn.blocks(dataset):
            method = bnn.rewinding_method(settings, {})
            rows = method.steps * settings.batch + method.control_rows * (2 + method.steps / method.round_steps) / 3
            assert 0.045 < rows / (settings.steps * settings.batch) <= 0.05, settings.title
            recipe = settings.noise_free_steps * settings.rate / (1 - settings.momentum)
            written = method.rate * method.steps / 2 / (1 - method.momentum)
            assert written / recipe == pytest.approx(settings.rewound)
