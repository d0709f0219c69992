"""From a PyMC model and its draws, as they are.

    model, draws = pe.from_pymc(pymc_model, idata)
    result = pe.erase(model, draws, rows=person == 17)
    result.draws.to_arviz()

The model is evaluated by PyMC's own graphs, through PyTensor's JAX backend.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posterase.bridges.shared.assembly import Posterior
from posterase.bridges.shared.groups import opened
from posterase.bridges.shared.row_frames import describe_rows, read_frames
from posterase.draws.draws import Draws
from posterase.draws.inference_groups import Grouping
from posterase.errors import InvalidTypeError
from posterase.runtime.garbage import rare_collections
from posterase.runtime.optional import need

if TYPE_CHECKING:
    from posterase.bridges.pymc.discovery import Discovered
    from posterase.bridges.shared.traced_model import BridgedModel


@rare_collections()
def from_pymc(
    model: Any,
    idata: Any,
    *,
    row_dim: str | Sequence[str] = (),
    shared: str | Sequence[str] = (),
    preprocessing: str | None = None,
    frame: Any = None,
) -> tuple[BridgedModel, Draws]:
    """The model and the draws of a PyMC fit.

    Parameters
    ----------
    model
        The `pm.Model` that was sampled. Where its `pm.Data` were changed since, for predictions say, the data of the
        fit are taken from `idata`.
    idata
        What `pm.sample` returned; or a file, a DataTree or InferenceData by ArviZ's schema.
    row_dim
        The dimension of the observed variables that is the rows, where they have several; a list, where there are more.
        A Potential whose entries are rows of their own is named here as well, together with all others.
    shared
        Arrays in the model of which removed rows' entries may stay, since other rows are computed from them.
    preprocessing
        What was computed from all rows before the fit, in words, "x standardised" say; "none" if nothing was. The
        verdict names it, and asks where it was not said.
    frame
        What is known about the rows beside the model's data, as columns that `pe.erase(…, rows=…)` can name: a
        DataFrame (pandas, polars) or a dict of columns with one row per row of the model, in the order of the fit; for
        several axes of rows, a dict of these by axis. It is used in memory only, and does not come out.

    Returns
    -------
    model
        For `pe.erase` and every method. Deterministic variables are no parameters: they come out computed anew.
    draws
        The draws, in the container that they go out in again.
    """
    need("pymc", "from_pymc", "pymc")
    import pymc as pm

    from posterase.bridges.pymc.data import data_of_the_fit
    from posterase.bridges.pymc.discovery import check_variables, discover

    if not isinstance(model, pm.Model):
        raise InvalidTypeError(f"model is a {type(model).__name__}.", "pass the pm.Model: with pm.Model() as model: …")
    if type(idata).__name__ == "MultiTrace":
        raise InvalidTypeError("idata is a MultiTrace.", "sample with return_inferencedata=True, as PyMC does unasked.")
    check_variables(model)  # before the data: a mini-batch has not the shape of the fit's
    frames = read_frames(frame)
    found = Posterior(opened(idata))
    dims, stay = ([each] if isinstance(each, str) else list(each) for each in (row_dim, shared))
    with data_of_the_fit(model, found.groups) as changed:
        discovered = discover(model, found.one, dims, stay)
    bridged = discovered.model
    draws = _with_missing_values(found.inside(bridged, (*changed, *discovered.remarks), preprocessing), discovered)
    return bridged, describe_rows(draws, frames)


def _with_missing_values(draws: Draws, discovered: Discovered) -> Draws:
    """Parameters in the place of a row's missing values go with the row."""
    container = draws.container
    assert container is not None
    sites = {site.name: site for site in discovered.model.program.sites}
    found = {}
    for gaps in discovered.gaps:
        site = sites[gaps.site]
        dim = str(draws.to_arviz()["posterior"][gaps.unobserved].dims[-1])
        members = gaps.members(gaps.mask.ndim + site.value_axis)
        found[dim] = Grouping.of(site.block, members, int(gaps.mask.sum()))
    if not found:
        return draws
    return draws.inside(dataclasses.replace(container, group_dims={**container.group_dims, **found}))
