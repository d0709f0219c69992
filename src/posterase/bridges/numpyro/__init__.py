"""From a NumPyro fit to a model and its draws."""
