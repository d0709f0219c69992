"""What metrics compute with, for those who write one: estimates and divergences from weights."""

from posterase.numerics.weights import Estimate as Estimate
from posterase.numerics.weights import jeffreys as jeffreys
from posterase.numerics.weights import total_variation as total_variation
