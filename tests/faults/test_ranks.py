"""Ranks of one tensor-parallel worker die and freeze: their group goes down and comes back as one."""

import subprocess

import pytest

from conftest import BUILD
from harness import Trial, bare, repeat, undisturbed

SEQUENCES = repeat(12, 64)  # two ranks on two cores are slow
RANKS = {"worker-0": "rank 0 of --tp 2", "rank-1": "rank 1 of --tp 2"}


@pytest.fixture
def trial(bare):
    usage = subprocess.run([BUILD / "bin/bitalloc-worker", "--help"], capture_output=True, text=True)
    if "--rendezvous" not in usage.stdout:
        pytest.skip("this bitalloc-worker has no --tp")
    trial = Trial(bare.start_all(ranks=len(RANKS)), undisturbed(len(RANKS), SEQUENCES))
    trial.run_on(3)
    return trial


def test_killed_and_frozen_ranks(trial):
    """The others end when a rank is silent; a frozen one wakes up in a group that is gone."""
    trial.strike("kill -9", RANKS, repeat(1, 10), trial.service.kill)
    trial.freeze(RANKS, repeat(1, 3))
    trial.finish()
