"""A scenario is some cases, all of which are measured in each round, so that they can be divided by each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .contender import Contender
from .figures import Figures
from .ground import Ground
from .peers import OURS, chosen
from .server import Server, Servers


@dataclass(frozen=True)
class Case:
    """One thing that is measured, under its name."""

    name: str
    measure: Callable[[], Figures]


@dataclass
class World:
    """What a scenario is given: the servers, how thorough to be, whom to ask."""

    servers: Servers
    quick: bool = False
    peers: str = "best"
    absent: set[str] = field(default_factory=set)

    @property
    def server(self) -> Server:
        """The one that most is measured on."""
        return self.servers.of(18)

    def of(self, full: int, quick: int) -> int:
        """So many, or as many in a quick run."""
        return quick if self.quick else full

    def rivals(self, *best: str) -> list[Contender]:
        """The peers to ask; `best` are the keys of those that have done best so far."""
        there, absent = chosen(self.peers, best)
        self.absent.update(absent)
        return there

    def ground(self, contender: Contender = OURS, server: Server | None = None) -> Ground:
        """A fresh database."""
        return Ground(server or self.server, contender)


@dataclass(frozen=True)
class Scenario:
    """`shown` are its figures in the order of the table; `cases` are made anew for each round."""

    name: str
    title: str
    cases: Callable[[World], Iterable[Case]]
    shown: tuple[str, ...] = ("rate",)
    rounds: int = 3
    long: bool = False  # left out of a quick run of everything
