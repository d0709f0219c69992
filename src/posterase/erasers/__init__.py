"""Erasers: algorithms that map draws of p(θ | S) to draws of p(θ | S − S′). One file an algorithm."""
