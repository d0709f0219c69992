"""The page of the networks' experiment, and the tables that only it has, from the results of all blocks.

Every number on it is computed from the results; what nobody measured is called so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from posterase.experiments.bnn import METHODS, PAPER, TITLES
from posterase.experiments.bnn_results import SETS
from posterase.experiments.bnn_speed import Speeds, first_step_grid, speed_grid
from posterase.experiments.bnn_tables import (
    DIFFERENCES,
    EPSILONS,
    ERRORS,
    FLOOR,
    NAMES,
    NOT_MEASURED,
    OURS,
    Matches,
    Metric,
    Result,
    Target,
    all_matches,
    block_grids,
    floor_of,
    matches,
    matches_grid,
    mean_text,
    name_of,
    note_of,
    over,
    printed,
    range_of,
    spread,
    targets,
    targets_grid,
    text_of,
    values_of,
)
from posterase.experiments.bnn_variants import Variant, main_blocks, variant_grid, variants
from posterase.experiments.grids import Grid, markdown, number
from posterase.numerics.weights import pareto_k_threshold

# --- further tables of the page


def epsilon_grid(results: Sequence[Result]) -> Grid:
    """ε̂ both ways for those that say most, each beside its floor."""
    shown = {FLOOR: "floor", "origin": "Origin", "paper": "paper's method", "fine-tuning": "fine-tuning", OURS: "ours"}
    columns = tuple(f"{name},\n{way}" for name in shown.values() for way in ("as run", "equal steps"))
    rows = [
        (
            result["title"],
            *(
                mean_text(spread(values_of(result, method, metric.key), metric.scale))
                for method in shown
                for metric in EPSILONS
            ),
        )
        for result in results
    ]
    return Grid("ε̂ ×10³, means over chains", ("block", *columns), rows)


def ablation_grid(results: Sequence[Result]) -> Grid:
    """The paper's method without its shift: what its sampler's steps do alone."""
    error, difference = ERRORS[SETS.index("removed")], DIFFERENCES[SETS.index("removed")]
    shown = {"origin": "Origin", "steps alone": "steps alone", "paper": "paper's method"}
    columns = (
        *(f"error on removed rows:\n{name}" for name in (*shown.values(), "Retrain")),
        *(f"difference over floor:\n{name}" for name in shown.values()),
        "share of the move\nthat the steps make",
    )
    rows = []
    for result in results:
        errors = (spread(values_of(result, method, error.key)) for method in (*shown, "retrain"))
        excesses = [over(result, method, difference, floor_of(result, difference.key)) for method in shown]
        share = _share_of_move(result)
        said = NOT_MEASURED if share is None else f"{number(100 * share, 0)} %"
        cells = (*(text_of(each) for each in errors), *(text_of(each, difference.digits) for each in excesses), said)
        rows.append((result["title"], *cells))
    return Grid("The ablation that the paper does not have", ("block", *columns), rows)


def _share_of_move(result: Result) -> float | None:
    """Of what the paper's method takes off Origin's difference on removed rows, the part that its steps do alone."""
    key = "difference_removed"
    found = [spread(values_of(result, method, key)) for method in ("origin", "steps alone", "paper")]
    means = [each.mean for each in found if each is not None and not each.failed]
    if len(means) < 3 or means[0] <= means[2]:
        return None
    return (means[0] - means[1]) / (means[0] - means[2])


def importance_grid(results: Sequence[Result]) -> Grid:
    """Importance sampling's own diagnostics."""
    rows = []
    for result in results:
        k_hat, ess = (note_of(result, "importance sampling", key) for key in ("k_hat", "ess"))
        known = [each for each in k_hat or [] if each is not None and math.isfinite(each)]
        said = range_of(known) if known or not k_hat else ""
        if k_hat and len(known) < len(k_hat):
            without = f"none that is finite in {len(k_hat) - len(known)} of {len(k_hat)} chains"
            said = f"{said}; {without}" if said else without
        drawn = f"{result['settings']['draws']:,}"
        errors = (spread(values_of(result, each, "error_removed")) for each in ("importance sampling", "retrain"))
        limit = number(pareto_k_threshold(result["settings"]["draws"]), 2)
        rows.append((result["title"], drawn, said, limit, range_of(ess or [], 1), *(text_of(each) for each in errors)))
    columns = (
        "block",
        "draws\na chain",
        "k̂",
        "k̂ that is\ntrusted",
        "effective\ndraws",
        "error on\nremoved rows, %",
        "Retrain's",
    )
    return Grid("Importance sampling, from the least to the largest of the chains", columns, rows)


