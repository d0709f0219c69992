"""`posterase erase`, `posterase assess`, `posterase report`: from files to files."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterase.errors import InputFileError, OutputError, PosteraseError
from posterase.files import check_writable, written_whole
from posterase.interfaces.exit_status import REFUSED
from posterase.interfaces.meshes import MeshName, is_first, mesh_of
from posterase.interfaces.output import Said, print_line
from posterase.interfaces.record_options import KeysFolder, keys_folder

if TYPE_CHECKING:
    from posterase.assess.table import Assessment
    from posterase.draws import Draws
    from posterase.erasure import Erasure
    from posterase.interfaces.builders import Fit
    from posterase.interfaces.jobs import Job, Selection
    from posterase.plotting import Sample
    from posterase.record.keyring import Keys

ASKED = "Was anything computed from all rows before the fit (means, scales)? In words, none, or empty: unknown"

Source = Annotated[
    Path, typer.Argument(help="A job, JOB.toml; or draws by ArviZ's schema, a netCDF file or a zarr folder.")
]
Rows = Annotated[str | None, typer.Option(help='A condition, county == "ANOKA", or row ids: 3,17,40-49.')]
RowsFile = Annotated[Path | None, typer.Option(help="Or a text file of row ids and ranges; # begins a comment.")]
By = Annotated[str | None, typer.Option(help="A column: then rows are its values, and all rows that have them go.")]
ModelName = Annotated[
    str | None, typer.Option("--model", help="module:function, build(draws) -> (model, draws). Else log-likelihoods.")
]
RowDim = Annotated[
    list[str] | None, typer.Option(help="Which axis of the log-likelihoods is the rows, where there are several.")
]
Refits = Annotated[
    list[Path] | None, typer.Option("--refit", help="Draws of a new fit without the rows, to compare with; several.")
]
JobSeed = Annotated[int | None, typer.Option(min=0, help="Seed of all random numbers.", show_default="0")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite outputs that are there.")]


def erase(
    said: Said,
    source: Source,
    rows: Rows = None,
    rows_file: RowsFile = None,
    by: By = None,
    model: ModelName = None,
    out: Annotated[Path | None, typer.Option(help="The netCDF file to write.")] = None,
    certificate: Annotated[Path | None, typer.Option(help="A file for a signed certificate, as JSON.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="A file for the report, a page of HTML; of a refusal too.")
    ] = None,
    verdict: Annotated[Path | None, typer.Option(help="A file for verdict and figures, as JSON.")] = None,
    refit: Refits = None,
    row_dim: RowDim = None,
    preprocessing: Annotated[
        str | None, typer.Option(help="What was computed from all rows before the fit, in words; or none.")
    ] = None,
    ess: Annotated[float | None, typer.Option(min=1, help="The fewest effective draws.", show_default="400")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="An entry of the policy, epsilon=0.01 or refit=true; several.")
    ] = None,
    seed: JobSeed = None,
    mesh: MeshName = None,
    force: Force = False,
    folder: KeysFolder = None,
) -> None:
    """Erase rows from draws: new draws, and a certificate and a report where they are asked for.

    A job file says everything that the options say; options come before it. Nothing but report and verdict is written
    where the erasure is refused; the exit status is 2 then.

    Example: `posterase erase fit.nc --rows 'county == "ANOKA"' --out kept.nc`
    """
    from posterase.erasure import erase as erased
    from posterase.interfaces.jobs import Job, policy_flags

    entries = policy_flags(policy or []) | ({} if ess is None else {"ess": ess})
    selected = {"rows": rows, "rows_file": rows_file, "by": by, "model": model, "row_dim": row_dim}
    flags = {**selected, "seed": seed, "mesh": mesh}
    outputs = {"out": out, "certificate": certificate, "report": report, "verdict": verdict}
    job = Job.of(source, **flags, **outputs, preprocessing=preprocessing, refits=refit, policy=entries)
    job.check_files()
    selection, targets, build = job.selection(), job.targets(force=force), job.builder()
    keys = _loaded(folder) if "certificate" in targets else None
    job, started = _asked(job, said), dt.datetime.now(dt.UTC)
    over = mesh_of(job.mesh)
    with said.aside.status("opening the draws and their model"):
        fit = job.open(build)
        refits = job.read_refits(fit.draws)
    removed = selection.ids(fit.table)
    first = is_first()
    progress = said.progress if first else False
    result = erased(
        fit.model, fit.draws, removed, key=job.seed, policy=job.rules, refits=refits, progress=progress, mesh=over
    )
    if not first:
        raise typer.Exit(0 if result.verdict.accepted else REFUSED)
    print_line(str(result))
    compared = refits if result.verdict.accepted and "report" in targets else []
    written = _Made(said, job, selection, fit, result, keys, started).write(targets, compared)
    said.json({**result.to_dict(), "files": {name: str(path) for name, path in written.items()}})
    for name, path in written.items():
        print_line(f"{TITLES[name]}: {_near(path)}")
    if not result.verdict.accepted:
        raise typer.Exit(REFUSED)


TITLES = {"out": "Draws", "certificate": "Certificate", "report": "Report", "verdict": "Verdict"}


def _near(path: Path) -> Path:
    """As somebody here would write it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _loaded(folder: Path | None) -> Keys:
    from posterase.record.keyring import load_keys

    return load_keys(folder or keys_folder())


