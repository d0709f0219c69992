"""The paper's algorithm for networks as one would write it in eager PyTorch: the bar that ours is measured against.

    training    SGLD on U(θ) = N × mean cross-entropy of a batch + ‖θ‖²/(2 · 0.1²)
    request     one step of the sampler, the gradient p of the removed rows' summed log-likelihood, then `order` times
                one step and p ← p − c H p, with H the Hessian of U on a batch; the chain moves by −c Σ p

The data are on the device as floats, and PyTorch may use TF32 and its own choice of convolutions, as ours may.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

PRIOR_SD = 0.1

Tensor = Any
"""torch.Tensor; PyTorch is not among what type checks see."""


class Convolutional(torch.nn.Module):
    """Two 5 × 5 convolutions of 32 × 32 images, each pooled and rectified, then fully connected layers."""

    def __init__(self, channels: tuple[int, int, int], hidden: tuple[int, ...], classes: int = 10) -> None:
        super().__init__()
        first, second, third = channels
        widths = (5 * 5 * third, *hidden, classes)
        self.convolutions = torch.nn.ModuleList([torch.nn.Conv2d(first, second, 5), torch.nn.Conv2d(second, third, 5)])
        self.dense = torch.nn.ModuleList(
            [torch.nn.Linear(before, after) for before, after in itertools.pairwise(widths)]
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        for convolution in self.convolutions:
            x = F.relu(F.max_pool2d(convolution(x), 2))
        x = x.flatten(1)
        for layer in self.dense[:-1]:
            x = F.relu(layer(x))
        return self.dense[-1](x)


def network(name: str) -> Convolutional:
    """LeNet (61,706 parameters) or the CIFAR network (725,962)."""
    return {
        "lenet": lambda: Convolutional((1, 6, 16), (120, 84)),
        "cifar": lambda: Convolutional((3, 64, 64), (384,)),
    }[name]()


class Chain:
    """One chain: its network, the rows on the device, which of them are present, and the step size."""

    def __init__(self, name: str, x: np.ndarray, y: np.ndarray, *, step_size: float, batch: int, device: str) -> None:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        self.network = network(name).to(device)
        self.parameters = list(self.network.parameters())
        self.x = torch.as_tensor(x, device=device).permute(0, 3, 1, 2).to(torch.float32).div_(255).sub_(0.5)
        self.x = self.x.contiguous()
        self.y = torch.as_tensor(y, device=device).to(torch.int64)
        self.present = torch.arange(len(y), device=device)
        self.step_size, self.batch = step_size, batch

    def draw(self) -> Tensor:
        """Ids of a batch, drawn with replacement from the rows that are present."""
        at = torch.randint(len(self.present), (self.batch,), device=self.present.device)
        return self.present[at]

    def wait(self) -> None:
        """Until the device has done all that was asked of it."""
        if self.present.is_cuda:
            torch.cuda.synchronize()


def loss(chain: Chain, ids: Tensor) -> Tensor:
    """U(θ), estimated from a batch."""
    prior = sum(parameter.pow(2).sum() for parameter in chain.parameters) / (2 * PRIOR_SD**2)
    return len(chain.present) * F.cross_entropy(chain.network(chain.x[ids]), chain.y[ids]) + prior


def gradient(chain: Chain, ids: Tensor) -> list[Tensor]:
    """∇U on a batch."""
    return list(torch.autograd.grad(loss(chain, ids), chain.parameters))


def hvp(chain: Chain, ids: Tensor, vector: list[Tensor]) -> list[Tensor]:
    """∇²U on a batch, times a vector."""
    first = torch.autograd.grad(loss(chain, ids), chain.parameters, create_graph=True)
    dot = sum((g * v).sum() for g, v in zip(first, vector, strict=True))
    return list(torch.autograd.grad(dot, chain.parameters))


def step(chain: Chain) -> None:
    """One step of SGLD."""
    chain.network.zero_grad(set_to_none=True)
    loss(chain, chain.draw()).backward()
    with torch.no_grad():
        for parameter in chain.parameters:
            parameter.add_(parameter.grad, alpha=-chain.step_size)
            parameter.add_(torch.randn_like(parameter), alpha=math.sqrt(2 * chain.step_size))


def request(chain: Chain, removed: Tensor, order: int, scale: float) -> None:
    """Erase rows: move the chain, drop the rows, and rescale the step size to the rows that are left."""
    left = len(chain.present) - len(removed)
    c = scale / left
    step(chain)
    log_likelihood = -F.cross_entropy(chain.network(chain.x[removed]), chain.y[removed], reduction="sum")
    power = list(torch.autograd.grad(log_likelihood, chain.parameters))
    total = [each.clone() for each in power]
    for _ in range(order):
        step(chain)
        image = hvp(chain, chain.draw(), power)
        for p, hp, summed in zip(power, image, total, strict=True):
            p.sub_(hp, alpha=c)
            summed.add_(p)
    with torch.no_grad():
        for parameter, summed in zip(chain.parameters, total, strict=True):
            parameter.sub_(summed, alpha=c)
    chain.step_size *= len(chain.present) / left
    chain.present = chain.present[~torch.isin(chain.present, removed)]