def refusals_grid(results: Sequence[Result]) -> Grid:
    """Shifts that were refused since their series diverged, and what our method refused."""
    rows = []
    for result in results:
        refused, requests, last = (note_of(result, "paper", key) for key in ("refused_shifts", "requests", "last_term"))
        rounds, settled = (note_of(result, OURS, key) for key in ("refused_rounds", "settled"))
        chains = result["settings"]["chains"]
        of = f" of {requests * chains:,}" if requests else ""
        rows.append(
            (
                result["title"],
                NOT_MEASURED if refused is None else f"{refused:,}{of}",
                *(_significant((last or {}).get(key)) for key in ("median", "largest")),
                NOT_MEASURED if rounds is None else str(sum(rounds)),
                NOT_MEASURED if settled is None else f"{sum(settled)} of {len(settled)} chains",
            )
        )
    columns = (
        "block",
        "refused shifts\n(requests × chains)",
        "last term of the series,\nof its first: median",
        "largest",
        "ours: rounds\nrefused",
        "ours: settled\nbefore the budget's end",
    )
    return Grid("What was refused", columns, rows)


def times_grid(results: Sequence[Result]) -> Grid:
    """Seconds of a request and of the whole change, for all chains together."""
    rows = []
    for result in results:
        seconds = {method: note_of(result, method, "seconds") for method in result["methods"]}
        whole, ours = seconds.get("retrain"), seconds.get(OURS)
        cells = [_significant(whole, " s")]
        for method in ("fine-tuning", "paper"):
            one, requests = seconds.get(method), note_of(result, method, "requests")
            cells += [_significant(one, " s"), _significant(one * requests if one and requests else None, " s")]
        share = 100 * ours / whole if ours and whole else None
        rows.append((result["title"], *cells, _significant(ours, " s"), _significant(share, " %")))
    columns = (
        "block",
        "Retrain",
        "fine-tuning,\na request",
        "all requests",
        "paper's method,\na request",
        "all requests",
        "ours, all rows\nin one request",
        "ours, of\nRetrain's time",
    )
    return Grid("Seconds, all chains side by side, compilation apart", columns, rows)


