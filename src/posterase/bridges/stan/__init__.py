"""From a Stan fit to a model and its draws: the program is compiled with PyStan's own headers."""