def _asked(job: Job, said: Said) -> Job:
    """What somebody at a terminal says of preprocessing, where the job does not."""
    if job.preprocessing is not None or job.model is not None or said.as_json or said.quiet or not sys.stdin.isatty():
        return job
    return dataclasses.replace(job, preprocessing=typer.prompt(ASKED, default="", show_default=False) or None)


@dataclasses.dataclass(frozen=True)
class _Made:
    """An erasure, and all that is told of it."""

    said: Said
    job: Job
    selection: Selection
    fit: Fit
    result: Erasure
    keys: Keys | None
    started: dt.datetime

    def write(self, targets: Mapping[str, Path], refits: Sequence[Draws]) -> dict[str, Path]:
        """Write all files, or none; of a refusal verdict and report only."""
        from posterase.interfaces.report import report

        accepted = self.result.verdict.accepted
        wanted = {name: path for name, path in targets.items() if accepted or name in ("report", "verdict")}
        assessment = self._assessed(refits) if refits else None
        with ExitStack() as stack:
            beside = {name: stack.enter_context(written_whole(path)) for name, path in wanted.items()}
            if "out" in beside:
                self.result.draws.save(beside["out"])
            certificate = self._certificate(beside["out"]) if "certificate" in beside else None
            if certificate is not None:
                beside["certificate"].write_bytes(certificate)
            if "report" in beside:
                page = report(self.result, certificate=certificate, assessment=assessment)
                beside["report"].write_text(page, encoding="utf-8")
            if "verdict" in beside:
                beside["verdict"].write_text(json.dumps(self.result.to_dict(), indent=2) + "\n")
        return wanted

    def _assessed(self, refits: Sequence[Draws]) -> Assessment:
        from posterase.assess.assessment import assess

        fit, seed = self.fit, self.job.seed
        return assess(fit.model, fit.draws, self.result, refits, key=seed, progress=self.said.progress)

    def _certificate(self, after: Path) -> bytes:
        from posterase.interfaces.job_certificate import attest

        assert self.keys is not None
        before = self.job.path("draws")
        return attest(
            self.keys,
            self.fit,
            self.result,
            before=before,
            after=after,
            stays=before.resolve() != self.job.path("out").resolve(),
            seed=self.job.seed,
            started=self.started,
            named=self.selection.named,
        )


def assess(
    said: Said,
    source: Source,
    after: Annotated[Path | None, typer.Option(help="The draws after the erasure; else the job's out.")] = None,
    refit: Refits = None,
    rows: Rows = None,
    rows_file: RowsFile = None,
    by: By = None,
    model: ModelName = None,
    row_dim: RowDim = None,
    out: Annotated[Path | None, typer.Option(help="A netCDF file for the figures.")] = None,
    seed: JobSeed = None,
    mesh: MeshName = None,
    force: Force = False,
) -> None:
    """How well were rows forgotten? Every metric that applies, next to its floor: what two new fits differ by.

    Two new fits or more are needed for floors. With stored log-likelihoods alone, metrics that need the model's density
    are left out.

    Example: `posterase assess fit.nc --rows 3,17 --after kept.nc --refit refit-1.nc --refit refit-2.nc`
    """
    from posterase.assess.assessment import assess as assessed
    from posterase.draws import Draws
    from posterase.interfaces.jobs import Job

    selected = {"rows": rows, "rows_file": rows_file, "by": by, "model": model, "row_dim": row_dim}
    flags = {**selected, "seed": seed, "mesh": mesh}
    job = Job.of(source, **flags, refits=refit, out=after)
    job.check_files()
    kept = _kept(job)
    _check_free(out, force)
    selection, build = job.selection(), job.builder()
    over = mesh_of(job.mesh)
    with said.aside.status("opening the draws and their model"):
        fit = job.open(build)
        draws, refits = Draws.load(kept, like=fit.draws.params), job.read_refits(fit.draws)
    removed = selection.ids(fit.table)
    progress = said.progress if is_first() else False
    found = assessed(fit.model, fit.draws, draws, refits, rows=removed, key=job.seed, progress=progress, mesh=over)
    if not is_first():
        return
    print_line(str(found))
    if out is not None:
        with written_whole(out) as beside:
            found.to_netcdf(beside, engine="h5netcdf")
        print_line(f"Figures: {out}")
    said.json(found.to_plain())


