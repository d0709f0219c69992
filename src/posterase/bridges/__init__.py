"""Bridges from other libraries' fits: each gives a model and its draws. Their libraries are imported when they run.

What a bridge of your own needs is here too: `with_groups` puts draws beside their data. `docs/how-to-add.md` has an
example.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
