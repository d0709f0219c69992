"""Jobs of the command line: from files to files, with a certificate outside any record, and what is said on the way."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import shutil
import signal
import stat

import jsonschema
import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import posterase as pe
from posterase.cli.dry_run import DryRun
from posterase.cli.exit_status import ERROR, REFUSED, STOPPED
from posterase.cli.main import app, main
from posterase.draws.origins import ORIGINS
from posterase.errors import (
    EmptyRemovalError,
    InputFileError,
    InvalidOptionError,
    KeyFileError,
    LedgerError,
    OutputError,
    ProjectError,
    RowsError,
)
from posterase.projects import builders
from posterase.projects.jobs import Job, ids
from posterase.record.certificate import CAUTIONS, page, schema
from posterase.record.ledger.keyring import load_keys

PEOPLE, VISITS, SIZE = 25, 4, 2000
PERSON = np.array([f"person-{number:02d}" for number in range(PEOPLE)]).repeat(VISITS)
VALUES = np.random.default_rng(0).normal(1.0, 1.0, PERSON.size)
VALUES[:VISITS] = 17.25, 0.5, 0.5, -14.25  # planted, and of no influence

MODEL = """
import numpy as np, jax.numpy as jnp, posterase as pe

def build(draws):
    values = np.load("values.npy")
    model = pe.Model(
        lambda p: -0.5 * (p["mu"] / 10) ** 2,
        lambda p, rows: -0.5 * (rows["y"] - p["mu"]) ** 2 - 0.5 * jnp.log(2 * jnp.pi),
        {"y": jnp.asarray(values), "person": jnp.arange(100) // 4},
    )
    return model, pe.Draws.load(draws)

def broken(draws):
    raise ValueError("the doses are missing")

def nothing(draws):
    return None
"""


def exact(kept):
    """Mean and standard deviation of the posterior, by its closed form (prior N(0, 10))."""
    precision = kept.sum() + 1 / 100
    return VALUES[kept].sum() / precision, precision**-0.5


def tree_of(kept, seed, likelihood=True):
    mean, sd = exact(kept)
    mu = mean + sd * np.random.default_rng(seed).normal(size=(4, SIZE))
    groups = {"posterior": xr.Dataset({"mu": (("chain", "draw"), mu)})}
    if likelihood:
        found = -0.5 * (VALUES - mu[..., None]) ** 2 - 0.5 * np.log(2 * np.pi)
        groups["log_likelihood"] = xr.Dataset({"y": (("chain", "draw", "visit"), found)})
        groups["observed_data"] = xr.Dataset({"y": ("visit", VALUES)})
        groups["constant_data"] = xr.Dataset({"person": ("visit", PERSON), "number": ("visit", np.arange(100) // 4.0)})
    return xr.DataTree.from_dict(groups)


EVERYBODY, OTHERS = np.ones(PERSON.size, bool), PERSON != "person-03"


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    tree_of(EVERYBODY, 1).to_netcdf(folder / "fit.nc", engine="h5netcdf")
    for number in (1, 2):
        tree_of(OTHERS, 1 + number, likelihood=False).to_netcdf(folder / f"refit-{number}.nc", engine="h5netcdf")
    return folder


@pytest.fixture
def here(fitted, tmp_path, monkeypatch):
    """A folder with draws, refits, and keys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTERASE_KEYS", str(tmp_path / "keys"))
    for file in fitted.iterdir():
        shutil.copy(file, tmp_path)
    np.save(tmp_path / "values.npy", VALUES)
    (tmp_path / "visits.py").write_text(MODEL)
    return tmp_path


def invoked(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def call(*words, status=0):
    """Run a command; its output."""
    done = invoked(*words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done.stdout


def ended(monkeypatch, *words):
    """The exit status that a shell sees."""
    monkeypatch.setattr("sys.argv", ["posterase", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


JOB = """
draws = "fit.nc"
by = "person"
rows = ["person-03", "person-00"]
preprocessing = "none"
seed = 0
out = "kept.nc"
certificate = "certificate.json"
report = "report.html"
verdict = "verdict.json"
diagnostics = "diagnostics.html"

[policy]
ess = 300
"""


def check_mean(path, mean, sd):
    """Five standard errors of that many independent draws: chance exceeds it once in a million."""
    after = pe.Draws.load(path)
    assert after.log_weights is None
    mu = np.asarray(after.params["mu"])
    assert mu.mean() == pytest.approx(mean, abs=5 * sd / mu.size**0.5)


def test_from_a_job_to_a_certificate_that_anyone_can_verify(here):
    call("keys", "new", "example.org/erasures")
    (here / "job").mkdir()
    (here / "job" / "job.toml").write_text(JOB)
    shutil.copy(here / "fit.nc", here / "job")
    shown = call("erase", "job/job.toml")
    assert "8 rows of 100: accepted by Reweight" in shown
    assert "The draws before are still in job/fit.nc: delete it and its copies." in shown
    names = "kept.nc", "certificate.json", "report.html", "verdict.json", "diagnostics.html"
    made = {name: here / "job" / name for name in names}

    mean, sd = exact(~np.isin(PERSON, ["person-03", "person-00"]))
    check_mean(made["kept.nc"], mean, sd)
    data = made["certificate.json"].read_bytes()
    value = json.loads(data)
    jsonschema.validate(value, schema())
    assert [value[name] for name in ("request", "subject", "project", "ledger")] == [None] * 4
    assert value["rows"]["count"] == 8
    assert value["fingerprints"]["draws"]["after"] == f"sha256:{_sha256(made['kept.nc'])}"
    assert _sha256(here / "fit.nc") not in data.decode()
    assert value["cautions"] == list(CAUTIONS)
    assert b"seed" not in data
    assert value["not_erased"][0] == "the draws before, which are still in their file"
    assert f"8 rows were removed from the posterior. {ORIGINS[value['erasure']['verdict']['draws']]}" in page(data)
    report = made["report.html"].read_text()
    assert f"sha256:{hashlib.sha256(data).hexdigest()}" in report
    assert "posterase verify --key public.key --certificate certificate.json" in report
    for text in (report, made["diagnostics.html"].read_text()):
        for name, fact in {
            "Date": dt.datetime.now(dt.UTC).date(),
            "Draws before": "fit.nc",
            "Draws after": "kept.nc",
        }.items():
            assert f"<th scope=row>{name}</th><td>{fact}</td>" in text
    assert json.loads(made["verdict.json"].read_text())["draws_files"] == {"before": "fit.nc", "after": "kept.nc"}
    for path in made.values():
        assert (stat.S_IMODE(path.stat().st_mode) == 0o600) == (path.name == "diagnostics.html"), path
        for planted in (b"person-03", b"person-00", b"17.25", np.float64(17.25).tobytes()):
            assert planted not in path.read_bytes(), path

    said = call("verify", "--key", "keys/public.key", "--certificate", made["certificate.json"])
    assert "unchanged, and signed by example.org/erasures" in said
    assert "in no ledger" in said
    (here / "changed.json").write_bytes(data.replace(b'"count":8', b'"count":7'))
    with pytest.raises(LedgerError, match="signature is wrong"):
        call("verify", "--key", "keys/public.key", "--certificate", "changed.json")
    call("keys", "new", "example.org/others", "--keys", "others")
    with pytest.raises(LedgerError, match="which you have not given"):
        call("verify", "--key", "others/public.key", "--certificate", made["certificate.json"])
    with pytest.raises(LedgerError, match="is in no ledger"):
        call("verify", "fit.nc", "--key", "keys/public.key", "--certificate", made["certificate.json"])
    with pytest.raises(InvalidOptionError, match="nothing to verify"):
        call("verify", "--key", "keys/public.key")


def _sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_flags_alone_do_the_same_and_come_before_the_file(here):
    (here / "job.toml").write_text('draws = "fit.nc"\nrows = [3]\nout = "a.nc"\n[policy]\ness = 1999')
    flags = ("--preprocessing", "none", "--policy", "epsilon=0.04", "--seed", 3)
    call("erase", "job.toml", "--by", "person", "--rows", "person-03,person-00", "--policy", "ess=300", *flags)
    (here / "rows.txt").write_text("# two people\n0-3 12, 13\n14-15 # the last of them\n\n")
    call("erase", "fit.nc", "--rows", "@rows.txt", "--out", "b.nc", *flags)
    call("erase", "fit.nc", "--rows", 'person == "person-03" or person == "person-00"', "--out", "c.nc", *flags)
    first, *others = (np.asarray(pe.Draws.load(here / name).params["mu"]) for name in ("a.nc", "b.nc", "c.nc"))
    for each in others:
        np.testing.assert_array_equal(first, each)
    job = Job.of(here / "job.toml", policy={"refit": True}, out="d.nc")
    assert (job.rules.ess, job.rules.refit, job.path("out")) == (1999.0, True, here / "d.nc")


def test_values_of_a_column_from_a_file(here):
    tree = tree_of(EVERYBODY, 1)
    tree["constant_data"] = tree["constant_data"].to_dataset().drop_vars("person")  # zarr has no words for text yet
    tree.to_zarr(here / "fit.zarr", consolidated=False)
    (here / "rows.txt").write_text('3, "0"\n# nobody else\n')
    told = json.loads(call("erase", "fit.zarr", "--rows", "@rows.txt", "--by", "number", "--out", "a.nc", "--json"))
    assert told["removed_rows"] == 8
    assert told["files"] == {"out": str(here / "a.nc")}
    assert pe.from_arviz(here / "a.nc")[0].n_rows == 92


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("rwos = [3]", ProjectError, "no 'rwos'.*did you mean 'rows'"),
        ("rows = [3]\n[policy]\nepsilom = 1", ProjectError, "no 'epsilom'.*did you mean 'epsilon'"),
        ("rows = [3]\n[policy]\nepsilon = -1", InvalidOptionError, "epsilon is -1.0"),
        ("rows = [3", ProjectError, "is not TOML"),
        ("rows = [3]\nfolder = '.'", ProjectError, "folder is where the file is"),
        ("", ProjectError, "does not say which rows"),
        ("rows = '@nowhere.txt'", ProjectError, "cannot be read"),
        ("rows = '@empty.txt'", ProjectError, "lists no rows"),
        ("rows = '@wrong.txt'", RowsError, "wrong.txt, line 2: '9-3' is no row id"),
        ("rows = []", RowsError, "empty list"),
        ("rows = [3, 'a']", RowsError, "mixes numbers with text"),
        ("rows = [[3]]", RowsError, "lists \\[3\\]"),
        ("rows = 3", RowsError, "use a list"),
        ("rows = 'person =='", RowsError, "is not a condition"),
        ("rows = '0-99999999999'", RowsError, "more rows than can be named"),
        ("rows = [3]\nmodel = 'visits'", ProjectError, "names no function"),
        ("rows = [3]\nmodel = 'visits:bild'", ProjectError, "no function 'bild'"),
        ("rows = [3]\nmodel = 'visits.py:build'", ProjectError, "no module 'visits.py'.*leave .py out: visits:build"),
        ("rows = [3]\nmodel = 'nowhere:build'", ProjectError, "no module 'nowhere'"),
        ("rows = [3]\nmodel = 'visits:build'\nrow_dim = 'visit'", ProjectError, "row_dim is for stored"),
        ("rows = [3]\nseed = -1", ProjectError, "seed is -1"),
        ("rows = [3]\nbridge = 'pickle'", ProjectError, "no bridge 'pickle'"),
        ("rows = [3]\nmodel = 'visits:build'\nbridge = 'arviz'", ProjectError, "this one has both"),
        ("rows = [3]\nrefits = ['nowhere.nc']", ProjectError, "no file '.*nowhere.nc'"),
        ("rows = [3]\nreport = 'kept.nc'", ProjectError, "out and report are one file"),
        ("rows = [3]\nreport = 'nowhere/report.html'", OutputError, "no folder"),
        ("rows = [3]\nreport = 'refit-1.nc'", OutputError, "already exists"),
        ("rows = [3]\ncertificate = 'certificate.json'", KeyFileError, "posterase keys new"),
        ("rows = [3]\nout = 'kept.zarr'", ProjectError, "written as netCDF"),
        ("rows = [3]\ndiagnostics = 'all.txt'", ProjectError, "neither .json nor .html"),
    ],
)
def test_what_is_wrong_is_told_before_draws_are_opened(here, monkeypatch, text, error, said):
    monkeypatch.setattr(builders, "find_bridge", lambda *_, **__: pytest.fail("the draws were opened"))
    (here / "empty.txt").write_text("# nothing\n")
    (here / "wrong.txt").write_text("1\n9-3\n")
    out = "" if "out =" in text else "out = 'kept.nc'\n"
    (here / "job.toml").write_text(f"draws = 'fit.nc'\n{out}{text}")
    before = {path.name for path in here.iterdir()}
    with pytest.raises(error) as found:
        call("erase", "job.toml")
    assert re.search(said, str(found.value).replace("\n", " ")), found.value
    assert {path.name for path in here.iterdir()} - {"__pycache__"} == before


def test_values_that_begin_with_an_at_sign(here):
    """They are quoted; else they name a file."""
    assert Job.of(here / "fit.nc", rows='"@home", away', by="place").selection().rows == ["@home", "away"]
    (here / "rows.txt").write_text("@home\naway\n")
    assert Job.of(here / "fit.nc", rows="@rows.txt", by="place").selection().rows == ["@home", "away"]
    with pytest.raises(ProjectError, match=r"'.*home' cannot be read"):
        Job.of(here / "fit.nc", rows="@home", by="place").selection()


def test_methods_by_their_names(here):
    (here / "job.toml").write_text('draws = "fit.nc"\nrows = "12-15"\nout = "kept.nc"\nmethods = ["reweight"]\n')
    planned = json.loads(call("erase", "job.toml", "--dry-run", "--json"))
    assert [each["method"] for each in planned["methods"]] == ["Reweight"]
    found = json.loads(call("erase", "job.toml", "--json"))
    assert [each["name"] for each in found["methods"]] == ["Reweight"]
    (here / "job.toml").write_text('draws = "fit.nc"\nrows = "12-15"\nout = "b.nc"\nmethods = ["rewieght"]\n')
    with pytest.raises(InvalidOptionError, match="did you mean 'reweight'"):
        call("erase", "job.toml")
    words = ("erase", "fit.nc", "--rows", "12-15", "--method", "reweight", "--json", "--dry-run")
    assert [each["method"] for each in json.loads(call(*words))["methods"]] == ["Reweight"]
    with pytest.raises(InvalidOptionError, match="use reweight, transport"):
        call("erase", "fit.nc", "--rows", "12-15", "--method", "nothing", "--out", "b.nc")


def test_one_report_of_each_kind(here):
    files = ("--report", "a.json", "--report", "b.json")
    with pytest.raises(OutputError, match=r"two files of one kind, 'a\.json' and 'b\.json'"):
        call("erase", "fit.nc", "--rows", "3", "--out", "kept.nc", *files)


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (("--rows", "person-99", "--by", "person"), EmptyRemovalError, "no row has the person 'person-99'"),
        (("--rows", "person-03", "--by", "persn"), RowsError, "did you mean 'person'"),
        (("--rows", "3", "--model", "visits:broken"), ProjectError, "ValueError: the doses are missing"),
        (("--rows", "3", "--model", "visits:nothing"), ProjectError, "returned NoneType"),
        (("--rows", "3", "--model", "visits:build", "--preprocessing", "none"), ProjectError, "no bridge has read"),
        (("--rows", "3", "--policy", "epsilon"), ProjectError, "no entry of a policy"),
    ],
)
def test_jobs_that_mean_nothing(here, words, error, said):
    with pytest.raises(error, match=said):
        call("erase", "fit.nc", "--out", "kept.nc", *words)
    assert not (here / "kept.nc").exists()


def test_a_model_by_its_function(here):
    words = ("--model", "visits:build", "--rows", "3", "--by", "person", "--out", "kept.nc", "--seed", 0)
    found = json.loads(call("erase", "fit.nc", *words, "--json"))
    assert (found["removed_rows"], found["verdict"]["accepted"]) == (4, True)
    check_mean(here / "kept.nc", *exact(OTHERS))


def test_a_models_file_is_as_any_module(here):
    """With classes that look for their module, and imports that come late."""
    text = (here / "visits.py").read_text()
    (here / "beside.py").write_text("NOISE = 1.0\n")
    late = (
        "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\nclass Settings:\n    n: int\n"
    )
    built = text.replace("def build(draws):\n", "def build(draws):\n    from beside import NOISE\n")
    assert built != text
    (here / "other.py").write_text(late + built)
    call("erase", "fit.nc", "--model", "other:build", "--rows", "3", "--by", "person", "--out", "kept.nc")
    assert (here / "kept.nc").exists()


def test_modules_beside_a_model_are_its_own(here):
    """Two folders with helpers of one name in a process, a helper that is edited, and one that is imported late."""

    def built(folder):
        build = builders.builder("visits:build", str(folder), failed=lambda _, error: error)
        fit = build(here / "fit.nc", lambda subjects: [])
        return int(fit.model.data["size"][0]), fit.code

    alone = builders.builder("visits:build", str(here), failed=lambda _, error: error)
    assert alone(here / "fit.nc", lambda subjects: []).code == f"sha256:{_sha256(here / 'visits.py')}"
    late = "def build(draws):\n    import late, sizes as again\n    assert again is sizes\n"
    text = "import sizes\n" + MODEL.replace("def build(draws):\n", late)
    text = text.replace('{"y":', '{"size": jnp.full(100, sizes.SIZE + late.MORE), "y":')
    for name, size in (("one", 1), ("two", 2)):
        (here / name).mkdir()
        (here / name / "visits.py").write_text(text)
        (here / name / "sizes.py").write_text(f"SIZE = {size}\n")
        (here / name / "late.py").write_text(f"MORE = {size}0\n")
    first, second = built(here / "one"), built(here / "two")
    assert (first[0], second[0]) == (11, 22)
    assert built(here / "one") == first
    (here / "one" / "late.py").write_text("MORE = 400\n")
    edited = built(here / "one")
    assert edited[0] == 401
    assert len({first[1], second[1], edited[1]}) == 3


def test_a_refused_job_writes_no_draws_and_no_certificate(here, monkeypatch, capsys):
    call("keys", "new", "example.org/erasures")
    (here / "job.toml").write_text(JOB.replace("ess = 300", "ess = 1999"))
    assert ended(monkeypatch, "erase", "job.toml", "--json") == REFUSED == 2
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"]["accepted"] is False
    assert told["files"].keys() == {"report", "verdict", "diagnostics"}
    assert "Give the model as well: --model module:function" in told["verdict"]["advice"]
    assert "Refused: 8 rows of 100" in (here / "report.html").read_text()
    model = ("--rows", "12-15", "--model", "visits:build", "--policy", "ess=1e9", "--policy", "refit=false")
    assert ended(monkeypatch, "erase", "fit.nc", *model, "--out", "kept.nc") == REFUSED
    told = capsys.readouterr().out
    assert "or allow a refit: --policy refit=true." in told.lower()
    assert "pe." not in told
    assert not (here / "kept.nc").exists()
    assert not (here / "certificate.json").exists()


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(here):
    before = sorted(here.iterdir())
    told = json.loads(call("erase", "fit.nc", "--rows", "12-15", "--model", "visits:build", "--dry-run", "--json"))
    assert told["removed_rows"] == [12, 13, 14, 15]
    assert (told["rows"], told["doubts"]) == (100, [])
    assert [each["method"] for each in told["methods"]] == ["Reweight", "Transport", "Refit"]
    assert all(0 < each["again"] < each["first"] for each in told["methods"])
    evaluations = [each["evaluations"] for each in told["methods"]]
    assert sorted(evaluations) == evaluations, "the ladder is in order of cost"
    assert sorted(here.iterdir()) == before
    stored = call("erase", "fit.nc", "--rows", "person-03", "--by", "person", "--dry-run", "--out", "kept.nc")
    assert "4 rows of 100 would be erased: 12, 13, 14, 15." in stored
    assert "  Reweight: less than 0.1 s\n" in stored
    assert "Transport" not in stored
    assert sorted(here.iterdir()) == before
    with xr.open_datatree(here / "fit.nc", engine="h5netcdf") as tree:
        apart = tree.load()
    apart["posterior"]["mu"][0] += 1.0
    apart.to_netcdf(here / "apart.nc", engine="h5netcdf")
    assert "Only a refit could be accepted: " in call("erase", "apart.nc", "--rows", "12-15", "--dry-run")


def test_a_dry_run_counts_one_row():
    assert DryRun([17], 60, [], []).lines()[0] == "1 row of 60 would be erased: 17."


def test_a_dry_run_refuses_what_the_request_would_refuse(here):
    with pytest.raises(EmptyRemovalError):
        call("erase", "fit.nc", "--by", "person", "--rows", "person-99", "--dry-run")


def test_all_files_are_written_or_none(here, monkeypatch):
    def fails(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("posterase.report.report.page", fails)
    (here / "job.toml").write_text(JOB.replace('certificate = "certificate.json"\n', ""))
    before = sorted(here.iterdir())
    assert ended(monkeypatch, "erase", "job.toml") == STOPPED
    assert sorted(here.iterdir()) == before


def test_the_file_may_take_the_place_of_the_draws(here):
    call("keys", "new", "example.org/erasures")
    before = _sha256(here / "fit.nc")
    files = ("--out", "fit.nc", "--certificate", "certificate.json", "--force")
    assert "overwritten: delete their copies" in call("erase", "fit.nc", "--rows", "12-15", *files)
    value = json.loads((here / "certificate.json").read_bytes())
    assert value["fingerprints"]["draws"] == {
        "before": load_keys(here / "keys").pseudonym("draws", f"sha256:{before}".encode()),
        "after": f"sha256:{_sha256(here / 'fit.nc')}",
    }
    assert "the draws before, which are still in their file" not in value["not_erased"]


# --- assess and report, from files

FILES = ("--before", "fit.nc", "--after", "refit-1.nc")
EMPTY = ("--before", "empty.nc", "--after", "fit.nc")


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_assessed_and_reported_from_files(here):
    refits = ("--refit", "refit-1.nc", "--refit", "refit-2.nc")
    (here / "against.toml").write_text('draws = "fit.nc"\nrefits = ["refit-1.nc", "refit-2.nc"]\n')
    job = ("erase", "against.toml", "--rows", "12-15", "--seed", 0)
    call(*job, "--out", "kept.nc", "--diagnostics", "first.html", "--report", "report.html")
    assert "Against new fits" in (here / "first.html").read_text()
    assert "were also compared with 2 new fits" in (here / "report.html").read_text()
    assessed = ("assess", "fit.nc", "--rows", "12-15", "--after", "kept.nc", *refits, "--out", "f.nc")
    told = json.loads(call(*assessed, "--json"))
    assert told["contains"] == "information about the removed rows"
    assert told["summary"].startswith("4 rows removed, 96 kept, 2 refits:")
    means = next(each for each in told["metrics"] if each["metric"] == "error of means (sd)")
    assert means["erased"]["value"] < 0.3
    assert "needs the model's density" in told["left_out"]["Stein discrepancy KSD²"]
    with xr.open_datatree(here / "f.nc", engine="h5netcdf") as tree:
        assert tree.attrs["contains"] == "information about the removed rows"
    call(*job, "--out", "again.nc", "--diagnostics", "figures.json", "--report", "verdict.json")
    draws = ("--before", "fit.nc", "--after", "again.nc", *refits)
    call("report", "figures.json", *draws, "--assessment", "f.nc", "--out", "again.html")
    again = (here / "again.html").read_text()
    assert "Contains information about the removed rows" in again
    assert "<h2>Against new fits</h2>" in again
    assert "<td>before</td>" in re.search(r"<h2>What moved</h2>.*?</section>", again, re.DOTALL)[0]
    call("report", "figures.json", "--out", "bare.html")
    assert "What moved is not shown" in (here / "bare.html").read_text()
    call("report", "verdict.json", "--assessment", "f.nc", "--out", "public.html")
    public = (here / "public.html").read_text()
    assert "were also compared with 2 new fits" in public
    assert "Contains information" not in public
    private = {"first.html", "f.nc", "figures.json", "again.html", "bare.html"}
    made = private | {"report.html", "kept.nc", "again.nc", "verdict.json", "public.html"}
    assert {name for name in made if mode_of(here / name) == 0o600} == private


def test_diagnostics_take_the_place_of_a_file_that_others_could_read(here):
    (here / "all.json").write_text("{}")
    (here / "all.json").chmod(0o644)
    call("erase", "fit.nc", "--rows", "12-15", "--out", "kept.nc", "--diagnostics", "all.json", "--force")
    assert mode_of(here / "all.json") == 0o600
    figures = json.loads((here / "all.json").read_text())
    assert next(iter(figures.items())) == ("contains", "information about the removed rows")
    assert figures["methods"][0]["log_evidence_ratio"] is not None


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (("report", "fit.nc", "--out", "a.html"), InputFileError, "is no verdict"),
        (("report", "values.json", "--out", "a.html"), InputFileError, "is no verdict"),
        (("report", "half.json", "--out", "a.html"), InputFileError, "is no verdict"),
        (("report", "nowhere.json", "--out", "a.html"), InputFileError, "cannot be read"),
        (("report", "values.json", "--out", "a.html", "--before", "fit.nc"), InputFileError, "before and after"),
        (("report", "public.json", "--out", "a.html", *FILES), InputFileError, "shows no draws"),
        (("report", "public.json", "--out", "a.html"), InputFileError, "is no verdict"),
        (("report", "half.json", "--out", "a.html", "--assessment", "fit.nc"), InputFileError, "no assessment"),
        (("report", "half.json", "--out", "fit.nc"), OutputError, "already exists"),
        (("report", "list.json", "--out", "a.html", *FILES), InputFileError, "is no verdict"),
        (("report", "half.json", "--out", "a.html", *FILES), InputFileError, "is no verdict"),
        (("report", "good.json", "--out", "a.html", *EMPTY), InputFileError, "posterior"),
        (("assess", "fit.nc", "--rows", "3"), InputFileError, "no draws to assess"),
        (("assess", "fit.nc", "--rows", "3", "--after", "kept.nc"), InputFileError, "there is no file"),
    ],
)
def test_reports_and_assessments_of_nothing(here, words, error, said):
    (here / "values.json").write_text("[1]")
    facts = {"verdict": {}, "policy": {}, "removed_rows": 1, "kept_rows": 2}
    (here / "public.json").write_text(json.dumps(facts | {"methods": []}))
    half = facts | {"methods": [], "contains": "information about the removed rows"}
    (here / "half.json").write_text(json.dumps(half))
    (here / "list.json").write_text(json.dumps(half | {"verdict": []}))
    (here / "good.json").write_text(json.dumps(half | {"verdict": {"accepted": True}}))
    without_draws = xr.DataTree.from_dict({"observed_data": xr.Dataset({"y": ("visit", VALUES)})})
    without_draws.to_netcdf(here / "empty.nc", engine="h5netcdf")
    with pytest.raises(error, match=said):
        call(*words)
    assert not (here / "a.html").exists()


