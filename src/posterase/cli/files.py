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

from posterase.cli.exit_status import REFUSED
from posterase.cli.output import Said, print_line
from posterase.cli.record_options import KeysFolder, keys_folder
from posterase.draws.notes import CONTAINS
from posterase.errors import InputFileError, OutputError, PosteraseError
from posterase.projects.advice import as_options
from posterase.projects.meshes import MeshName, is_first, mesh_of
from posterase.runtime.files import check_writable, written_whole

if TYPE_CHECKING:
    from posterase.draws.draws import Draws
    from posterase.ladder.result import Result
    from posterase.ladder.verdict import Verdict
    from posterase.metrics.table import Assessment
    from posterase.plotting.figures import Sample
    from posterase.projects.builders import Fit
    from posterase.projects.jobs import Job, Selection
    from posterase.record.ledger.keyring import Keys

PREPROCESSING = (
    "Was anything (means, scales) computed from all rows before the fit? In words; none; or empty if unknown"
)

Source = Annotated[Path, typer.Argument(help="JOB.toml, or draws (netCDF or zarr).", metavar="SOURCE")]
Rows = Annotated[str | None, typer.Option(help="A condition, ids (3,17,40-49), or @FILE.", metavar="ROWS")]
By = Annotated[str | None, typer.Option(help="The column whose values --rows lists.", metavar="COLUMN")]
ModelName = Annotated[
    str | None, typer.Option("--model", help="module:function that builds the model.", metavar="NAME")
]
RowDim = Annotated[list[str] | None, typer.Option(help="The axis of rows in log-likelihoods.", metavar="NAME")]
Refits = Annotated[
    list[Path] | None,
    typer.Option("--refit", help="Draws of a new fit without the rows, to compare with; repeatable.", metavar="FILE"),
]
JobSeed = Annotated[int | None, typer.Option(help="For tests. Default: fresh entropy.", metavar="INT")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]


def erase(
    said: Said,
    source: Source,
    rows: Rows = None,
    by: By = None,
    model: ModelName = None,
    out: Annotated[Path | None, typer.Option(help="The netCDF file to write.", metavar="FILE")] = None,
    certificate: Annotated[Path | None, typer.Option(help="A signed certificate, as JSON.", metavar="FILE")] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option(help="Report .html, verdict .json; repeatable.", metavar="FILE"),
    ] = None,
    diagnostics: Annotated[
        Path | None,
        typer.Option(
            help="All figures (.html or .json). They contain information about the removed rows.", metavar="FILE"
        ),
    ] = None,
    row_dim: RowDim = None,
    preprocessing: Annotated[
        str | None, typer.Option(help="What was computed from all rows, or none.", metavar="TEXT")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="A method to try; repeatable. Default: a ladder.", metavar="NAME")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Such as ess=1000, refit=false; repeatable.", metavar="K=V"),
    ] = None,
    seed: JobSeed = None,
    mesh: MeshName = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show rows, methods and times; no more.")] = False,
    force: Force = False,
    folder: KeysFolder = None,
) -> None:
    """Erase rows from draws: write new draws and, on request, a certificate and a report.

    Options override the job file. A refusal writes no draws and no certificate; its exit status is 2. The removed rows
    cannot be read from the outputs, except --diagnostics.

    Example: `posterase erase fit.nc --rows 'county == "ANOKA"' --out kept.nc`
    """
    from posterase.ladder.erase import erase as erased
    from posterase.projects.jobs import Job, policy_flags

    selected = {"rows": rows, "by": by, "model": model, "row_dim": row_dim}
    flags: dict[str, Any] = {**selected, "seed": seed, "mesh": mesh, "preprocessing": preprocessing}
    flags["methods"] = tuple(method or ())
    outputs = {"out": out, "certificate": certificate, "diagnostics": diagnostics, **_by_kind(report or [])}
    job = Job.of(source, **flags, **outputs, policy=policy_flags(policy or []))
    job.check_files()
    if dry_run:
        _print_dry_run(job, said)
        return
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
        fit.model,
        fit.draws,
        fit.model.change(remove=removed),
        random_seed=job.seed,
        policy=job.rules,
        methods=job.methods or None,
        refits=refits,
        progress=progress,
        mesh=over,
    )
    result = dataclasses.replace(result, verdict=_for_commands(result.verdict))
    if not first:
        raise typer.Exit(0 if result.verdict.accepted else REFUSED)
    print_line(result.public_text())
    in_a_page = targets.get("diagnostics", Path()).suffix == ".html"
    finished = _Finished(said, job, selection, fit, result, keys, started)
    written = finished.write(targets, refits if result.verdict.accepted and in_a_page else [])
    said.json({**result.to_dict(), "files": {name: str(path) for name, path in written.items()}})
    for name, path in written.items():
        print_line(f"{TITLES[name]}: {_near(path)}")
    if "diagnostics" in written:
        print_line(f"{_near(written['diagnostics'])} contains {CONTAINS}: keep it no longer than the draws before.")
    if not result.verdict.accepted:
        raise typer.Exit(REFUSED)
    if finished.old_draws_stay:
        print_line(f"The draws before are still in {_near(job.path('draws'))}: delete it and its copies.")
    else:
        print_line("The draws before were overwritten: delete their copies.")
    print_line("Whoever holds the draws before and after can reconstruct much of what was removed.")


