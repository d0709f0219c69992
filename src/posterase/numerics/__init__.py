"""Numbers behind the erasers: densities over draws, curvature, linear solvers, weights, maps, paths and moves."""
