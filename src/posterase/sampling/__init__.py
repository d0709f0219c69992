"""Samplers: stochastic-gradient Langevin and Hamiltonian dynamics, one per file, and NUTS through blackjax.

What a sampler of your own needs is here: `Sampler`, `Step`, `combine`, `standard_normal`. `docs/how-to-add.md` has an
example.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
