"""Everything at once: a workload, a plan of faults made from a seed, and a balance at the end.

``python -m tests.chaos --seconds 60 --seed 1``
"""
