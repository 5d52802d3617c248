"""kill -9 and SIGSTOP of every process, again and again during one search."""

import json
import os
import random
import signal
import subprocess
import time

import pytest

import rows
from conftest import BUILD, SMALL_MODEL, CommandLine
from harness import (WORKERS, Row, answers, bare, count_doubled, oracle, repeat, search_arguments,
                     trial, units_of, wait_until)

SEQUENCES = repeat(48, 160)  # enough for all that happens to one search
TOTAL = units_of(SEQUENCES)
PARTS = ["coordinator", "redis", *(f"worker-{index}" for index in range(WORKERS))]


def test_killed_again_and_again(trial):
    """Every part in turn, and all at once, in an order of its own each round."""
    seed = int(os.environ.get("BITALLOC_SEED", time.time_ns() % 1_000_000))
    print(f"BITALLOC_SEED={seed} replays this order of faults")
    order = random.Random(seed)
    kinds = {(part,): trial.row(f"kill -9: {part}") for part in PARTS}
    kinds[tuple(PARTS)] = trial.row("kill -9: all at once")
    for _ in range(repeat(2, 10)):
        for parts in order.sample(list(kinds), len(kinds)):
            if trial.over:
                break
            with trial.fault(kinds[parts]):
                trial.service.kill(*parts)
            time.sleep(order.uniform(0, 0.5))
    assert all(row.times >= repeat(1, 5) for row in kinds.values())
    trial.finish()


def test_frozen(trial):
    # The worker last: the other one goes on meanwhile, perhaps to the end.
    trial.freeze({part: part for part in ("redis", "coordinator", "worker-0")}, repeat(1, 3))
    trial.finish()


@pytest.mark.skipif(not repeat(False, True), reason="takes minutes: with BITALLOC_FAULTS_LONG=1")
def test_worker_frozen_for_longer_than_its_lease(trial):
    row = trial.row("SIGSTOP for 35 s (a lease lives 30 s): worker-0")
    with trial.fault(row), trial.service.frozen("worker-0"):
        time.sleep(35)
    trial.finish()


# ---- local mode: the supervisor restarts, not this test -------------------------------------------


class LocalSearch:
    """`bitalloc search` on a home of its own."""

    def __init__(self, folder):
        self.cli = CommandLine(folder / "home")
        self.home = folder / "home"
        self.command = None

    def start(self):
        self.command = self.cli.start("search", *search_arguments(SMALL_MODEL, SEQUENCES), "--device",
                                      "cpu", "--workers", WORKERS, "--threads", 1, "--json")

    def service(self):
        try:
            return json.loads((self.home / "run/service.json").read_text())
        except FileNotFoundError:
            return {"processes": {}}

    def process(self, part):
        """Its id, once it runs."""
        def found():
            assert self.command.poll() is None, "the search was over before its faults were made"
            service = self.service()
            return (service.get("pid") if part == "supervisor" else service["processes"].get(part)) or None
        return wait_until(found, f"{part} runs")

    def done(self):
        said = subprocess.run([BUILD / "bin/bitalloc", "status", "s", "--json"], text=True,
                              env=self.cli.environment, stdout=subprocess.PIPE)
        return json.loads(said.stdout)["units"]["done"] if said.returncode == 0 else 0

    def fault(self, row, make):
        before = self.done()
        make()
        row.times += 1
        ended = time.monotonic()
        wait_until(lambda: self.done() >= min(before + 1, TOTAL), "the next unit is done")
        row.recovery_s.append(time.monotonic() - ended)


def test_local_mode(tmp_path, oracle):
    """Every child of the supervisor, the supervisor and the command are killed during one search."""
    search = LocalSearch(tmp_path)
    search.start()
    wait_until(lambda: search.done() >= 3, "three units are done")
    kinds = [Row(f"local mode, kill -9: {part}") for part in (*PARTS, "supervisor", "command")]
    for row in kinds:
        part = row.fault.rpartition(" ")[2]

        def kill():
            if part == "command":
                search.command.kill()
                search.command.communicate()
                search.start()
            else:
                os.kill(search.process(part), signal.SIGKILL)

        for _ in range(repeat(1, 3)):
            search.fault(row, kill)
    out, errors = search.command.communicate(timeout=300)
    assert search.command.returncode == 0, errors
    found = answers(search)
    status = search.cli.json("status", "s")
    lost = TOTAL - status["units"]["done"]
    for row in kinds:
        rows.write(row, lost=lost, doubled=count_doubled(found, oracle), run_again=0, end="same scores")
    assert found == {key: oracle[key] for key in ("scores", "frontier")}
    assert status["state"] == "done" and lost == 0
