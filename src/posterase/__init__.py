"""Erase data from a posterior.

Somebody asks for their rows to be deleted; the model was fitted by MCMC; posterase turns draws of p(θ | S) into draws
of p(θ | S − S′), and says how far to trust them.

Nothing heavy is imported before it is used: `import posterase` alone does not import jax.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from posterase.runtime.garbage import rare_collections
from posterase.version import __version__ as __version__

if TYPE_CHECKING:
    from posterase import errors as errors
    from posterase import metrics as metrics
    from posterase.bridges.arviz import from_arviz as from_arviz
    from posterase.bridges.blackjax import from_blackjax as from_blackjax
    from posterase.bridges.networks import from_equinox as from_equinox
    from posterase.bridges.networks import from_flax as from_flax
    from posterase.bridges.numpyro.from_numpyro import from_numpyro as from_numpyro
    from posterase.bridges.pymc.from_pymc import from_pymc as from_pymc
    from posterase.bridges.stan.from_stan import from_stan as from_stan
    from posterase.data.streams import Stream as Stream
    from posterase.data.streams import stream as stream
    from posterase.draws.draws import Draws as Draws
    from posterase.draws.notes import Note as Note
    from posterase.draws.objections import Objection as Objection
    from posterase.ladder.erase import Erasure as Erasure
    from posterase.ladder.erase import erase as erase
    from posterase.ladder.matching import Matched as Matched
    from posterase.ladder.matching import match_refits as match_refits
    from posterase.ladder.policy import Policy as Policy
    from posterase.ladder.policy import Verdict as Verdict
    from posterase.methods.base import Erased as Erased
    from posterase.methods.base import Eraser as Eraser
    from posterase.methods.diagnostics import Evidence as Evidence
    from posterase.methods.influence_shift import InfluenceShift as InfluenceShift
    from posterase.methods.live_influence_shift import LiveErased as LiveErased
    from posterase.methods.live_influence_shift import LiveInfluenceShift as LiveInfluenceShift
    from posterase.methods.refit import Refit as Refit
    from posterase.methods.rejuvenate import Rejuvenate as Rejuvenate
    from posterase.methods.reweight import Reweight as Reweight
    from posterase.methods.transport import Transport as Transport
    from posterase.methods.unconverged.continue_sampling import Continue as Continue
    from posterase.methods.unconverged.corrected_continuation import ContinueUnfinished as ContinueUnfinished
    from posterase.methods.unconverged.rewind import Rewind as Rewind
    from posterase.metrics.assessment import assess as assess
    from posterase.model import transforms as transforms
    from posterase.model.base import MaskedModel as MaskedModel
    from posterase.model.base import Model as Model
    from posterase.model.densities import Split as Split
    from posterase.model.densities import split as split
    from posterase.model.removal import Removal as Removal
    from posterase.model.transforms import Transform as Transform
    from posterase.model.transforms import greater_than as greater_than
    from posterase.model.transforms import interval as interval
    from posterase.model.transforms import less_than as less_than
    from posterase.model.transforms import ordered as ordered
    from posterase.model.transforms import positive as positive
    from posterase.model.transforms import real as real
    from posterase.model.transforms import simplex as simplex
    from posterase.model.transforms import unit_interval as unit_interval
    from posterase.numerics.moves import HMCMoves as HMCMoves
    from posterase.numerics.moves import MALAMoves as MALAMoves
    from posterase.numerics.moves import Moves as Moves
    from posterase.numerics.moves import NUTSMoves as NUTSMoves
    from posterase.numerics.solvers import CG as CG
    from posterase.numerics.solvers import Cholesky as Cholesky
    from posterase.numerics.solvers import DiagonalPreconditioner as DiagonalPreconditioner
    from posterase.numerics.solvers import Neumann as Neumann
    from posterase.numerics.solvers import NoPreconditioner as NoPreconditioner
    from posterase.numerics.solvers import NystromPreconditioner as NystromPreconditioner
    from posterase.numerics.solvers import Preconditioner as Preconditioner
    from posterase.numerics.solvers import Solver as Solver
    from posterase.runtime.sharding import join_processes as join_processes
    from posterase.runtime.sharding import mesh as mesh
    from posterase.sampling.laplace import LaplaceFit as LaplaceFit
    from posterase.sampling.nuts import NutsSampled as NutsSampled
    from posterase.sampling.nuts import nuts as nuts
    from posterase.sampling.resume import load_state as load_state
    from posterase.sampling.resume import save_state as save_state
    from posterase.sampling.sample import Sampled as Sampled
    from posterase.sampling.sample import sample as sample
    from posterase.sampling.sample import start_chains as start_chains
    from posterase.sampling.sampler import NoiseFree as NoiseFree
    from posterase.sampling.sampler import Sampler as Sampler
    from posterase.sampling.sampler import State as State
    from posterase.sampling.schedules import ConstantSteps as ConstantSteps
    from posterase.sampling.schedules import PolynomialSteps as PolynomialSteps
    from posterase.sampling.schedules import Schedule as Schedule
    from posterase.sampling.sghmc import SGHMC as SGHMC
    from posterase.sampling.sgld import SGLD as SGLD

HOMES = {
    "bridges.arviz": "from_arviz",
    "bridges.blackjax": "from_blackjax",
    "bridges.networks": "from_equinox from_flax",
    "bridges.numpyro.from_numpyro": "from_numpyro",
    "bridges.pymc.from_pymc": "from_pymc",
    "bridges.stan.from_stan": "from_stan",
    "data.streams": "Stream stream",
    "draws.draws": "Draws",
    "draws.notes": "Note",
    "draws.objections": "Objection",
    "ladder.erase": "Erasure erase",
    "ladder.matching": "Matched match_refits",
    "ladder.policy": "Policy Verdict",
    "methods.base": "Erased Eraser",
    "methods.diagnostics": "Evidence",
    "methods.influence_shift": "InfluenceShift",
    "methods.live_influence_shift": "LiveErased LiveInfluenceShift",
    "methods.refit": "Refit",
    "methods.rejuvenate": "Rejuvenate",
    "methods.reweight": "Reweight",
    "methods.transport": "Transport",
    "methods.unconverged.continue_sampling": "Continue",
    "methods.unconverged.corrected_continuation": "ContinueUnfinished",
    "methods.unconverged.rewind": "Rewind",
    "metrics.assessment": "assess",
    "model.base": "MaskedModel Model",
    "model": "transforms",
    "model.densities": "Split split",
    "model.removal": "Removal",
    "model.transforms": "Transform greater_than interval less_than ordered positive real simplex unit_interval",
    "numerics.moves": "HMCMoves MALAMoves Moves NUTSMoves",
    "numerics.solvers": "CG Cholesky DiagonalPreconditioner Neumann NoPreconditioner NystromPreconditioner Preconditioner Solver",
    "runtime.sharding": "join_processes mesh",
    "sampling.laplace": "LaplaceFit",
    "sampling.nuts": "NutsSampled nuts",
    "sampling.resume": "load_state save_state",
    "sampling.sample": "Sampled sample start_chains",
    "sampling.sampler": "NoiseFree Sampler State",
    "sampling.schedules": "ConstantSteps PolynomialSteps Schedule",
    "sampling.sghmc": "SGHMC",
    "sampling.sgld": "SGLD",
}
"""Where the names are, for when they are asked for."""

MODULES = {"metrics": "metrics", "errors": "errors", "transforms": "model.transforms"}
"""Those with public names of their own."""

_HOME_OF = {name: home for home, names in HOMES.items() for name in names.split()}


if not TYPE_CHECKING:  # else type checkers would let any name pass

    def __getattr__(name: str) -> Any:
        if name in MODULES:
            return importlib.import_module(f"posterase.{MODULES[name]}")
        if name not in _HOME_OF:
            raise AttributeError(f"module 'posterase' has no attribute {name!r}")
        with rare_collections():
            found = globals()[name] = getattr(importlib.import_module(f"posterase.{_HOME_OF[name]}"), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF, *MODULES})
