"""The paper's networks (Appendix D): two convolutions, each pooled, then fully connected layers.

    LeNet (Fashion-MNIST)    6 and 16 channels, then 120, 84 and 10 units      61,706 parameters
    the CIFAR network        64 and 64 channels, then 384 and 10 units        725,962 parameters

Inputs are 32 × 32, convolutions 5 × 5 without padding, each followed by a 2 × 2 maximum and a ReLU; hidden layers by a
ReLU. The paper puts one on the logits too, which would leave no class a negative one: there is none here. Every weight
has the prior N(0, 0.1²).

A pooled convolution is the same in any of four forms, and which is fastest depends on the machine
(`benchmarks/networks` measures it; PyTorch's own is one of the bars there):

    direct     XLA's convolution
    patches    every 5 × 5 patch laid out as a row, then one product of matrices
    rows       five pixels of a row laid out, then one product for each of the kernel's five rows: a fifth of the memory
    windows    the 6 × 6 pixels behind one pooled result laid out, then one product for the four it is the largest of:
               36/25 of the multiplications, 36/100 of the memory of patches, and products four times as wide

Chains side by side make a batch of products of the last three, and a grouped convolution of the first.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Num, PyTree

from posterase.bridges.networks import NormalPrior as NormalPrior

Form = Literal["direct", "patches", "rows", "windows"]
FORMS: tuple[Form, ...] = ("direct", "patches", "rows", "windows")
FASTEST: dict[str, Form] = {"cpu": "windows", "gpu": "windows", "tpu": "direct"}
"""By backend, of all four; on a TPU nobody has measured it."""

Precision = Literal["float32", "bfloat16"]


class Network(eqx.Module):
    """A classifier of images: how its parameters begin, and what it makes of images with given ones."""

    image: eqx.AbstractVar[tuple[int, int, int]]

    @abc.abstractmethod
    def init(self, key: Key[Array, ""]) -> PyTree:
        """Parameters to start training from."""

    @abc.abstractmethod
    def logits(self, params: PyTree, x: Num[Array, "rows height width channels"]) -> Float[Array, "rows classes"]:
        """One row of logits for each image; images are bytes, 0 to 255."""

    @property
    @abc.abstractmethod
    def last_layer(self) -> str:
        """The name of the parameters that depend on the classes."""

    @abc.abstractmethod
    def precisely(self) -> Network:
        """The same network, with everything in float32, to judge by."""

    @property
    def size(self) -> int:
        """How many parameters there are."""
        shapes = jax.eval_shape(self.init, jax.random.key(0))
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


class ConvolutionalNetwork(Network):
    """Convolutions with pooling, then fully connected layers.

    Parameters
    ----------
    image
        Height, width and channels of the input.
    channels
        Of each convolution.
    hidden
        Units of each hidden layer.
    classes
        How many there are to tell apart.
    kernel
        Height and width of the convolutions' kernels.
    form
        How convolutions are computed; None: as is fastest on this backend.
    precision
        Of the products of matrices and of what passes between layers. Parameters, their noise and their updates, and
        what is made of the logits, are float32 in both.
    """

    image: tuple[int, int, int] = eqx.field(static=True)
    channels: tuple[int, ...] = eqx.field(static=True)
    hidden: tuple[int, ...] = eqx.field(static=True)
    classes: int = eqx.field(static=True)
    kernel: int = eqx.field(default=5, static=True)
    form: Form | None = eqx.field(default=None, static=True)
    precision: Precision = eqx.field(default="float32", static=True)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every weight, in the order of the layers."""
        height, width, before = self.image
        shapes: dict[str, tuple[int, ...]] = {}
        for at, after in enumerate(self.channels):
            shapes[f"convolution{at}"] = (self.kernel, self.kernel, before, after)
            height, width, before = (height - self.kernel + 1) // 2, (width - self.kernel + 1) // 2, after
        before *= height * width
        for at, after in enumerate((*self.hidden, self.classes)):
            shapes[f"dense{at}"] = (before, after)
            before = after
        return shapes

    @property
    def last_layer(self) -> str:
        return f"dense{len(self.hidden)}"

    def precisely(self) -> ConvolutionalNetwork:
        return dataclasses.replace(self, precision="float32")

    def init(self, key: Key[Array, ""]) -> dict[str, dict[str, Float[Array, "..."]]]:
        """Uniform in ± 1/√inputs, weights and biases: what PyTorch does unasked, so what the paper's networks did."""
        shapes = self.shapes()
        keys = jax.random.split(key, len(shapes))
        return {name: _layer(one, shape) for one, (name, shape) in zip(keys, shapes.items(), strict=True)}

    def logits(
        self, params: dict[str, dict[str, Array]], x: Num[Array, "rows height width channels"]
    ) -> Float[Array, "rows classes"]:
        weights = jax.tree.leaves(params)[0].dtype
        working = jnp.bfloat16 if self.precision == "bfloat16" else weights
        form = self.form or FASTEST.get(jax.default_backend(), "direct")
        out = (x.astype(weights) / 255 - 0.5).astype(working)
        for at in range(len(self.channels)):
            layer = jax.tree.map(lambda leaf: leaf.astype(working), params[f"convolution{at}"])
            out = jax.nn.relu(convolve_and_pool(out, layer["w"], form) + layer["b"])
        out = out.reshape(len(x), -1)
        for at in range(len(self.hidden) + 1):
            layer = jax.tree.map(lambda leaf: leaf.astype(working), params[f"dense{at}"])
            out = out @ layer["w"] + layer["b"]
            out = jax.nn.relu(out) if at < len(self.hidden) else out
        return out.astype(weights)