def _significant(value: float | None, unit: str = "") -> str:
    """Two digits that mean something, never with an exponent."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    digits = 0 if value == 0 else max(0, 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}{unit}"


def settings_grid(results: Sequence[Result]) -> Grid:
    """Sizes and settings."""
    rows = []
    for result in results:
        own, rows_of = result["settings"], result["rows"]
        sizes = (result["parameters"], rows_of["all"], own["removed"], own["steps"], own["noise_free_steps"])
        start = own["pretraining"] or "none"
        rest = f"{own['chains']}", f"{own['order']} terms, {own['scale']}", start, own["precision"]
        rows.append((result["title"], *(f"{each:,}" for each in sizes), *rest))
    columns = (
        "block",
        "parameters",
        "rows",
        "removed",
        "steps",
        "without noise",
        "chains",
        "Neumann series\n(terms, scale)",
        "pre-trained on",
        "precision",
    )
    return Grid("Settings", columns, rows)


def all_grids(results: Sequence[Result]) -> list[Grid]:
    """Every table of the experiment, block by block and then across them."""
    across: list[Callable[[Sequence[Result]], Grid]] = [
        matches_grid,
        targets_grid,
        epsilon_grid,
        ablation_grid,
        importance_grid,
        refusals_grid,
        times_grid,
        settings_grid,
    ]
    return [*(grid for result in results for grid in block_grids(result)), *(make(results) for make in across)]


# --- the page


def page(
    everything: Sequence[Result],
    figures: str = "networks",
    speeds: Sequence[Speeds] = (),
    first_steps: Sequence[Speeds] = (),
) -> str:
    """The whole page, as Markdown; `figures` is where its figures lie, seen from it."""
    results = main_blocks(everything)
    datasets = " and ".join(dict.fromkeys(TITLES[result["settings"]["dataset"]] for result in results))
    limits = " or ".join(dict.fromkeys(f"{result['settings']['diverged_above']:g}" for result in results))
    parts = [
        f"# The paper's networks: {datasets}",
        *_what_was_run(everything),
        "## In short",
        _in_short(all_matches(results), [each for result in results for each in targets(result)]),
        "## Block by block",
        "Each row of ours has the paper's figures below it where it prints any. What was not measured, here or by the "
        "paper, is called so; the paper prints 0.00 in its place, as for every ε̂ of Retrain. It has no ε̂ with equal "
        "steps.",
    ]
    for result in results:
        parts += [f"### {result['title']}", *map(markdown, block_grids(result))]
    parts += [
        "## Do our figures match the paper's?",
        "A figure matches where ours and the paper's are at most two joint standard deviations apart, "
        "2√(sd_ours² + sd_paper²), and half a unit of the last digit printed.",
        *_misses(results),
        "## Does our method reach what it was to reach?",
        markdown(targets_grid(results)),
        *_about_first_steps(first_steps),
        "## What ε̂ measures",
        *_about_epsilon(results),
        "## The missing ablation",
        *_about_ablation(results),
        "## Importance sampling",
        "What the paper calls importance sampling takes further steps on the kept rows. This is the real one: "
        "consecutive states of a chain, weighted by one over the likelihood of the removed rows, and one of them drawn "
        "by its weight. k̂ says how heavy the tail of the weights is, and how far they can be trusted.",
        markdown(importance_grid(results)),
        "## What was refused",
        "A request's shift is refused in a chain where the Neumann series does not converge: where its last term is "
        f"more than {limits} times its first. The chain is not moved then, and goes on with the sampler's steps only.",
        markdown(refusals_grid(results)),
        "## Time",
        *_about_time(results),
        f"![Seconds to answer a request, by method, on a logarithmic scale]({figures}/request-times.png)",
        *_about_speed(speeds),
        *_about_variants(variants(everything)),
        *_case_study(results, figures),
    ]
    return "\n\n".join(parts) + "\n"


def _what_was_run(everything: Sequence[Result]) -> list[str]:
    results = main_blocks(everything)
    machines = dict.fromkeys(result["machine"] for result in everything)
    missing = [
        f"{TITLES[dataset]} + {sampler.upper()}, {removed:,} rows"
        for dataset in dict.fromkeys(result["settings"]["dataset"] for result in results if printed(result, "retrain"))
        for sampler in ("sgld", "sghmc")
        for removed in PAPER[dataset][1]
        if not any(_is(result, dataset, sampler, removed) for result in results)
    ]
    lines = [
        "The paper's Section 5.2 and Appendix D, run from nothing: a network is pre-trained, sampled with SG-MCMC on "
        "all rows, and rows of one class are erased. Every way of erasing them is compared with networks retrained on "
        "the kept rows from the same pre-trained start; the floor is how far two of those are apart. "
        "[Networks that forget](../networks.md) says what each method is.",
        "```\n" + "\n".join(dict.fromkeys(map(_command, everything))) + "\n```",
        *(f"Run on: {each}." for each in machines),
        *([f"Not run yet: {'; '.join(missing)}."] if missing else []),
        markdown(settings_grid(results)),
    ]
    smaller = [result["title"] for result in results if not printed(result, "retrain")]
    if smaller:
        lines.append(f"Not of the paper's size, and so without its figures: {'; '.join(smaller)}.")
    return lines


def _is(result: Result, dataset: str, sampler: str, removed: int) -> bool:
    settings = result["settings"]
    return bool((settings["dataset"], settings["sampler"], settings["removed"]) == (dataset, sampler, removed))


def _command(result: Result) -> str:
    settings = result["settings"]
    dataset = settings["dataset"]
    command = f"posterase reproduce {dataset}"
    base = PAPER[dataset][0]
    if dataset == "digits" or result["variant"]:
        command += f" --sampler {settings['sampler']}"
    if result["variant"]:
        command += f" --removed {settings['removed']}"
        command += f" --precision {settings['precision']}" if settings["precision"] != base.precision else ""
        command += " --no-pretraining" if base.pretraining and not settings["pretraining"] else ""
    command += " --quick" if settings.get("rows") is not None else ""
    command += f" --seed {settings['seed']}" if settings["seed"] else ""
    left_out = [name for name in METHODS if (FLOOR if name == "floor" else name) not in result["methods"]]
    return command + "".join(f" --without '{name}'" for name in left_out)


def _in_short(found: Matches, aims: Sequence[Target]) -> str:
    known = [each for each in aims if each.reached is not None]
    failed = [each for each in known if not each.reached]
    lines = [
        f"- Against the paper: {found.summary}" + ("; those that do not are listed below." if found.missed else "."),
        f"- Our method: of {len(known)} aims that we had set it beforehand, {len(known) - len(failed)} are reached"
        + (f", not reached: {len(failed)}" if failed else "")
        + (f", not measured: {len(aims) - len(known)}" if len(aims) > len(known) else "")
        + ".",
    ]
    return "\n".join(lines)


def _misses(results: Sequence[Result]) -> list[str]:
    found = all_matches(results)
    lines = [f"- {result['title']}: {matches(result).summary}." for result in results]
    said = ["\n".join([*lines, f"- In all: {found.summary}."])]
    return [*said, markdown(matches_grid(results)), *_why_not(results)] if found.missed else said


def _why_not(results: Sequence[Result]) -> list[str]:
    """What the misses have in common, as far as our own figures tell."""
    said = []
    kept, as_run, equal = DIFFERENCES[SETS.index("kept")], *EPSILONS
    closer = [
        (floor, theirs.mean)
        for result in results
        if (theirs := printed(result, "origin").get(kept.printed or ""))
        and (floor := np.mean(np.array(floor_of(result, kept.key) or [math.nan], float))) > theirs.mean
    ]
    if closer:
        floors, origins = (range_of(each) for each in zip(*closer, strict=True))
        said.append(
            f"- Prediction differences: in {len(closer)} blocks two retrainings differ by {floors} on kept rows, more "
            f"than the paper prints for Origin ({origins}). No method could match there: the paper's runs from one "
            "start are nearer to each other than ours, and it does not say how they were seeded."
        )
    theirs_of = [printed(result, "fine-tuning").get(as_run.printed or "") for result in results]
    known = [(result, theirs.mean) for result, theirs in zip(results, theirs_of, strict=True) if theirs]
    off = {
        metric: [
            abs(ours.mean / theirs - 1)
            for result, theirs in known
            if (ours := spread(values_of(result, "fine-tuning", metric.key), metric.scale)) and not ours.failed
        ]
        for metric in (as_run, equal)
    }
    if off[as_run] and np.mean(off[equal]) < np.mean(off[as_run]):
        shares = {metric: range_of([100 * each for each in values], 1, " %") for metric, values in off.items()}
        said.append(
            f"- ε̂ of fine-tuning is {shares[as_run]} off the paper's as run, and {shares[equal]} with equal steps. "
            "Ours goes on along its schedule while it answers requests, so that steps become smaller; the paper's seem "
            "not to, which would also make it forget more there."
        )
    return ["What the misses have in common:\n\n" + "\n".join(said)] if said else []


def _means(results: Sequence[Result], method: str, metric: Metric) -> list[float | None]:
    found = (spread(values_of(result, method, metric.key), metric.scale) for result in results)
    return [each.mean if each and not each.failed else None for each in found]


def _minus(one: Sequence[float | None], other: Sequence[float | None]) -> list[float | None]:
    return [None if a is None or b is None else a - b for a, b in zip(one, other, strict=True)]


def _about_epsilon(results: Sequence[Result]) -> list[str]:
    as_run, equal = EPSILONS
    floor, origin, paper = (_means(results, method, as_run) for method in (FLOOR, "origin", "paper"))
    of_origin = [100 * f / o for f, o in zip(floor, origin, strict=True) if f is not None and o]
    nats = [1e3 * f / result["parameters"] for f, result in zip(floor, results, strict=True) if f is not None]
    by_steps = {
        method: _minus(_means(results, method, equal), _means(results, method, as_run))
        for method in ("fine-tuning", "paper")
    }
    by_method = _minus(paper, origin)
    both = [
        abs(steps) > abs(moved)
        for steps, moved in zip(by_steps["fine-tuning"], by_method, strict=True)
        if steps is not None and moved is not None
    ]
    said = [
        "The paper's ε̂ is a nearest-neighbour estimate of the KL divergence between two sets of *consecutive* states. "
        "With d parameters it is about d · log(distance between two chains ⁄ length of one step): the neighbour of a "
        "state in its own chain is the next state, one step away. The distance depends little on what was forgotten, "
        "since two chains are far apart in any case; the length of a step does depend on the step size, which falls "
        "with the number of steps taken. The paper prints 0.00 for Retrain, which was not measured there.",
        f"Two retrainings of the same rows come out at {range_of(floor)} thousand nats, {range_of(nats)} nats a "
        f"parameter: {range_of(of_origin, 1, ' %')} of what Origin has, where nothing was erased. No forgetting can be "
        "expected to come out below that floor.",
        "“As run”, each chain goes on with the step size that it has come to. “Equal steps” changes no network: every "
        "chain only goes on from where it stands with the step sizes of the retrained ones. That alone changes ε̂ of "
        f"fine-tuning by {range_of(by_steps['fine-tuning'])} thousand nats, and of the paper's method by "
        f"{range_of(by_steps['paper'])}. What that method itself does, ε̂ as run minus Origin's: {range_of(by_method)}.",
    ]
    if both:
        said.append(
            f"In {sum(both)} of {len(both)} blocks the step sizes move fine-tuning's ε̂ by more than the paper's method "
            "moves ε̂ from Origin's. We rank nothing by it."
        )
    return [*said, markdown(epsilon_grid(results))]


def _about_ablation(results: Sequence[Result]) -> list[str]:
    shares = [_share_of_move(result) for result in results]
    known = [100 * share for share in shares if share is not None]
    said = (
        "While the paper's method answers a request, its chain keeps sampling: one step before each product with the "
        "Hessian. Those steps see fewer of the removed rows with every request, so they forget too, and the paper does "
        "not say how much. Here they are run alone, without any shift. "
    )
    if known:
        said += (
            "Of what the paper's method takes off Origin's prediction difference on removed rows, they make "
            f"{range_of(known, 0, ' %')} by themselves."
        )
    else:
        said += f"Their share of the move: {NOT_MEASURED}."
    return [said, markdown(ablation_grid(results))]


def _about_time(results: Sequence[Result]) -> list[str]:
    rows = dict.fromkeys(f"{result['settings']['request_rows']:,}" for result in results)
    return [
        f"A request of fine-tuning and of the paper's method removes {' or '.join(rows)} rows; ours removes them all "
        "in one. The figure shows the mean over the removals of a data set and sampler.",
        markdown(times_grid(results)),
    ]


def _about_speed(speeds: Sequence[Speeds]) -> list[str]:
    said = [
        "## Speed",
        "In one process and in turn, the paper's algorithm in plain eager PyTorch (`benchmarks/eager_torch.py`) and "
        "ours: `python -m benchmarks networks`. What limits a step: the arithmetic of its layers at the speed that "
        "one large product of matrices reaches on the same chip; the rest is many small operations, one waiting for "
        "the other.",
    ]
    return (
        [*said, *(markdown(speed_grid(each)) for each in speeds)]
        if speeds
        else [said[0], f"{NOT_MEASURED.capitalize()}."]
    )


def _about_first_steps(found: Sequence[Speeds]) -> list[str]:
    if not found:
        return []
    ratios = [each for one in found for each in one["ratios"]]
    better = [each for each in ratios if each["second"] < each["first"]]
    said = (
        "Could a Gauss–Newton step, damped and kept within a trust region, make corrected continuation cheaper? Both "
        "are given the same budget, in gradients, the step's own out of it: `python -m benchmarks first_step`. The "
        f"step brings the chains nearer to retrained ones in {len(better)} of {len(ratios)} cases. It is not part of "
        "our method."
    )
    return ["## A Gauss–Newton step first?", said, *(markdown(first_step_grid(each)) for each in found)]


def _about_variants(found: Sequence[Variant]) -> list[str]:
    if not found:
        return []
    said = (
        "The same block run otherwise: without the pre-training that the paper has, or with another precision of the "
        "products of matrices. Parameters, their noise and their updates are float32 in all of them, and everything is "
        "judged in float32."
    )
    return ["## Pre-training and precision", said, *(markdown(variant_grid(each)) for each in found)]


def case_study_block(results: Sequence[Result]) -> Result | None:
    """The block whose images are shown: the largest removal of the first sampler that has any."""
    having = [result for result in results if note_of(result, "paper", "panels")]
    own = [result for result in having if result["settings"]["sampler"] == having[0]["settings"]["sampler"]]
    return max(own, key=lambda result: result["settings"]["removed"], default=None)


def _case_study(results: Sequence[Result], figures: str) -> list[str]:
    block = case_study_block(results)
    if block is None:
        return ["## Test images while rows are removed", f"{NOT_MEASURED.capitalize()}."]
    methods = [method for method in ("paper", OURS) if note_of(block, method, "panels")]
    return [
        "## Test images while rows are removed",
        f"{block['title']}: class probabilities of test images, mean over chains; the true class is red.",
        *(
            f"![{NAMES[each]}: class probabilities]({figures}/{name_of(block)}-case-study-{each}.png)"
            for each in methods
        ),
    ]
