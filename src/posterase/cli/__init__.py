"""The command line. It is an edge: nothing imports it."""
