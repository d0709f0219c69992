"""Rows of data: which are meant, where they are stored, and sums over them."""
