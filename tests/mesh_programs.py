"""Methods, samplers and metrics over a mesh, for tests to start in processes that have other devices."""

import json
import re
import sys
from pathlib import Path

import numpy as np


def problem(rows=203, seed=0):
    """Logistic regression, with a number of rows that no number of devices divides."""
    import jax.numpy as jnp

    import posterase as pe

    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3)).astype(np.float32)
    y = (rng.random(rows) < 1 / (1 + np.exp(-x @ np.array([0.5, -1.0, 0.3])))).astype(np.float32)
    model = pe.Model(
        lambda p: -0.5 * jnp.sum(p["beta"] ** 2),
        lambda p, data: data["y"] * (data["x"] @ p["beta"]) - jnp.logaddexp(0.0, data["x"] @ p["beta"]),
        {"x": x, "y": y},
    )
    return model, pe.Draws({"beta": rng.normal([0.5, -1.0, 0.3], 0.18, size=(3, 201, 3)).astype(np.float32)})


def methods():
    import posterase as pe

    return {
        "Reweight": pe.Reweight(),
        "InfluenceShift": pe.InfluenceShift(samples=50),
        "InfluenceShift by CG": pe.InfluenceShift(samples=50, solver=pe.CG()),
        "Transport": pe.Transport(),
        "Rejuvenate": pe.Rejuvenate(),
        "ContinueSampling": pe.ContinueSampling(pe.SGLD(pe.PolynomialSteps(1e-4, 1.0, 0.55), batch=10), steps=5),
        "CorrectedContinuation": pe.CorrectedContinuation(
            steps=10, batch=16, round_steps=5, control_rows=40, tolerance=None
        ),
    }


def few(mesh) -> dict[str, list]:
    """What the quickest to compile make of the problem."""
    return some(mesh, erasing=("Reweight",))


def blocks(mesh) -> dict[str, list]:
    """The same where every device has several blocks of rows."""
    import posterase.model.factorised

    posterase.model.factorised.BLOCK_ELEMENTS = 1  # 256 rows
    import posterase as pe

    model, draws = problem(rows=2003)
    change = model.change(remove=range(7))
    made = {}
    for name in ("Reweight", "Transport"):
        erased = methods()[name](0, model, draws, change, mesh=mesh)
        made |= {name: erased.draws.params["beta"], f"{name}, weights": erased.draws.log_weights}
    sampler = pe.SGLD(pe.PolynomialSteps(1e-5, 1.0, 0.55))
    state = pe.start_chains(0, model, sampler, {"beta": np.zeros((3, 3), np.float32)})
    made["SGLD"] = pe.sample(model, sampler, state, 5, mesh=mesh).draws.params["beta"]
    return {name: np.asarray(values, float).tolist() for name, values in made.items()}


