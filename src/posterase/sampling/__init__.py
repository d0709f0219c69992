"""Samplers: stochastic-gradient Langevin and Hamiltonian dynamics as in the paper, and NUTS through blackjax."""
