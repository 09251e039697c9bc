"""Rounds of many jobs and many notifications, and what a worker holds after each: ``python -m tests.resources``."""
