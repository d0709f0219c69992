"""Ways in from outside: the command line, the service and the report. An edge: nothing imports it."""
