"""Nobody looks for the sessions of workers that are gone."""

from magik_sa import wake

from . import replace, work


def take_out() -> None:
    replace(wake, "hint", lambda *_: 0)


if __name__ == "__main__":
    take_out()
    work()