def cut(mesh) -> dict[str, list | float]:
    """What every device holds of rows that were cut before the model was made; and how far the weights are off."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    import posterase as pe
    from posterase.runtime import sharding

    model, _ = problem(rows=64)
    draws = pe.nuts(0, model, {"beta": np.zeros((3, 3), np.float32)}, draws=200, warmup=200).draws
    whole = pe.Reweight()(0, model, draws, model.change(remove=range(7))).draws.log_weights
    data = jax.device_put(model.data, NamedSharding(mesh, PartitionSpec("rows")))
    model = pe.Model(model.log_prior, model.log_likelihood, data)
    change = model.change(remove=range(7))
    result = pe.erase(model, draws, change, random_seed=0, mesh=mesh)
    with sharding.over(mesh):
        spread = model.spread()
    held = {"model": model, "spread": spread, "kept": result.model}
    shapes = {
        name: [list(shard.data.shape) for shard in each.data["x"].addressable_shards] for name, each in held.items()
    }
    found = pe.Reweight()(0, model, draws, change, mesh=mesh).draws.log_weights
    return shapes | {"difference": float(np.abs(found - whole).max())}


def some(mesh, erasing=("Reweight", "Transport")) -> dict[str, list]:
    """What a few of them make of it."""
    model, draws = problem()
    change = model.change(remove=range(7))
    made = {}
    for name in erasing:
        erased = methods()[name](0, model, draws, change, mesh=mesh)
        made[name] = erased.draws.params["beta"]
        made[f"{name}, weights"] = erased.draws.log_weights
    made |= sgld(mesh)
    return {name: np.asarray(values, float).tolist() for name, values in made.items()}


def sgld(mesh):
    import posterase as pe

    model, _ = problem()
    sampler = pe.SGLD(pe.PolynomialSteps(1e-4, 1.0, 0.55), batch=10)
    state = pe.start_chains(0, model, sampler, {"beta": np.zeros((3, 3), np.float32)})
    sampled = pe.sample(model, sampler, state, 20, mesh=mesh)
    live = pe.LiveInfluenceShift(order=4)(model, sampler, sampled.state, [[1, 2], [3]], mesh=mesh)
    return {
        "SGLD": sampled.draws.params["beta"],
        "SGLD goes on": pe.sample(model, sampler, sampled.state, 5).draws.params["beta"],
        "LiveInfluenceShift": live.state.theta["beta"],
    }


def everything(mesh) -> dict[str, list]:
    """What every method, sampler and metric makes of the problem, over a mesh or none."""
    import jax

    import posterase as pe

    model, draws = problem()
    change = model.change(remove=range(7))
    made = {}
    for name, method in methods().items():
        erased = method(0, model, draws, change, mesh=mesh)
        made[name] = erased.draws.params["beta"]
        if erased.draws.log_weights is not None:
            made[f"{name}, weights"] = erased.draws.log_weights
    result = pe.erase(model, draws, range(7), random_seed=0, mesh=mesh)
    made["erase"] = result.draws.params["beta"]
    made["kept rows"] = result.model.present
    made |= sgld(mesh)
    refits = [pe.Draws({"beta": draws.params["beta"] + 0.01 * i}) for i in (1, 2)]
    found = pe.assess(model, draws, result, refits, mesh=mesh)["metrics"].dataset
    timeless = found.sel(metric=[name for name in found["metric"].values if "second" not in str(name)])
    made["assess"] = [timeless["erased"].values, timeless["floor"].values]
    with jax.enable_x64(True):  # NUTS doubles a rounding error with every step or two
        wide, _ = problem()
        initial = {"beta": np.zeros((3, 3))}
        made["NUTS"] = pe.nuts(0, wide, initial, 20, warmup=20, mesh=mesh).draws.params["beta"]
        made["Refit"] = pe.Refit(warmup=20)(0, wide, draws.thin(10), change, mesh=mesh).draws.params["beta"]
    return {name: np.asarray(values, float).tolist() for name, values in made.items()}


def talk(mesh) -> dict[str, list]:
    """Where derivatives over several blocks of rows add up between devices; and where jax would."""
    import jax
    import jax.numpy as jnp

    import posterase.model.factorised
    from posterase.data import row_sums
    from posterase.model.densities import LogDensity
    from posterase.runtime import sharding

    model, _ = problem(rows=300_000)

    def places(derivative) -> list[str]:
        """The parts of the compiled program that talk to other devices: its main part, or the body of a loop."""
        with sharding.over(mesh):
            program = jax.jit(derivative).lower(LogDensity(model.spread()), jnp.ones((5, 3))).compile().as_text()
        parts = re.findall(r"^(?:ENTRY )?%([\w.\-]+) \([^\n]*\n(.*?)^\}", program, re.MULTILINE | re.DOTALL)
        return [name for name, text in parts for _ in re.findall(r" all-reduce\(", text)]

    def gradients(density, betas):
        return jax.vmap(jax.grad(lambda beta: density({"beta": beta})))(betas)

    def products(density, betas):
        return jax.jvp(lambda at: gradients(density, at), (betas,), (betas,))[1]

    def left_to_jax(params, term, rows):
        """The sum over rows that jax knows to be on several devices, differentiated as it stands."""
        blocks = rows.blocks

        def cut(leaf):
            folded = leaf.reshape(mesh.shape["rows"], -1, *leaf.shape[1:])
            return jax.lax.with_sharding_constraint(folded, jax.sharding.PartitionSpec("rows"))

        own = jax.tree.map(cut, (blocks.data, blocks.counted))
        return jax.vmap(lambda part: row_sums._plainly(params, term, row_sums.Blocks(*part, blocks.size)))(own).sum()

    found = {"gradients": places(gradients), "products": places(products)}
    jax.clear_caches()
    posterase.model.factorised.sum_rows = left_to_jax
    return found | {"gradients, left to jax": places(gradients)}


def streamed(mesh) -> list[str]:
    """What is said where rows are to be read for several devices."""
    import posterase as pe

    model, draws = problem()
    read = pe.Model(model.log_prior, model.log_likelihood, pe.stream(dict(model.data)))
    try:
        pe.Reweight()(0, read, draws, read.change(remove=[1]), mesh=mesh)
    except pe.errors.InvalidOptionError as error:
        return [str(error)]
    return []


def endless(mesh) -> None:
    """Erase for ever, after saying that it has begun."""
    import posterase as pe

    model, draws = problem()
    while True:
        pe.Reweight()(0, model, draws, model.change(remove=range(7)), mesh=mesh)
        print("begun", flush=True)


def main(what: str, target: str, chains: str, rows: str) -> None:
    import jax

    import posterase as pe

    pe.join_processes()
    mesh = pe.mesh(chains=int(chains), rows=int(rows)) if int(chains) * int(rows) > 1 else None
    programs = {each.__name__: each for each in (few, some, everything, blocks, cut, talk, streamed, endless)}
    found = programs[what](mesh)
    if jax.process_index() == 0:
        Path(target).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
