"""Ranks of one tensor-parallel worker die and freeze: their group goes down and comes back as one."""

import subprocess
import time

import pytest

from conftest import BUILD
from harness import LIVENESS_S, Trial, bare, repeat, undisturbed

RANKS = {"worker-0": "rank 0", "rank-1": "rank 1"}


@pytest.fixture
def trial(bare):
    usage = subprocess.run([BUILD / "bin/bitalloc-worker", "--help"], capture_output=True, text=True)
    if "--rendezvous" not in usage.stdout:
        pytest.skip("this bitalloc-worker has no --tp")
    trial = Trial(bare.start_all(ranks=len(RANKS)), undisturbed(ranks=len(RANKS)))
    trial.run_on(3)
    return trial


def test_killed_ranks(trial):
    kinds = {part: trial.row(f"kill -9: {rank} of --tp 2") for part, rank in RANKS.items()}
    for _ in range(repeat(1, 10)):
        for part, row in kinds.items():
            if not trial.over:
                with trial.fault(row):
                    trial.service.kill(part)
    assert all(row.times >= 1 for row in kinds.values())
    trial.finish()


def test_frozen_ranks(trial):
    """The others end when a rank is silent; the frozen one wakes up in a group that is gone."""
    for part, rank in RANKS.items():
        row = trial.row(f"SIGSTOP for {LIVENESS_S + 2} s: {rank} of --tp 2")
        for _ in range(repeat(1, 3)):
            if not trial.over:
                with trial.fault(row), trial.service.frozen(part):
                    time.sleep(LIVENESS_S + 2)
        assert row.times >= 1
    trial.finish()