def _layer(key: Key[Array, ""], shape: tuple[int, ...]) -> dict[str, Float[Array, "..."]]:
    bound = 1 / math.sqrt(math.prod(shape[:-1]))
    for_w, for_b = jax.random.split(key)
    return {
        "w": jax.random.uniform(for_w, shape, minval=-bound, maxval=bound),
        "b": jax.random.uniform(for_b, shape[-1:], minval=-bound, maxval=bound),
    }


def convolve_and_pool(
    x: Float[Array, "n height width before"], w: Float[Array, "kernel kernel before after"], form: Form
) -> Float[Array, "n half_height half_width after"]:
    """A convolution without padding, then the largest of every 2 × 2 results; a last odd row or column is left out."""
    if form != "windows":
        return pooled(convolve(x, w, form))
    size, _, before, after = w.shape
    height, width = (x.shape[1] - size + 1) // 2, (x.shape[2] - size + 1) // 2
    # A window is blocks × blocks of 2 × 2 pixels; the next one begins a block further.
    blocks = size // 2 + 1
    high, wide = height + blocks - 1, width + blocks - 1
    fit = [(0, 0, 0), (0, 2 * high - x.shape[1], 0), (0, 2 * wide - x.shape[2], 0), (0, 0, 0)]
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), fit).reshape(-1, high, 2, wide, 2 * before)
    starts = [(row, half, column) for row in range(blocks) for half in (0, 1) for column in range(blocks)]
    laid_out = [x[:, row : row + height, half, column : column + width] for row, half, column in starts]
    # The kernel at its four places in a window, zeros around it.
    spare = 2 * blocks - size
    room = [((down, spare - down), (right, spare - right), (0, 0), (0, 0)) for down in (0, 1) for right in (0, 1)]
    placed = jnp.stack([jnp.pad(w, around) for around in room], axis=-2)
    kernels = placed.reshape(-1, 4 * after)
    # Two axes each: of more, chains side by side make a slower product.
    out = jnp.concatenate(laid_out, axis=-1).reshape(-1, len(kernels)) @ kernels
    return out.reshape(-1, height, width, 4, after).max(axis=3)


def convolve(
    x: Float[Array, "n height width before"],
    w: Float[Array, "kernel kernel before after"],
    form: Literal["direct", "patches", "rows"],
) -> Float[Array, "n out_height out_width after"]:
    """A convolution without padding."""
    if form == "direct":
        return jax.lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    size, _, before, after = w.shape
    height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
    # Along a row of pixels: (n, height, out_width, size · before), in the order of the kernel's second axis.
    across = jnp.concatenate([x[:, :, at : at + width] for at in range(size)], axis=-1)
    if form == "rows":
        down = w.reshape(size, size * before, after)
        return sum(across[:, at : at + height] @ down[at] for at in range(size))  # type: ignore[return-value]
    patches = jnp.concatenate([across[:, at : at + height] for at in range(size)], axis=-1)
    return (patches.reshape(-1, size * size * before) @ w.reshape(-1, after)).reshape(-1, height, width, after)


def pooled(x: Float[Array, "n height width channels"]) -> Float[Array, "n half_height half_width channels"]:
    """The largest of every 2 × 2 pixels; a last odd row or column is left out."""
    height, width = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    x = x[:, :height, :width]
    rows = jnp.maximum(x[:, ::2], x[:, 1::2])
    return jnp.maximum(rows[:, :, ::2], rows[:, :, 1::2])


class LogLikelihood(eqx.Module):
    """Log probability of the true class of every row."""

    network: Network

    def __call__(self, params: PyTree, data: dict[str, Array]) -> Float[Array, " rows"]:
        log_probabilities = jax.nn.log_softmax(self.network.logits(params, data["x"]))
        return jnp.take_along_axis(log_probabilities, data["y"][:, None], axis=1)[:, 0]


def lenet(classes: int = 10, **options: object) -> ConvolutionalNetwork:
    """LeNet, as the paper uses it on Fashion-MNIST."""
    return ConvolutionalNetwork((32, 32, 1), (6, 16), (120, 84), classes, **options)  # type: ignore[arg-type]


def cifar_network(classes: int = 10, **options: object) -> ConvolutionalNetwork:
    """The network of Abadi et al. (2016), as the paper uses it on CIFAR-10."""
    return ConvolutionalNetwork((32, 32, 3), (64, 64), (384,), classes, **options)  # type: ignore[arg-type]


def digits_network(classes: int = 10, **options: object) -> ConvolutionalNetwork:
    """A small one, for scikit-learn's digits at 14 × 14."""
    return ConvolutionalNetwork((14, 14, 1), (8, 16), (32,), classes, kernel=3, **options)  # type: ignore[arg-type]
