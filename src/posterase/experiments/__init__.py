"""Experiments: data, models and comparisons that posterase shows itself on. An edge: nothing imports it."""
