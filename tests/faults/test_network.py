"""Workers in one network namespace, the coordinator in another, and a bad wire between them."""

import os
import time

import pytest

from harness import LIVENESS_S, WORKERS, Trial, bare, oracle, repeat
from link import ADDRESSES, Link

PORT = 7601
HOST, FARM = 0, 1  # the ends: coordinator, workers
CLEAN = {"drop": 0, "double": 0, "delay_ms": 0, "jitter_ms": 0, "cut": False}


@pytest.fixture
def link():
    seed = int(os.environ.get("BITALLOC_SEED", time.time_ns() % 1_000_000))
    print(f"BITALLOC_SEED={seed} seeds the losses of the wire")
    try:
        link = Link(seed)
    except Link.Unavailable as reason:
        pytest.skip(f"no network namespaces or no TUN devices here: {reason}")
    yield link
    link.close()


@pytest.fixture
def trial(bare, oracle, link):
    """A search whose workers reach the coordinator over the wire only."""
    bare.commands["relay"] = link.relay(HOST, PORT, bare.folder / "worker.sock")
    bare.start("relay")
    bare.start_all(worker_endpoint=f"tcp://{ADDRESSES[HOST]}:{PORT}", worker_prefix=link.prefix(FARM))
    trial = Trial(bare, oracle)
    trial.run_on(3)
    return trial


def test_lossy_wire(trial, link):
    row = trial.row("network: 5 % lost, 5 % doubled, 10 to 60 ms late and out of order")
    with trial.fault(row):
        link.set(drop=0.05, double=0.05, delay_ms=10, jitter_ms=50)
    trial.wait_for_end()
    counts = link.set(**CLEAN)
    assert counts["dropped"] > 10 and counts["doubled"] > 10
    trial.finish()


def test_cut_wire(trial, link):
    """For a moment, and for longer than anybody waits for a sign of life."""
    for seconds in (2, LIVENESS_S + 3):
        row = trial.row(f"network: cut for {seconds} s")
        for _ in range(repeat(1, 5)):
            if not trial.over:
                with trial.fault(row):
                    link.set(cut=True)
                    time.sleep(seconds)
                    link.set(**CLEAN)
        assert row.times >= 1
    assert link.set()["dropped"] > 0
    trial.finish()


def test_wire_that_hardly_carries_anything(trial, link):
    seconds = repeat(8, 15)
    row = trial.row(f"network: 40 % lost for {seconds} s")
    for _ in range(repeat(1, 3)):
        if not trial.over:
            with trial.fault(row):
                link.set(drop=0.4, delay_ms=50, jitter_ms=200)
                time.sleep(seconds)
                link.set(**CLEAN)
    assert row.times >= 1
    trial.finish()
