"""`posterase demo`, `reproduce` and `bench`: experiments from nothing, with their tables and figures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from posterase.cli.output import Commands, Said, print_line
from posterase.cli.progress_bars import bars, shown_on
from posterase.errors import InputFileError, InvalidOptionError, MissingExtraError
from posterase.runtime.files import make_folder, written_whole
from posterase.runtime.optional import need
from posterase.runtime.text import did_you_mean

if TYPE_CHECKING:
    from posterase.experiments.posterior_bench import Done
    from posterase.experiments.recipes import SamplerName

reproduce = Commands(help="Run an experiment from nothing and write its figure and results.", no_args_is_help=True)
bench = Commands(help="Measure methods on real posteriors and write the table.", no_args_is_help=True)

Out = Annotated[Path, typer.Option(help="Folder for figures and results; made where it is not there.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")]


def demo(said: Said, out: Out = Path("posterase-demo"), seed: Seed = 0) -> None:
    """One person is erased from a real posterior; then the paper's Gaussian mixture forgets 800 of 2,000 points.

    First, a regression on 442 patients: the fit, the erasure of one patient, and a new fit to compare with. Then the
    paper's Section 5.1, by SGLD and SGHMC.

    Example: `posterase demo --out /tmp`
    """
    shown = _erase_one_person(said, out, seed)
    paper = _reproduce_gmm(said, out, seed, samplers=("sgld", "sghmc"), chains=4, ablation=False)
    said.json({"one_person": shown, **paper, "files": [*shown["files"], *paper["files"]]})
    Console().print(
        "What to try next: `posterase reproduce gmm` (more chains, and what the sampler's steps do without the shift), "
        "`posterase reproduce diabetes` (an exact answer to compare with), and the tutorial *Forget one person* on a "
        "survey.",
        markup=False,
    )


def _erase_one_person(said: Said, out: Path, seed: int) -> dict[str, Any]:
    """The product in one request; its figure and results."""
    from posterase.experiments import figures, one_person, tables

    folder, console = make_folder(out), Console()
    with said.aside.status("") as status:
        seen = one_person.run(seed, report=status.update)
    console.print(tables.one_person_table(seen), "")
    print_line(f"{seen.result}\n")
    erasing, fitting = seen.erasing, seen.fitting
    console.print(
        f"Erasing took {erasing.first:.1f} s the first time and {erasing.again:.2f} s again; a new fit by NUTS, "
        f"{fitting.first:.1f} s and {fitting.again:.2f} s. The first time includes compilation.",
        highlight=False,
    )
    made = tables.one_person_plain(seen)
    results = folder / "one-person.json"
    _write_json(results, made)
    drawn = _draw(lambda: figures.draw_one_person(seen, folder / "one-person.png"))
    print_line(f"Results: {results}\n")
    return {**made, "files": [*([drawn] if drawn else []), str(results)]}


@reproduce.command("gmm")
def reproduce_gmm(
    said: Said,
    out: Out = Path("posterase-gmm"),
    seed: Seed = 0,
    sampler: Annotated[str, typer.Option(help="sgld, sghmc or both.")] = "both",
    chains: Annotated[int, typer.Option(min=1, max=1000, help="Chains of each posterior.")] = 8,
) -> None:
    """The paper's Gaussian mixture (Section 5.1, Appendix C): table, Figure 1, and every setting as JSON.

    Example: `posterase reproduce gmm --sampler sgld --seed 1 --out /tmp`
    """
    from posterase.experiments.recipes import named_samplers

    said.json(_reproduce_gmm(said, out, seed, named_samplers(sampler), chains, ablation=True))


@reproduce.command("diabetes")
def reproduce_diabetes(said: Said, out: Out = Path("posterase-diabetes"), seed: Seed = 0) -> None:
    """A regression forgets patients: before, after each method, and the exact answer.

    Example: `posterase reproduce diabetes --out /tmp`
    """
    from posterase.experiments import diabetes, figures, tables

    target = make_folder(out) / "diabetes.png"
    console = Console()
    with said.aside.status("drawing from the posterior of 442 patients") as status:
        requests = diabetes.run(seed, report=status.update)
    for request in requests:
        console.print(tables.diabetes_table(request), "")
    console.print(
        "The floor is an independent sample of the exact answer, of the same size: what chance alone leaves.\n"
        "A shift mends the means and leaves the spreads; weights mend both, as long as their diagnostics pass."
    )
    drawn = _draw(lambda: figures.draw_diabetes(requests, target))
    said.json({"requests": [tables.diabetes_plain(each) for each in requests], "figure": drawn})


@reproduce.command("methods")
def reproduce_methods(said: Said, out: Out = Path("posterase-methods"), seed: Seed = 0) -> None:
    """What every method of the ladder does to the same cloud of draws: a regression of two parameters, seen.

    Example: `posterase reproduce methods --out /tmp`
    """
    from posterase.experiments import clouds, figures, tables

    target = make_folder(out) / "methods.png"
    console = Console()
    with said.aside.status("sampling") as status:
        seen = clouds.run(seed, report=status.update)
    console.print(tables.methods_table(seen), "")
    drawn = _draw(lambda: figures.draw_methods(seen, target))
    said.json({"forgot": seen.n_removed, "answers": tables.methods_plain(seen), "figure": drawn})


Sampler = Annotated[str, typer.Option(help="sgld, sghmc or both.")]
Removed = Annotated[int | None, typer.Option(help="One of the experiment's two numbers of removed rows; else both.")]
Quick = Annotated[bool, typer.Option("--quick", help="A tenth of everything, for a look on a CPU.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Run nothing: list what would run, and an estimate of the time.")
]
Data = Annotated[Path | None, typer.Option(help="A data folder to look in first; `posterase data where` lists others.")]
Precision = Annotated[
    Literal["float32", "bfloat16"] | None,
    typer.Option(help="Of the products of matrices; parameters and noise are float32 in both. Else as the data set's."),
]
Pretraining = Annotated[bool, typer.Option("--pretraining/--no-pretraining", help="Start from a pre-trained network.")]
Without = Annotated[
    list[str] | None, typer.Option(help="A method to leave out; may be given several times.", metavar="NAME")
]


@reproduce.command("fashion-mnist")
def reproduce_fashion_mnist(
    said: Said,
    out: Out = Path("posterase-fashion-mnist"),
    seed: Seed = 0,
    sampler: Sampler = "both",
    removed: Removed = None,
    quick: Quick = False,
    dry_run: DryRun = False,
    data: Data = None,
    precision: Precision = None,
    pretraining: Pretraining = True,
    without: Without = None,
) -> None:
    """The paper's LeNet on Fashion-MNIST (Section 5.2, Appendix D): Tables 2 and 3 and Figure 4, beside the paper's.

    Goes on where a run with the same settings was cut. For a GPU; `--quick` for a CPU.

    Example: `posterase reproduce fashion-mnist --sampler sgld --removed 4000 --dry-run`
    """
    _reproduce_networks(
        said, "fashion-mnist", out, seed, sampler, removed, quick, dry_run, data, precision, pretraining, without
    )


@reproduce.command("cifar10")
def reproduce_cifar10(
    said: Said,
    out: Out = Path("posterase-cifar10"),
    seed: Seed = 0,
    sampler: Sampler = "both",
    removed: Removed = None,
    quick: Quick = False,
    dry_run: DryRun = False,
    data: Data = None,
    precision: Precision = None,
    pretraining: Pretraining = True,
    without: Without = None,
) -> None:
    """The paper's network on CIFAR-10 (Section 5.2): Tables 1 and 3 and Figures 2 and 3, beside the paper's.

    Goes on where a run with the same settings was cut. For a GPU; `--quick` for a CPU.

    Example: `posterase reproduce cifar10 --dry-run`
    """
    _reproduce_networks(
        said, "cifar10", out, seed, sampler, removed, quick, dry_run, data, precision, pretraining, without
    )


@reproduce.command("digits")
def reproduce_digits(
    said: Said,
    out: Out = Path("posterase-digits"),
    seed: Seed = 0,
    sampler: Sampler = "sgld",
    removed: Removed = None,
    dry_run: DryRun = False,
) -> None:
    """The whole experiment on a small network and scikit-learn's digits, on a CPU, from nothing.

    Example: `posterase reproduce digits --out /tmp`
    """
    _reproduce_networks(said, "digits", out, seed, sampler, removed, False, dry_run, None, None, True, None)


@reproduce.command("page")
def reproduce_page(
    said: Said,
    results: Annotated[Path, typer.Argument(help="The folder that blocks' results were written to.")],
    out: Annotated[Path, typer.Option(help="The page to write; its folder is made.")] = Path("networks.md"),
    data: Data = None,
) -> None:
    """The page of the networks' experiment, from all blocks in a folder; their tables and figures are written anew.

    Example: `posterase reproduce page docs/results/networks --out docs/results/networks.md`
    """
    from posterase.cli import network_runs

    page, *others = network_runs.write_page(results, out, data)
    print_line(f"Page: {page}; in {results}: {', '.join(path.name for path in others)}")
    said.json({"page": str(page), "files": [str(path) for path in others]})


def _reproduce_networks(
    said: Said,
    dataset: str,
    out: Path,
    seed: int,
    sampler: str,
    removed: int | None,
    quick: bool,
    dry_run: bool,
    data: Path | None,
    precision: str | None,
    pretraining: bool,
    without: list[str] | None,
) -> None:
    from posterase.cli import network_runs

    changes: dict[str, str | None] = {} if precision is None else {"precision": precision}
    if not pretraining:
        changes["pretraining"] = None
    methods = network_runs.all_but(without or [])
    blocks = network_runs.chosen(dataset, sampler, removed, quick, seed=seed, **changes)
    if dry_run:
        network_runs.dry_run(said, blocks, out, methods)
    else:
        network_runs.run_blocks(said, blocks, out, data, methods)


@bench.command("posteriors")
def bench_posteriors(
    said: Said,
    posteriordb: Annotated[
        Path | None,
        typer.Option(help="Folder with posteriordb's data/ and draws/; without it, posteriordb in $POSTERASE_DATA."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write; its folder is made.")] = Path("posteriors.md"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a run was cut: what it had finished is beside OUT, as JSON.")
    ] = False,
) -> None:
    """Rows removed from reference draws of seven real posteriors, through every bridge, against NUTS refits.

    Takes most of an hour on two cores: every erasure is refitted several times by every library.

    Example: `posterase bench posteriors --posteriordb posteriordb`
    """
    if posteriordb is None and "POSTERASE_DATA" not in os.environ:
        raise InvalidOptionError(
            "there is no folder of posteriordb.", "name it: --posteriordb FOLDER, or set POSTERASE_DATA."
        )
    folder = Path(os.environ["POSTERASE_DATA"]) / "posteriordb" if posteriordb is None else posteriordb
    make_folder(out.parent)
    for module, extra in (("numpyro", "numpyro"), ("pymc", "pymc"), ("httpstan", "stan")):
        need(module, "posterase bench posteriors", extra)
    from posterase.experiments import posterior_bench
    from posterase.experiments.machine import machine

    beside_out = out.with_suffix(".json")
    finished = _finished(beside_out) if resume and beside_out.exists() else []
    console = Console()
    with shown_on(said.aside) as progress:
        task = progress.add_task("")
        done = posterior_bench.run(
            folder,
            lambda what, done, total: progress.update(task, description=what, completed=done, total=total),
            done=finished,
            keep=lambda found: _write_json(beside_out, [each.to_dict() for each in found]),
        )
    summary = posterior_bench.summary(done)
    about = f"From `posterase bench posteriors`: {machine()}."
    text = ["# Real posteriors, through every bridge", "", about, "", posterior_bench.__doc__ or "", summary, ""]
    with written_whole(out) as beside:
        beside.write_text("\n".join([*text, *posterior_bench.lines(done)]) + "\n")
    console.print(summary)
    print_line(f"Table: {out}")
    said.json({"summary": summary, "table": str(out), "results": [each.to_dict() for each in done]})


@bench.command("trust")
def bench_trust(
    said: Said,
    out: Annotated[Path, typer.Option(help="The file to write; its folder is made.")] = Path("trust.md"),
    seeds: Annotated[int, typer.Option(min=1, help="Data sets of each family.")] = 5,
    family: Annotated[list[str] | None, typer.Option(help="One family; repeatable.", metavar="NAME")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes side by side, each on one core.")] = 1,
    refits: Annotated[bool, typer.Option("--refits/--no-refits", help="Refit in every case, to compare with.")] = True,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A registered method to climb; repeatable. Default: the ladder.", metavar="NAME"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a run was cut: what it had finished is beside OUT, as JSON.")
    ] = False,
) -> None:
    """Erasures from posteriors that are known exactly: what was accepted, what was refused, and what was wrong.

    Takes about an hour on two cores.

    Example: `posterase bench trust --seeds 1 --jobs 2`
    """
    from posterase.experiments.grids import markdown
    from posterase.experiments.machine import machine
    from posterase.experiments.trust import bench as trust
    from posterase.experiments.trust.families import families
    from posterase.methods import find_method

    known = [each.name for each in families()]
    for name in family or []:
        if name not in known:
            raise InvalidOptionError(f"there is no family {name!r}.", did_you_mean(name, known, f"one of: {known}."))
    for name in method or []:
        find_method(name)
    make_folder(out.parent)
    beside_out = out.with_suffix(".json")
    finished = []
    if resume and beside_out.exists():
        finished = [trust.Outcome.from_dict(each) for each in json.loads(beside_out.read_text())]
    with shown_on(said.aside) as progress:
        task = progress.add_task("")
        outcomes = trust.run(
            range(seeds),
            family or (),
            jobs=jobs,
            refits=refits,
            methods=method or (),
            done=finished,
            report=lambda what, done, total: progress.update(task, description=what, completed=done, total=total),
            keep=lambda found: _write_json(beside_out, [each.to_dict() for each in found]),
        )
    summary, wrong = trust.summary(outcomes), trust.wrong_ones(outcomes)
    chosen = [f'--family "{name}"' for name in family or []]
    chosen += [f"--method {name}" for name in method or []]
    command = " ".join([f"posterase bench trust --seeds {seeds}", *chosen, *([] if refits else ["--no-refits"])])
    text = ["# Can the verdict be trusted?", "", f"From `{command}`: {machine()}.", "", trust.__doc__ or "", summary]
    for table in trust.tables(outcomes):
        text += ["", markdown(table)]
    if wrong:
        text += ["", "**Wrong, or needlessly refused**", "", *(f"- {each}" for each in wrong)]
    with written_whole(out) as beside:
        beside.write_text("\n".join(text) + "\n")
    Console().print(summary, markup=False)
    print_line(f"Table: {out}")
    said.json({"summary": summary, "table": str(out), "results": [each.to_dict() for each in outcomes]})


def _finished(path: Path) -> list[Done]:
    """What a run that was cut had finished."""
    from posterase.experiments.posterior_bench import Done

    try:
        return [Done.from_dict(each) for each in json.loads(path.read_text())]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputFileError(
            f"{str(path)!r} does not hold a run that was cut.", "leave --resume out, or name another --out."
        ) from None


def _reproduce_gmm(
    said: Said, out: Path, seed: int, samplers: tuple[SamplerName, ...], chains: int, ablation: bool
) -> dict[str, Any]:
    from posterase.experiments import figures, gmm, tables

    figure, results, timings = (make_folder(out) / name for name in ("gmm.png", "gmm.json", "timings.json"))
    console = Console()
    outcomes = []
    for sampler in samplers:
        settings = gmm.Settings(seed=seed, sampler=sampler, chains=chains, ablation=ablation)
        with shown_on(said.aside) as progress:
            outcomes.append(gmm.run(settings, bars(progress, f"{sampler.upper()}: ")))
        console.print(tables.gmm_table(outcomes[-1]), "")
    console.print(
        "The target is the posterior retrained on the kept points; the floor, two such: what chance leaves.\n"
        "`processed`: every stored draw moved by the paper's shift, which mends means and leaves spreads.\n"
        "`then sampled on`: the live chain, which samples the points that are left all the while, and goes on to."
    )
    for outcome in outcomes:
        retraining, request = outcome.seconds["retraining"], outcome.seconds["a request"]
        console.print(
            f"{outcome.settings.sampler.upper()}: retraining {retraining:.3f} s, a request of "
            f"{outcome.settings.request_rows} points {request:.4f} s: {retraining / request:.0f} times faster "
            f"({chains} chains together, compilation apart). All {outcome.requests} requests together take "
            f"{outcome.requests * request:.2f} s, {outcome.requests * request / retraining:.1f} retrainings: in such "
            f"small pieces, erasing costs {'more' if outcome.requests * request > retraining else 'less'} than "
            f"retraining once. The series' last term was {outcome.last_term:.2f} of its first at most."
        )
    _write_json(results, {outcome.settings.sampler: gmm.to_dict(outcome) for outcome in outcomes})
    _write_json(timings, {outcome.settings.sampler: outcome.seconds for outcome in outcomes})
    _draw(lambda: figures.draw_gmm(outcomes, figure))
    print_line(f"Results: {results}, timings apart in {timings}")
    made = {outcome.settings.sampler: gmm.to_dict(outcome) for outcome in outcomes}
    return {"results": made, "files": [str(path) for path in (figure, results, timings) if path.exists()]}


def _write_json(path: Path, content: object) -> None:
    with written_whole(path) as beside:
        beside.write_text(json.dumps(content, indent=2) + "\n")


def _draw(draw: Callable[[], Path]) -> str | None:
    """The figure's path; None where it cannot be drawn."""
    try:
        drawn = str(draw())
        print_line(f"Figure: {drawn}")
        return drawn
    except MissingExtraError as error:
        print_line(f"No figure: {error.problem} To get it: {error.advice}")
        return None
