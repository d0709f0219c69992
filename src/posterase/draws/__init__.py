"""Draws of a posterior, the ArviZ containers they come in, and typed notes and objections about them."""
