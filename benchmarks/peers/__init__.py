"""Who is measured: ourselves, and the peers at their best documented settings."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from ..contender import Contender

OURS: Final = Contender("magik_sa", "ours", drain=30_000)
PLAIN: Final = Contender("a plain ORM insert", "plain")

# A drain of each takes some ten seconds. The first is the package that tells whether a peer is installed; a module here
# of the same name would hide it from type checkers.
ALL: Final = {
    "pgqueuer-100": ("pgqueuer", Contender("pgqueuer, batch 100", "peer_pgqueuer", (("PGQUEUER_BATCH", "100"),))),
    "pgqueuer": ("pgqueuer", Contender("pgqueuer", "peer_pgqueuer", drain=10_000)),
    "oban": ("oban", Contender("oban", "peer_oban", drain=8_000)),
    "awa": ("awa", Contender("awa", "peer_awa", drain=4_000)),
    "chancy": ("chancy", Contender("chancy", "peer_chancy", drain=6_000)),
    "procrastinate": ("procrastinate", Contender("procrastinate", "peer_procrastinate", drain=2_000)),
    "dramatiq-postgres": ("dramatiq_postgres", Contender("dramatiq-postgres", "peer_dramatiq_postgres", drain=4_000)),
}
NAMES: Final = frozenset(peer.name for _, peer in ALL.values())


def chosen(words: str, best: tuple[str, ...]) -> tuple[list[Contender], list[str]]:
    """The peers of ``a,b``, ``all``, ``none``, or ``best``; and those of them that are not installed."""
    keys = {"all": tuple(ALL), "none": (), "best": best}.get(words, tuple(words.split(",")))
    if unknown := [key for key in keys if key not in ALL]:
        raise KeyError(f"no such peer: {', '.join(unknown)}; there are {', '.join(ALL)}")
    there = [key for key in keys if find_spec(ALL[key][0]) is not None]
    return [ALL[key][1] for key in there], [key for key in keys if key not in there]