def _by_kind(reports: Sequence[Path]) -> dict[str, Path]:
    """Tell the report, a page, from the verdict, JSON."""
    found: dict[str, Path] = {}
    for path in reports:
        kind = "verdict" if path.suffix == ".json" else "report"
        if kind in found:
            raise OutputError(
                f"--report names two files of one kind, {found[kind].name!r} and {path.name!r}.",
                "name one .html and one .json file.",
            )
        found[kind] = path
    return found


def _print_dry_run(job: Job, said: Said) -> None:
    from posterase.cli.dry_run import dry_run

    selection, build = job.selection(), job.builder()
    with said.aside.status("opening the draws and their model"):
        fit = job.open(build)
    found = dry_run(fit, selection.ids(fit.table), job.rules, job.methods or None)
    for line in found.lines():
        print_line(line)
    said.json(found.to_dict())


def _for_commands(verdict: Verdict) -> Verdict:
    """The verdict with options instead of arguments in its advice."""
    notes = tuple(dataclasses.replace(note, text=as_options(note.text)) for note in verdict.notes)
    return dataclasses.replace(verdict, advice=as_options(verdict.advice), notes=notes)


TITLES = {
    "out": "Draws",
    "certificate": "Certificate",
    "report": "Report",
    "verdict": "Verdict",
    "diagnostics": "Diagnostics",
}


