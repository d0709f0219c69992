"""Draws of a posterior, the ArviZ containers they come in, and what is said of them."""
