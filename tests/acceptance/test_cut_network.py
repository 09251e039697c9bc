"""A worker's network is cut off: its jobs start elsewhere within the bound that the docs print."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.orm import Session

from tests.jobs.lasting import Lasting
from tests.tools.cluster import Cluster
from tests.tools.effects import Effects
from tests.tools.schema import migrate
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

LASTING = "tests.jobs.lasting"
BOUND = 11.0 + 2.0  # seconds: keepalives 5 + 2 * 3, and what it takes to notice and start


class Network:
    """A host of its own in a network namespace, and the cable to it."""

    def __init__(self) -> None:
        number = os.getpid() % 200 + 20
        self.name, self.cable = f"magik{os.getpid()}", f"mg{os.getpid()}"
        self.here, self.there = f"10.213.{number}.1", f"10.213.{number}.2"

    def make(self) -> None:
        ip("netns", "add", self.name)
        ip("link", "add", self.cable, "type", "veth", "peer", "name", "host0", "netns", self.name)
        ip("addr", "add", f"{self.here}/24", "dev", self.cable)
        ip("link", "set", self.cable, "up")
        for command in (["addr", "add", f"{self.there}/24", "dev", "host0"], ["link", "set", "host0", "up"]):
            ip("-n", self.name, *command)

    def cut(self) -> None:
        """Nothing arrives any more, and nobody is told."""
        ip("-n", self.name, "link", "set", "host0", "down")

    def remove(self) -> None:
        for command in (["link", "del", self.cable], ["netns", "del", self.name]):
            subprocess.run(["ip", *command], check=False, capture_output=True)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def network() -> Iterator[Network]:
    if shutil.which("ip") is None:
        pytest.skip("the program ip (iproute2) is not installed")
    network = Network()
    try:
        network.make()
    except subprocess.CalledProcessError as error:
        network.remove()
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    yield network
    network.remove()


@pytest.mark.slow
def test_a_worker_whose_network_is_cut_loses_its_jobs_within_the_bound(network: Network) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster())
        trust = Path(cluster.data, "pg_hba.conf")
        trust.write_text(f"{trust.read_text()}\nhost all all {network.there}/32 trust\n")
        cluster.restart("fast", listen_addresses=f"127.0.0.1,{network.here}")
        migrate(cluster.url())
        effects, engine = Effects(cluster.url()), create_engine(cluster.url())
        stack.callback(engine.dispose)
        afar = make_url(cluster.url()).set(host=network.here).render_as_string(hide_password=False)
        worker = WorkerProcess(afar, LASTING, concurrency=1)
        worker.command = ["ip", "netns", "exec", network.name, *worker.command]
        stack.enter_context(worker)
        worker.wait_log("event=ready", 30)
        with Session(engine) as session, session.begin():
            session.add(Lasting(seconds=60))
        until(effects.count, what="the job runs afar")
        stack.enter_context(WorkerProcess(cluster.url(), LASTING, concurrency=1)).wait_ready()
        network.cut()
        until(lambda: effects.count() == 2, BOUND, what="the job runs here")
