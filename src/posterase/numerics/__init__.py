"""Numbers behind the methods: densities over draws, curvature, linear solvers, weights, maps, paths and moves."""
