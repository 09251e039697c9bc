"""The program `magik`: what an operator and a deployment say to the queue.

commands    which there are; each is loaded when it is asked for
output      what they print: text, or JSON with --json; faults on one line each
connect     the connection of one command
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Exit codes: 0 done, 2 refused; a worker has more of them."""
    signals = None
    if sys.argv[1:2] == ["worker"]:  # as in worker/__main__.py: the signals first, then everything that takes time
        from ..worker.signals import Signals

        signals = Signals()
        signals.install()
    from .commands import magik

    magik.main(prog_name="magik", obj=signals)
