"""Ways in from outside: the command line. An edge: nothing imports it."""
