"""Models: log densities of all rows, of the rows that stay, and of those that go."""
