"""The program `magik`: what an operator and a deployment say to the queue.

commands    which there are; each is loaded when it is asked for
output      what they print: text, or JSON with --json; faults on one line each
connect     the connection of one command
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Run the command line. Exit codes: 0 done, 2 refused; a worker has more of them."""
    _open_what_is_closed()
    signals = None
    if sys.argv[1:2] == ["worker"]:  # as in worker/__main__.py: the signals first, then everything that takes time
        from ..worker.signals import Signals

        signals = Signals()
        signals.install()
    from .commands import magik

    magik.main(prog_name="magik", obj=signals)


def _open_what_is_closed() -> None:
    """Where stdout or stderr is closed there is none, and nobody wants to be told of that."""
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
