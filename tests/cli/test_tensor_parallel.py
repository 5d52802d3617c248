"""One model over several processes: the same scores, and a group that loses or freezes a rank."""

import json
import os
import signal
import subprocess
import time

import pytest

from conftest import BUILD, SOURCE, CommandLine

DATA = SOURCE / "tests/fixtures/small/score.jsonl"
# 8 batches × 12 layers: long enough that a fault finds some units done and some to do.
SHAPE = ["--sequences", 16, "--length", 128, "--batch", 2, "--sites-per-unit", 1, "--device", "cpu"]
RANKS = {0: "worker-0", 1: "worker-0-rank-1"}


def search_arguments(model, *more):
    return ["search", "--model", model, "--data", DATA, *SHAPE, "--id", "s", *more]


def service(cli):
    with open(os.path.join(cli.environment["BITALLOC_HOME"], "run/service.json")) as file:
        return json.load(file)


def log(cli, name):
    with open(os.path.join(cli.environment["BITALLOC_HOME"], "logs", name + ".log")) as file:
        return file.read()


def scores(cli):
    """{(site, candidate): nats, summed over tokens}"""
    answer = cli.json("assignment", "s", "--scores")
    return {(site["site"], candidate): row["kl_sum_nats"]
            for site in answer["sites"] for candidate, row in site["scores"].items()}


def wait_for_units(cli, count):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            units = cli.json("status", "s")["units"]
        except AssertionError:
            units = {"done": 0}  # the command has not submitted it yet
        if units["done"] >= count:
            assert units["done"] < units["total"], "the search ended before its fault: make it longer"
            return
        time.sleep(0.2)
    raise AssertionError(f"no {count} units within 300 s")


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory, small_model):
    cli = CommandLine(tmp_path_factory.mktemp("two"))
    cli.run(*search_arguments(small_model, "--tp", 2))
    return scores(cli)


def test_same_scores_as_one_process(tmp_path, small_model, on_two_ranks):
    cli = CommandLine(tmp_path / "home")
    cli.run(*search_arguments(small_model))
    alone = scores(cli)
    assert alone.keys() == on_two_ranks.keys()
    for trial, expected in alone.items():
        assert on_two_ranks[trial] == pytest.approx(expected, rel=1e-5, abs=0), trial


@pytest.mark.parametrize("what", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_is_lost(tmp_path, small_model, on_two_ranks, rank, what):
    """All of its worker ends, all of it starts anew, and nothing of the search is lost."""
    cli = CommandLine(tmp_path / "home")
    command = cli.start(*search_arguments(small_model, "--tp", 2))
    wait_for_units(cli, 3)
    before = service(cli)["processes"]
    os.kill(before[RANKS[rank]], getattr(signal, what))
    _, errors = command.communicate(timeout=300)
    assert command.returncode == 0, errors
    assert scores(cli) == on_two_ranks
    lost = f"rank {rank} of 2 has not been heard"
    assert lost in log(cli, RANKS[1 - rank])
    for pid in before.values():
        assert not os.path.exists(f"/proc/{pid}"), "a process of the broken group, or of the service, is left"


def test_workers_show_their_ranks(tmp_path, small_model):
    cli = CommandLine(tmp_path / "home")
    serving = cli.start("serve", "--tp", 2, "--workers", 1, "--device", "cpu", "--json")
    assert json.loads(serving.stdout.readline())["workers"] == 1
    deadline = time.monotonic() + 120
    while not (rows := cli.json("workers")):
        assert time.monotonic() < deadline, "no worker within 120 s"
        time.sleep(0.1)
    assert [row["tp"] for row in rows] == [2]
    processes = service(cli)["processes"]
    serving.send_signal(signal.SIGINT)
    assert serving.wait(60) == 0
    for pid in processes.values():
        assert not os.path.exists(f"/proc/{pid}")


def test_heads_that_do_not_divide_are_refused(tmp_path, small_model):
    cli = CommandLine(tmp_path / "home")
    refused = cli.run(*search_arguments(small_model, "--tp", 3), code=2)
    assert "4 attention heads and 2 KV heads cannot be cut into 3 shards" in refused.stderr
    assert "1, 2, 4" in refused.stderr


@pytest.mark.parametrize("arguments, field", [
    (["--tp", "2", "--coordinator", "ipc:///nowhere"], "--rendezvous"),
    (["--tp", "2", "--rank", "2", "--rendezvous", "127.0.0.1:1"], "--rank 2 of --tp 2"),
    (["--tp", "2", "--rank", "1", "--rendezvous", "nonsense"], "not HOST:PORT"),
    ([], "--coordinator"),
])
def test_a_rank_with_bad_flags(arguments, field):
    done = subprocess.run([BUILD / "bin/bitalloc-worker", "--device", "cpu", *arguments],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert field in done.stderr
