"""What is noted of a try is taken back before it runs, as if note and claim were one transaction."""

from typing import Any

from magik_sa import ticks, tries

from . import replace, without, work

begin = tries.begin


def forgotten(tick: Any, connection: Any) -> Any:
    begun = begin(tick, connection)
    if begun is not None and begun.note is not None:
        tries.end(tick.entry, begun.note, connection)
    return begun


def take_out() -> None:
    replace(tries, "begin", forgotten)
    ticks.CLAIM = without(ticks.CLAIM, "AND CAST(extract(epoch FROM tried_at) AS text) = :note")


if __name__ == "__main__":
    take_out()
    work()
