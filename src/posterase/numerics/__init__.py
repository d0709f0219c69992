"""Numbers behind the erasers: evaluating densities over draws, curvature, linear solvers, importance weights."""
