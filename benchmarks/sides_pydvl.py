"""pyDVL on a request that `benchmarks/sides.py` has written into a folder, run by the Python that has pyDVL.

    python sides_pydvl.py FOLDER REPEATS

Logistic regression with a normal prior, at its mode. With H the Hessian of the mean loss, the prior in it, and N rows,
the mode moves by (1/N) Σ H⁻¹ ∇loss(z) where rows z are removed, to first order; pyDVL gives H⁻¹ ∇loss(z).
"""

from __future__ import annotations

import csv
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

warnings.simplefilter("ignore")
import pydvl  # noqa: E402
from pydvl.influence.torch import DirectInfluence  # noqa: E402
from torch.nn.functional import binary_cross_entropy_with_logits  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


def main(folder: Path, repeats: int) -> None:
    with (folder / "shapes.csv").open() as file:
        shapes = {line["name"]: (int(line["rows"]), int(line["columns"])) for line in csv.DictReader(file)}

    def read(name: str) -> np.ndarray:
        return np.fromfile(folder / name).reshape(shapes[name])

    x, y = torch.as_tensor(read("x")), torch.as_tensor(read("y"))
    removed = read("removed").astype(int).ravel()
    network = torch.nn.Linear(x.shape[1], 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        network.weight.copy_(torch.as_tensor(read("mode")).reshape(1, -1))
    rows = DataLoader(TensorDataset(x, y), batch_size=len(x))

    def change() -> np.ndarray:
        influence = DirectInfluence(network, binary_cross_entropy_with_logits, regularization=1 / len(x)).fit(rows)
        factors = influence.influence_factors(x[removed], y[removed])
        return factors.detach().numpy().sum(axis=0) / len(x)

    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        found = change()
        seconds.append(time.perf_counter() - started)
    found.tofile(folder / "change")
    np.array([seconds[0], np.median(seconds[1:])]).tofile(folder / "seconds")
    (folder / "versions.txt").write_text(f"pyDVL {pydvl.__version__} with PyTorch {torch.__version__}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