# --- what is said


def test_quiet_says_nothing_and_json_says_one_thing(here, monkeypatch, capsys):
    job = ("erase", "fit.nc", "--rows", "12-15", "--out", "kept.nc", "--force")
    assert ended(monkeypatch, *job, "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    assert ended(monkeypatch, *job, "--json", "--quiet") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["verdict"]["method"] == "Reweight"
    assert said.err == ""
    assert ended(monkeypatch, *job[:-1], "--quiet") == ERROR
    said = capsys.readouterr()
    assert said.out == ""
    assert "already exists" in said.err
    assert ended(monkeypatch, *job[:-1], "--json") == ERROR
    said = capsys.readouterr()
    assert json.loads(said.out)["error"]["kind"] == "OutputError"
    assert "already exists" in said.err
    assert ended(monkeypatch, "erase", "fit.nc", "--json", "--rosw", "3") == ERROR


def test_colours_are_for_terminals(here, monkeypatch, capsys):
    for variable in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    assert ended(monkeypatch, "data", "check") == 0
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert ended(monkeypatch, "data", "check") == 0
    assert "\x1b" in capsys.readouterr().out


def test_ctrl_c_ends_in_one_line(here, monkeypatch, capsys):
    (here / "slow.py").write_text("import os, signal\ndef build(draws):\n    os.kill(os.getpid(), signal.SIGINT)\n")
    before = sorted(here.iterdir())
    job = ("erase", "fit.nc", "--rows", "3", "--model", "slow:build", "--out", "kept.nc", "--report", "report.html")
    before_signal = signal.signal(signal.SIGINT, signal.default_int_handler)  # where tests run unattended it is ignored
    try:
        assert ended(monkeypatch, *job) == STOPPED == 130
    finally:
        signal.signal(signal.SIGINT, before_signal)
    said = capsys.readouterr()
    assert said.err.strip() == "Stopped. What was not finished was not written."
    assert [path for path in sorted(here.iterdir()) if path.name != "__pycache__"] == before


def test_shells_complete_commands(monkeypatch, capsys):
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    assert ended(monkeypatch, "--show-completion") == 0
    script = capsys.readouterr().out
    assert "_POSTERASE_COMPLETE=complete_bash" in script
    assert "complete -o default -F _posterase_completion posterase" in script
    monkeypatch.setenv("_POSTERASE_COMPLETE", "complete_bash")
    for words, found in (("posterase ass", "assess"), ("posterase requests list --state pen", "pending")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        assert ended(monkeypatch) == 0
        assert found in capsys.readouterr().out.split()


def test_row_ids_as_people_write_them():
    assert ids("3, 17 40-42") == [3, 17, 40, 41, 42]
    assert ids("floor > 0") == "floor > 0"


def test_rows_are_erased_from_a_file_that_was_cut_before(here):
    """Ids stay what they were: the condition is resolved once, and its numbers are not taken for labels."""
    call("erase", "fit.nc", "--rows", "12-15", "--policy", "ess=50", "--out", "kept.nc")
    with xr.open_datatree(here / "kept.nc", engine="h5netcdf") as tree:
        dim = tree["log_likelihood"]["y"].dims[-1]
    for number, rows in enumerate(("person == 'person-07'", f"{dim} == 60")):
        call("erase", "kept.nc", "--rows", rows, "--policy", "ess=50", "--out", f"again-{number}.nc")
        with xr.open_datatree(here / f"again-{number}.nc", engine="h5netcdf") as tree:
            assert tree["log_likelihood"].sizes[dim] == (92, 95)[number]
