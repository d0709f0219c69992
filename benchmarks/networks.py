"""The paper's networks: forms of a convolution, eager PyTorch (`benchmarks/eager_torch`) and the chip as bars.

Ours and PyTorch's run in one process and in turn, where PyTorch can be imported. All figures are seconds for one
gradient, product, step or request of all chains together, mini-batches drawn and gathered, compilation apart.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

import posterase as pe
from benchmarks.harness import Ratio, compare
from posterase.experiments import networks
from posterase.sampling.batches import BatchDensity

BATCH, REMOVED, CHAINS = 128, 64, 5
STEP_SIZE, SCALE = 1e-7, 0.05
EAGER_STEPS = 50
PRECISIONS: dict[str, dict[str, networks.Precision]] = {
    "cpu": {"lenet": "float32", "cifar": "float32"},
    "gpu": {"lenet": "float32", "cifar": "bfloat16"},
}
"""As the experiment runs them; on a GPU, float32 products of matrices are TF32."""
MAKERS = {"lenet": networks.lenet, "cifar": networks.cifar_network}
TITLES = {"lenet": "LeNet", "cifar": "CIFAR network"}
NO_TORCH = "PyTorch is not installed, so only our own figures follow; `pip install torch` adds the comparisons with it."

Run = Callable[[], Any]


class Sizes(NamedTuple):
    """How much is timed at once, so that a GPU is not timed by its launches nor a CPU for hours."""

    rows: int
    calls: int
    """Gradients, or products with the Hessian, one after the other in one scan."""
    steps: int
    requests: int
    order: int
    repeats: int
    product: int
    """Side of the large matrices whose product shows the peak."""
    forms: tuple[networks.Form, ...] = networks.FORMS


SIZES = {
    "gpu": {name: Sizes(50_000, 50, 2000, 5, 64, 3, 8192, ("direct", "patches", "windows")) for name in MAKERS},
    "cpu": {
        "lenet": Sizes(10_000, 3, 20, 2, 4, 3, 2048),
        # Without "direct": five chains' grouped convolution of 64 channels took 36 s, their windows 1 s.
        "cifar": Sizes(10_000, 1, 2, 1, 2, 2, 2048, ("patches", "rows", "windows")),
    },
}


class Ours:
    """One of the networks with random images: what is timed of it, by chains and options of the network."""

    def __init__(self, name: str) -> None:
        self.name, self.title = name, TITLES[name]
        self.sizes = SIZES["cpu" if jax.default_backend() == "cpu" else "gpu"][name]
        numbers, rows = np.random.default_rng(0), self.sizes.rows
        self.x = numbers.integers(0, 256, (rows, *MAKERS[name]().image), dtype=np.uint8)
        self.y = numbers.integers(0, 10, rows, dtype=np.int32)
        self.data = {"x": jnp.asarray(self.x), "y": jnp.asarray(self.y)}
        self.removed = numbers.permutation(rows)[: self.sizes.requests * REMOVED].reshape(-1, REMOVED)
        self.sampler = pe.SGLD(pe.PolynomialSteps(STEP_SIZE), batch=BATCH)

    def model(self, **options: Any) -> pe.Model:
        likelihood = networks.LogLikelihood(MAKERS[self.name](**options))
        return pe.Model(networks.NormalPrior(0.1), likelihood, self.data)

    def initial(self, chains: int) -> PyTree:
        return jax.vmap(MAKERS[self.name]().init)(jax.random.split(jax.random.key(0), chains))

    def batches(self, chains: int) -> Int[Array, "calls chains batch"]:
        return jax.random.randint(jax.random.key(1), (self.sizes.calls, chains, BATCH), 0, self.sizes.rows)

    def gradients(self, chains: int, **options: Any) -> Run:
        """Gradients on a batch, one after the other."""
        return self._calls(chains, lambda density, theta: jax.grad(density)(theta), **options)

    def products(self, chains: int, **options: Any) -> Run:
        """Products of the Hessian on a batch with a vector, one after the other."""

        def product(density: BatchDensity, theta: PyTree) -> PyTree:
            return jax.jvp(jax.grad(density), (theta,), (theta,))[1]

        return self._calls(chains, product, **options)

    def _calls(self, chains: int, function: Callable[[BatchDensity, PyTree], PyTree], **options: Any) -> Run:
        @jax.jit
        def calls(model: pe.Model, thetas: PyTree, batches: Int[Array, "calls chains batch"]) -> PyTree:
            def call(thetas: PyTree, batch: Int[Array, "chains batch"]) -> tuple[PyTree, None]:
                n = jnp.asarray(self.sizes.rows)
                images = jax.vmap(lambda theta, ids: function(BatchDensity(model, ids, n), theta))(thetas, batch)
                return jax.tree.map(lambda theta, image: theta + 1e-12 * image, thetas, images), None

            return jax.lax.scan(call, thetas, batches)[0]

        model, thetas, batches = self.model(**options), self.initial(chains), self.batches(chains)
        return lambda: calls(model, thetas, batches)

    def state(self, chains: int, model: pe.Model) -> Any:
        return pe.start_chains(0, model, self.sampler, self.initial(chains))

    def steps(self, chains: int, **options: Any) -> Run:
        model = self.model(**options)
        state = self.state(chains, model)
        return lambda: pe.sample(model, self.sampler, state, 1, thin=self.sizes.steps).state

    def requests(self, chains: int, **options: Any) -> Run:
        model = self.model(**options)
        state = self.state(chains, model)
        method = pe.LiveInfluenceShift(
            self.sizes.order, SCALE, rescale_steps=True, batch=BATCH, diverged_above=math.inf
        )
        return lambda: method(model, self.sampler, state, self.removed).state

    def operations(self) -> float:
        """Floating-point operations in the layers of one chain's gradient: values, and gradients of weights and inputs.

        The images need no gradient, so the first layer is passed twice and not three times.
        """
        network = MAKERS[self.name]()
        height, width, _ = network.image
        total = 0
        for at, (layer, shape) in enumerate(network.shapes().items()):
            pixels = 1
            if layer.startswith("convolution"):
                height, width = height - network.kernel + 1, width - network.kernel + 1
                pixels = height * width
                height, width = height // 2, width // 2
            total += (2 if at == 0 else 3) * 2 * pixels * math.prod(shape)
        return float(BATCH * total)


def per(ratio: Ratio, first: int, second: int) -> Ratio:
    """Seconds of one, from seconds of several."""
    return ratio._replace(first=ratio.first / first, second=ratio.second / second)


def forms(ours: Ours) -> Iterator[Ratio]:
    """Every form of a convolution against the one that is used on this backend."""
    used = networks.FASTEST.get(jax.default_backend(), "direct")
    calls, repeats = ours.sizes.calls, ours.sizes.repeats
    for chains in (1, CHAINS):
        reference = ours.gradients(chains, form=used)
        for form in ours.sizes.forms:
            if form != used:
                what = f"{ours.title}: a gradient, {chains} chain(s), {form} / {used}"
                yield per(compare(what, ours.gradients(chains, form=form), reference, repeats), calls, calls)


def against_torch(ours: Ours, step: Run, requests: Run) -> Iterator[Ratio]:
    """PyTorch / ours, one chain."""
    import torch

    from benchmarks import eager_torch

    sizes = ours.sizes
    device = "cuda" if jax.default_backend() == "gpu" and torch.cuda.is_available() else "cpu"
    chain = eager_torch.Chain(ours.name, ours.x, ours.y, step_size=STEP_SIZE, batch=BATCH, device=device)
    batches = torch.as_tensor(np.array(ours.batches(1))[:, 0], device=device).to(torch.int64)
    vector = [parameter.detach().clone() for parameter in chain.parameters]
    eager_steps = min(EAGER_STEPS, sizes.steps)

    def waited(function: Callable[[], Any], times: int = 1) -> Run:
        def run() -> None:
            for _ in range(times):
                function()
            chain.wait()

        return run

    def gradients() -> None:
        for ids in batches:
            eager_torch.gradient(chain, ids)

    def products() -> None:
        for ids in batches:
            eager_torch.hvp(chain, ids, vector)

    def request() -> None:
        eager_torch.request(chain, chain.present[:REMOVED], sizes.order, SCALE)

    def against(what: str, theirs: Run, run: Run, first: int, second: int) -> Ratio:
        what = f"{ours.title}: {what}, PyTorch ({device}) / ours"
        return per(compare(what, theirs, run, sizes.repeats), first, second)

    used = PRECISIONS["cpu" if jax.default_backend() == "cpu" else "gpu"][ours.name]
    for what, theirs, run in (
        ("a gradient", gradients, ours.gradients(1, precision=used)),
        ("a Hessian-vector product", products, ours.products(1, precision=used)),
    ):
        yield against(what, waited(theirs), run, sizes.calls, sizes.calls)
    steps = waited(functools.partial(eager_torch.step, chain), eager_steps)
    yield against("a step of SGLD", steps, step, eager_steps, sizes.steps)
    yield against(f"a request, {sizes.order} terms", waited(request), requests, 1, sizes.requests)


def limit(ours: Ours, what: str, step: Run, chains: int, dtype: str) -> Ratio:
    """A step against its arithmetic alone at the speed of one large product of matrices."""
    side = ours.sizes.product
    matrix = jax.random.normal(jax.random.key(2), (side, side), dtype)
    product = jax.jit(jnp.matmul)
    ratio = compare(what, step, lambda: product(matrix, matrix), ours.sizes.repeats)
    speed = 2 * side**3 / ratio.second
    operations = chains * ours.operations()
    seconds = ratio.first / ours.sizes.steps
    share = operations / seconds / speed
    what = (
        f"{ours.title}: what limits it, {what}, {operations:.3g} operations / the same at {speed / 1e12:.3g} TFLOP/s "
        f"(one {side} × {side} product); {share:.2%} of that speed is reached"
    )
    return Ratio(what, seconds, operations / speed)


def run() -> Iterator[Ratio]:
    with_torch = importlib.util.find_spec("torch") is not None
    if not with_torch:
        print(NO_TORCH)
    for name in MAKERS:
        ours = Ours(name)
        repeats, steps = ours.sizes.repeats, (ours.sizes.steps, ours.sizes.steps)
        yield from forms(ours)
        used = PRECISIONS["cpu" if jax.default_backend() == "cpu" else "gpu"][name]
        step, many, requests = (
            ours.steps(1, precision=used),
            ours.steps(CHAINS, precision=used),
            ours.requests(1, precision=used),
        )
        if with_torch:
            yield from against_torch(ours, step, requests)
        yield per(compare(f"{ours.title}: a step, {CHAINS} chains / one", many, step, repeats), *steps)
        what = f"{ours.title}: a request, {ours.sizes.order} terms, {CHAINS} chains / one"
        side_by_side = ours.requests(CHAINS, precision=used)
        yield per(compare(what, side_by_side, requests, repeats), ours.sizes.requests, ours.sizes.requests)
        exact, half = (ours.steps(CHAINS, precision=each) for each in ("float32", "bfloat16"))
        what = f"{ours.title}: a step, {CHAINS} chains, float32 / bfloat16 products"
        yield per(compare(what, exact, half, repeats), *steps)
        yield limit(ours, f"a step, one chain, {used}", step, 1, used)
        yield limit(ours, f"a step, {CHAINS} chains, {used}", many, CHAINS, used)
