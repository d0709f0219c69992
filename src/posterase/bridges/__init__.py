"""Bridges from other libraries' fits: each gives a model and its draws. Their libraries are imported when they run."""
