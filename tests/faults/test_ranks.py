"""Ranks of one tensor-parallel worker die and freeze: their group goes down and comes back as one."""

import subprocess

import pytest

from conftest import BUILD
from harness import Trial, bare, repeat, undisturbed

RANKS = {"worker-0": "rank 0 of --tp 2", "rank-1": "rank 1 of --tp 2"}


@pytest.fixture
def trial(bare):
    usage = subprocess.run([BUILD / "bin/bitalloc-worker", "--help"], capture_output=True, text=True)
    if "--rendezvous" not in usage.stdout:
        pytest.skip("this bitalloc-worker has no --tp")
    trial = Trial(bare.start_all(ranks=len(RANKS)), undisturbed(ranks=len(RANKS)))
    trial.run_on(3)
    return trial


def test_killed_ranks(trial):
    trial.strike("kill -9", RANKS, repeat(1, 10), trial.service.kill)
    trial.finish()


def test_frozen_ranks(trial):
    """The others end when a rank is silent; the frozen one wakes up in a group that is gone."""
    trial.freeze(RANKS, repeat(1, 3))
    trial.finish()