def _near(path: Path) -> Path:
    """The path relative to the current folder, if it is inside it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _loaded(folder: Path | None) -> Keys:
    from posterase.record.ledger.keyring import load_keys

    return load_keys(folder or keys_folder())


def _asked(job: Job, said: Said) -> Job:
    """Ask about preprocessing on a terminal, if the job says nothing about it."""
    if job.preprocessing is not None or job.model is not None or said.as_json or said.quiet or not sys.stdin.isatty():
        return job
    return dataclasses.replace(job, preprocessing=typer.prompt(PREPROCESSING, default="", show_default=False) or None)


@dataclasses.dataclass(frozen=True)
class _Finished:
    """A finished erasure, and everything that its files are made from."""

    said: Said
    job: Job
    selection: Selection
    fit: Fit
    result: Result
    keys: Keys | None
    started: dt.datetime

    @property
    def old_draws_stay(self) -> bool:
        """Whether the new draws were written to another file than the old ones."""
        return self.job.path("draws").resolve() != self.job.path("out").resolve()

    def write(self, targets: Mapping[str, Path], refits: Sequence[Draws]) -> dict[str, Path]:
        """Write all files, or none; of a refusal no draws and no certificate."""
        from posterase.plotting.figures import samples_of
        from posterase.report.diagnostics import diagnostics_page
        from posterase.report.report import page

        result, refused = self.result, not self.result.verdict.accepted
        public, private = self._dated(result.to_dict()), self._dated(result.diagnostics_dict())
        wanted = {name: path for name, path in targets.items() if not refused or name not in ("out", "certificate")}
        assessment = self._assessed(refits) if refits else None
        with ExitStack() as stack:
            beside = {
                name: stack.enter_context(written_whole(path, private=name == "diagnostics"))
                for name, path in wanted.items()
            }
            if "out" in beside:
                result.draws.save(beside["out"], overwrite=True)  # an empty file that is there already
            certificate = self._certificate(beside["out"]) if "certificate" in beside else None
            if certificate is not None:
                beside["certificate"].write_bytes(certificate)
            if "report" in beside:
                made = page(public, certificate=certificate, assessment=assessment)
                beside["report"].write_text(made, encoding="utf-8")
            if "verdict" in beside:
                beside["verdict"].write_text(_indented(public), encoding="utf-8")
            if "diagnostics" in beside and beside["diagnostics"].suffix == ".json":
                beside["diagnostics"].write_text(_indented(private), encoding="utf-8")
            elif "diagnostics" in beside:
                made = diagnostics_page(private, samples_of(result), certificate=certificate, assessment=assessment)
                beside["diagnostics"].write_text(made, encoding="utf-8")
        return wanted

    def _dated(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The facts with the date and the names of the files of draws."""
        names = {"before": self.job.path("draws").name}
        if self.result.verdict.accepted:
            names["after"] = self.job.path("out").name
        return {**facts, "date": self.started.date().isoformat(), "draws_files": names}

    def _assessed(self, refits: Sequence[Draws]) -> Assessment:
        from posterase.metrics.assessment import assess

        fit, seed = self.fit, self.job.seed or 0
        return assess(fit.model, fit.draws, self.result, refits, random_seed=seed, progress=self.said.progress)

    def _certificate(self, after: Path) -> bytes:
        from posterase.projects.certificate import attest

        assert self.keys is not None
        return attest(
            self.keys,
            self.fit,
            self.result,
            before=self.job.path("draws"),
            after=after,
            stays=self.old_draws_stay,
            started=self.started,
            named=self.selection.named,
        )


def _indented(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


def assess(
    said: Said,
    source: Source,
    after: Annotated[Path | None, typer.Option(help="The draws after the erasure. Default: the job's out.")] = None,
    refit: Refits = None,
    rows: Rows = None,
    by: By = None,
    model: ModelName = None,
    row_dim: RowDim = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A netCDF file for the figures. It contains information about the removed rows, and only its owner "
            "can read it (mode 0600)."
        ),
    ] = None,
    seed: JobSeed = None,
    mesh: MeshName = None,
    force: Force = False,
) -> None:
    """How well were rows forgotten? Every metric that applies, next to its floor: what two new fits differ by.

    Floors need at least two new fits. With stored log-likelihoods alone, metrics that need the model's density are left
    out. The figures summarise the draws before, and so contain information about the removed rows.

    Example: `posterase assess fit.nc --rows 3,17 --after kept.nc --refit refit-1.nc --refit refit-2.nc`
    """
    from posterase.draws.draws import Draws
    from posterase.metrics.assessment import assess as assessed
    from posterase.projects.jobs import Job

    selected = {"rows": rows, "by": by, "model": model, "row_dim": row_dim}
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
    found = assessed(
        fit.model, fit.draws, draws, refits, rows=removed, random_seed=job.seed or 0, progress=progress, mesh=over
    )
    if not is_first():
        return
    found.attrs["contains"] = CONTAINS
    print_line(str(found))
    if out is not None:
        with written_whole(out, private=True) as beside:
            found.to_netcdf(beside, engine="h5netcdf")
        print_line(f"Figures: {out}")
    print_line(f"These figures contain {CONTAINS}.")
    said.json({"contains": CONTAINS, **found.to_plain()})


def _kept(job: Job) -> Path:
    """The file of draws after the erasure."""
    if job.out is None:
        raise InputFileError("no draws to assess were named.", "pass them: --after kept.nc.")
    if not job.path("out").exists():
        raise InputFileError(f"there is no file {str(job.path('out'))!r}.", "pass the draws: --after kept.nc.")
    return job.path("out")


