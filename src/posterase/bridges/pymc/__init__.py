"""From a PyMC fit to a model and its draws."""
