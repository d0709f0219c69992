"""Metrics: how well were rows erased? Numbers with a floor and an error, against refits or closed forms.

`pe.assess` runs every metric that applies and prints them as a table. Each metric is also a function of arrays. A
metric of your own is a function of a `Comparison`: `docs/how-to-add.md` has an example.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
