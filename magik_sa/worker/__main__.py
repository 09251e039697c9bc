"""``python -m magik_sa.worker``: the signals first, then everything that takes time."""

import sys

from .signals import Signals

if __name__ == "__main__":
    signals = Signals()
    signals.install()

    from ..errors import MagikError

    try:
        from .process import command
    except MagikError as error:  # the schema's name is read from pyproject.toml while the tables are declared
        sys.stderr.write(f"{error}\n")
        sys.exit(2)

    command(obj=signals, prog_name="python -m magik_sa.worker")
