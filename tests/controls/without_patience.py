"""What waits for a thread waits however long the jobs before it last."""

from magik_sa.worker import stock

from . import replace, work


def take_out() -> None:
    replace(stock, "PATIENCE", 3600)


if __name__ == "__main__":
    take_out()
    work()
