"""How fast what waits is done, once workers start: from the first job's start until nothing is left."""

from __future__ import annotations

import time

from .figures import Figures
from .ground import Ground


def drain(ground: Ground, jobs: int, workers: int = 1, concurrency: int = 10) -> Figures:
    """Of a queue that is full. It ends when the queue's own tables say so, thus after the acknowledgements."""
    cpu = ground.server.cpu()
    for _ in range(workers):
        ground.worker(concurrency)
    ground.wait_started(jobs)
    ground.wait_left(0)
    done = time.time()
    cpu = ground.server.cpu() - cpu
    worker_cpu, peak = ground.processes.cpu() - ground.record.cpu_before(), ground.processes.kib("VmHWM")
    time.sleep(0.5)  # would a job start twice?
    ground.expect_once(jobs)
    starts = [start.at / 1e9 for start in ground.record.starts()]
    spent = done - min(starts)
    return {
        "jobs": jobs,
        "rate": jobs / spent,
        "starts": jobs / (max(starts) - min(starts)),
        "worker_cpu": worker_cpu / jobs * 1e6,
        "server_cpu": cpu / jobs * 1e6,
        "peak": peak / 1024,
    }