def report(
    said: Said,
    source: Annotated[
        Path,
        typer.Argument(help="JSON that `posterase erase` wrote by --report or by --diagnostics.", metavar="FILE"),
    ],
    out: Annotated[Path, typer.Option(help="The page of HTML to write.")],
    before: Annotated[Path | None, typer.Option(help="The draws before; needs --diagnostics.")] = None,
    after: Annotated[Path | None, typer.Option(help="The draws after; needs --diagnostics.")] = None,
    refit: Refits = None,
    certificate: Annotated[Path | None, typer.Option(help="The certificate of the erasure.")] = None,
    assessment: Annotated[Path | None, typer.Option(help="What `posterase assess --out` wrote.")] = None,
    title: Annotated[
        str | None, typer.Option(help="The page's title. Default: Erasure report, or Erasure diagnostics.")
    ] = None,
    force: Force = False,
) -> None:
    """Make the report again, from files: a page of HTML that needs no network.

    From a verdict it is the public report. From diagnostics it is the page of all figures, with the draws before and
    after where they are given: it contains information about the removed rows, and only its owner can read it (mode
    0600).

    Example: `posterase report diagnostics.json --before fit.nc --after kept.nc --out diagnostics.html`
    """
    from posterase.metrics.table import Assessment
    from posterase.report.diagnostics import diagnostics_page
    from posterase.report.report import page

    _check_free(out, force)
    if (before is None) != (after is None):
        raise InputFileError("what moved needs the draws before and after.", "give --before and --after, or neither.")
    facts = _facts(source)
    private = "contains" in facts
    if before is not None and not private:
        raise InputFileError(
            "a public report shows no draws: those before hold what was erased.",
            "give what posterase erase --diagnostics wrote, or leave --before and --after out.",
        )
    signed = None if certificate is None else _bytes(certificate)
    found = None if assessment is None else Assessment.read(assessment)
    try:
        if private:
            samples = [] if before is None or after is None else _samples(facts, before, after, refit or [])
            name = title or "Erasure diagnostics"
            made = diagnostics_page(facts, samples, certificate=signed, assessment=found, title=name)
        else:
            made = page(facts, certificate=signed, assessment=found, title=title or "Erasure report")
    except PosteraseError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _no_verdict(source) from None
    with written_whole(out, private=private) as beside:
        beside.write_text(made, encoding="utf-8")
    print_line(f"{'Diagnostics' if private else 'Report'}: {out}")
    said.json({"report": str(out)})


def _facts(path: Path) -> dict[str, Any]:
    """Read the JSON of an erasure: a public verdict, or diagnostics."""
    try:
        value = json.loads(_bytes(path))
    except ValueError:
        raise _no_verdict(path) from None
    shared = {"verdict", "policy", "removed_rows", "kept_rows"}
    if not isinstance(value, dict) or not shared | {"methods"} <= value.keys():
        raise _no_verdict(path)
    return value


def _no_verdict(path: Path) -> InputFileError:
    return InputFileError(
        f"{str(path)!r} is no verdict of an erasure.",
        "give the JSON that posterase erase wrote by --report or --diagnostics.",
    )


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputFileError(f"{str(path)!r} cannot be read: {error.strerror}.", "check the path.") from None


def _samples(facts: Mapping[str, Any], before: Path, after: Path, refits: Sequence[Path]) -> list[Sample]:
    """Read draws from files: the parameters that have the same shape in all of them."""
    import xarray as xr

    from posterase.bridges.shared.groups import opened
    from posterase.draws.draws import Draws
    from posterase.plotting.figures import Sample

    label = "after" if facts["verdict"]["accepted"] else "after (refused)"
    trees = [xr.DataTree.from_dict(opened(path)).load() for path in (before, after, *refits)]
    labels = ["before", label, *("refit" for _ in refits)]
    shapes: list[set[tuple[Any, ...]]] = [
        {(str(name), *values.shape[2:]) for name, values in tree["posterior"].data_vars.items() if _real(values)}
        for tree in trees
    ]
    common = {name for name, *_ in set.intersection(*shapes)}
    watched = {name for method in facts["methods"] for name in method.get("ess", {})}
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
            raise OutputError(f"{str(target)!r} already exists.", "name another file, or pass --force.")
