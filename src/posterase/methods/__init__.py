"""Methods: algorithms that map draws of the source to draws of the target. One file per method.

What a method of your own needs is here: the protocol (`Method`, `Problem`, `MethodResult`, `Diagnostics`), densities at
draws, weights and what they show. `docs/how-to-add.md` has an example.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
