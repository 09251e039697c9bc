"""``python -m magik_sa.worker``: the signals first, then everything that takes time."""

from .signals import Signals

if __name__ == "__main__":
    signals = Signals()
    signals.install()

    from .command import command

    command(obj=signals, prog_name="python -m magik_sa.worker")
