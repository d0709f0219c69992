"""What methods compute with, for those who write one: densities at draws, weights, costs and objections."""

from posterase.draws.objections import Objection as Objection
from posterase.numerics.cost import Cost as Cost
from posterase.numerics.densities import constrained as constrained
from posterase.numerics.densities import evaluate as evaluate
from posterase.numerics.densities import evaluate_at as evaluate_at
from posterase.numerics.densities import unconstrained as unconstrained
from posterase.numerics.weights import Estimate as Estimate
from posterase.numerics.weights import base_weights as base_weights
from posterase.numerics.weights import log_of as log_of
from posterase.numerics.weights import parameter_ess as parameter_ess
from posterase.numerics.weights import smooth as smooth
