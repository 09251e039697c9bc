"""A worker that has raised its flag goes to sleep without a look at what came before."""

from magik_sa.worker.idle import Idle

from . import replace


def take_out() -> None:
    raised = Idle.raise_flags
    replace(Idle, "raise_flags", lambda self: raised(self) and False)
