"""Each promise with its mechanism and without: the test that shows it passes, and fails where the mechanism is gone.

``python -m tests.promises`` runs all lines of `table`, ``python -m tests.promises 5 6`` those of some promises.
"""
