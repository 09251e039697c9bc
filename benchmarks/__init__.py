"""The queue beside its peers and the limits of the machine, in one run: ``python -m benchmarks``."""