def _kept(job: Job) -> Path:
    """The file of draws after the erasure."""
    if job.out is None:
        raise InputFileError("it is not said which draws to assess.", "name them: --after kept.nc.")
    if not job.path("out").exists():
        raise InputFileError(f"there is no file {str(job.path('out'))!r}.", "name the draws: --after kept.nc.")
    return job.path("out")


def report(
    said: Said,
    verdict: Annotated[Path, typer.Argument(help="What `posterase erase --verdict` wrote.")],
    out: Annotated[Path, typer.Option(help="The page of HTML to write.")],
    before: Annotated[Path | None, typer.Option(help="The draws before.")] = None,
    after: Annotated[Path | None, typer.Option(help="The draws after.")] = None,
    refit: Refits = None,
    certificate: Annotated[Path | None, typer.Option(help="The certificate of the erasure.")] = None,
    assessment: Annotated[Path | None, typer.Option(help="What `posterase assess --out` wrote.")] = None,
    title: Annotated[str, typer.Option(help="The page's title.")] = "Erasure report",
    force: Force = False,
) -> None:
    """Make the report again, from files: a page of HTML that needs no network.

    Without the draws before and after, what moved is not shown.

    Example: `posterase report verdict.json --before fit.nc --after kept.nc --out report.html`
    """
    from posterase.assess.table import Assessment
    from posterase.interfaces.report import page

    _check_free(out, force)
    if (before is None) != (after is None):
        raise InputFileError("what moved needs the draws before and after.", "give --before and --after, or neither.")
    told = _told(verdict)
    signed = None if certificate is None else _bytes(certificate)
    found = None if assessment is None else Assessment.read(assessment)
    try:
        samples = [] if before is None or after is None else _samples(told, before, after, refit or [])
        made = page(told, samples, certificate=signed, assessment=found, title=title)
    except PosteraseError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _no_verdict(verdict) from None
    with written_whole(out) as beside:
        beside.write_text(made, encoding="utf-8")
    print_line(f"Report: {out}")
    said.json({"report": str(out)})


def _told(path: Path) -> dict[str, Any]:
    """What an erasure's file says."""
    try:
        value = json.loads(_bytes(path))
    except ValueError:
        raise _no_verdict(path) from None
    if not isinstance(value, dict) or not {"verdict", "rungs", "policy", "removed_rows", "kept_rows"} <= value.keys():
        raise _no_verdict(path)
    return value


def _no_verdict(path: Path) -> InputFileError:
    return InputFileError(f"{str(path)!r} is no verdict of an erasure.", "give what posterase erase --verdict wrote.")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputFileError(f"{str(path)!r} cannot be read: {error.strerror}.", "check the path.") from None


def _samples(told: Mapping[str, Any], before: Path, after: Path, refits: Sequence[Path]) -> list[Sample]:
    """Draws of files, of the parameters that all of them have in one shape: groups without rows are cut out."""
    import xarray as xr

    from posterase.bridges.arviz import opened
    from posterase.draws import Draws
    from posterase.plotting import Sample

    label = "after" if told["verdict"]["accepted"] else "after (refused)"
    trees = [xr.DataTree.from_dict(opened(path)).load() for path in (before, after, *refits)]
    labels = ["before", label, *("refit" for _ in refits)]
    shapes: list[set[tuple[Any, ...]]] = [
        {(str(name), *values.shape[2:]) for name, values in tree["posterior"].data_vars.items() if _real(values)}
        for tree in trees
    ]
    common = {name for name, *_ in set.intersection(*shapes)}
    watched = {name for rung in told["rungs"] for name in rung.get("ess", {})}
    names = sorted(common & watched) or sorted(common)
    if not names:
        raise InputFileError("the files of draws have no parameters in common.", "give draws of one model.")
    drawn = [Draws.from_arviz(tree, var_names=names) for tree in trees]
    return [Sample.of(label, each) for label, each in zip(labels, drawn, strict=True)]


def _real(values: Any) -> bool:
    return values.dtype.kind == "f" and values.dims[:2] == ("chain", "draw")


def _check_free(target: Path | None, force: bool) -> None:
    if target is not None:
        check_writable(target)
        if target.exists() and not force:
            raise OutputError(f"{str(target)!r} is there already.", "name another file, or allow it: --force.")
