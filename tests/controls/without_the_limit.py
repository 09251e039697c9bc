"""The locker claims on, however many jobs it holds already: as if two threads had nothing to do."""

from magik_sa.worker.stock import Stock

from . import replace, work


def take_out() -> None:
    replace(Stock, "free", lambda _: 2)


if __name__ == "__main__":
    take_out()
    work()
