"""Speed, as ratios of things run side by side. `make bench` runs all; `python -m benchmarks reweight` one."""
