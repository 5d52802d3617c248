"""A whole service of real parts, each of which a test can kill, freeze, starve or cut off.

`Service` is redis-server, bitalloc-coordinator and bitalloc-workers in one folder; a keeper starts
again what ends, as Kubernetes would. `Trial` runs one search on it, notes what was durable before
every fault, times the way back, and at the end compares the scores with those of a search that
nobody disturbed (`oracle`). Each kind of fault becomes one row of the table (`rows.py`).
"""

import collections
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import redis

import rows
from conftest import BUILD, SMALL_MODEL, SOURCE, CommandLine

LONG = os.environ.get("BITALLOC_FAULTS_LONG") == "1"
SEQUENCES = 64 if LONG else 24  # of a search, unless the test's module names its own SEQUENCES
WORKERS = 2
LIVENESS_S = 5  # wire.h: five heartbeats of a second
CACHE = BUILD / "faults"
PATIENCE_S = 300  # for what takes seconds on a quiet machine


def repeat(everyday, long):
    return long if LONG else everyday


def units_of(sequences):
    """Of a search of the small model: one for each of its 12 layers and each batch of 2."""
    return sequences // 2 * 12


def wait_until(condition, what, seconds=PATIENCE_S):
    """What `condition` gives, once that is neither None nor False."""
    deadline = time.monotonic() + seconds
    while (value := condition()) is None or value is False:
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return value


def without_time(answer):
    """An assignment without the time that solving took."""
    return {key: value for key, value in answer.items() if key != "solve_ms"}


class Service:
    """The parts and their files. `parts` are the processes; `keep` names those the keeper restarts."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="ba-"))  # a short name: unix sockets want that
        self.data = self.folder / "redis"
        self.data.mkdir()
        self.commands = {}
        self.parts = {}
        self.keep = set()
        self.exits = collections.defaultdict(list)  # exit codes, by part
        self._lock = threading.RLock()  # guards parts, keep and exits
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep_alive, daemon=True)
        self._keeper.start()
        self.cli = CommandLine(self.folder / "home")
        self.cli.environment["BITALLOC_SERVER"] = self.endpoint("client")
        self.redis = redis.Redis(unix_socket_path=str(self.folder / "redis.sock"), socket_timeout=5,
                                 retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0))

    # ---- processes ------------------------------------------------------------------------------

    def endpoint(self, side):
        return f"ipc://{self.folder}/{side}.sock"

    def define_redis(self, *extra, prefix=()):
        self.commands["redis"] = [
            *prefix, "redis-server", "--port", "0", "--unixsocket", self.folder / "redis.sock",
            "--dir", self.data, "--save", "", "--appendonly", "yes", "--appendfsync", "always",
            "--maxmemory-policy", "noeviction", "--enable-debug-command", "yes", *extra]

    def define_coordinator(self, *extra, name="coordinator"):
        self.commands[name] = [
            BUILD / "bin/bitalloc-coordinator", "--redis", f"unix://{self.folder}/redis.sock",
            "--client-endpoint", self.endpoint("client"), "--worker-endpoint",
            self.endpoint("worker"), *extra]

    def define_worker(self, index, *extra, endpoint=None, prefix=()):
        self.commands[f"worker-{index}"] = [
            *prefix, BUILD / "bin/bitalloc-worker", "--coordinator",
            endpoint or self.endpoint("worker"), "--device", "cpu", "--threads", "1", *extra]

    def define_group(self, ranks):
        """One worker of so many processes: worker-0 is rank 0, the others are rank-1, …"""
        with socket.create_server(("127.0.0.1", 0)) as free:
            rendezvous = f"127.0.0.1:{free.getsockname()[1]}"
        group = ["--tp", ranks, "--rendezvous", rendezvous, "--rank"]
        self.define_worker(0, *group, 0)
        for rank in range(1, ranks):
            self.commands[f"rank-{rank}"] = [BUILD / "bin/bitalloc-worker", "--device", "cpu",
                                             "--threads", "1", *group, rank]

    def start(self, name, keep=True):
        with self._lock:
            log = open(self.log(name), "ab")
            if name == "redis":
                (self.folder / "redis.sock").unlink(missing_ok=True)
            # Whatever kills these tests must not leave parts behind.
            command = ["setpriv", "--pdeathsig", "KILL", *map(str, self.commands[name])]
            self.parts[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            log.close()
            (self.keep.add if keep else self.keep.discard)(name)
        return self.parts[name]

    def start_all(self, redis_settings=(), redis_prefix=(), wait_for_redis=True,
                  worker_endpoint=None, worker_prefix=(), ranks=1):
        self.define_redis(*redis_settings, prefix=redis_prefix)
        # Kubernetes runs one coordinator at a time: the one that starts need not wait for the lock.
        self.define_coordinator("--take-over")
        self.start("redis")
        if wait_for_redis:
            self.wait_for_redis()
        else:
            wait_until((self.folder / "redis.sock").exists, "Redis listens")
        self.start("coordinator")
        if ranks > 1:
            self.define_group(ranks)
        else:
            for index in range(WORKERS):
                self.define_worker(index, endpoint=worker_endpoint, prefix=worker_prefix)
        for name in self.commands:
            if name.startswith(("worker-", "rank-")):
                self.start(name)
        return self

    def _keep_alive(self):
        while not self._over.wait(0.05):
            with self._lock:
                for name, process in list(self.parts.items()):
                    if name in self.keep and process.poll() is not None:
                        self.exits[name].append(process.returncode)
                        self.start(name)

    def kill(self, *names):
        """kill -9; the keeper starts them again."""
        with self._lock:
            for name in names:
                self.parts[name].kill()

    def end(self, name, number=signal.SIGKILL):
        """Ends a part and leaves it ended. Its exit code."""
        with self._lock:
            self.keep.discard(name)
            self.parts[name].send_signal(number)
        return self.parts[name].wait(PATIENCE_S)

    @contextlib.contextmanager
    def frozen(self, name):
        process = self.parts[name]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def close(self):
        self._over.set()
        self._keeper.join()
        for process in self.parts.values():
            process.kill()
            process.wait()
        self.redis.close()

    def remove(self):
        shutil.rmtree(self.folder)

    # ---- what it says ---------------------------------------------------------------------------

    def log(self, name):
        return self.folder / f"{name}.log"

    def said(self, name):
        try:
            return self.log(name).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def wait_for_log(self, name, text, after=0):
        wait_until(lambda: text in self.said(name)[after:], f"'{text}' in the log of {name}")

    def wait_for_redis(self):
        def answers():
            with contextlib.suppress(redis.exceptions.RedisError):
                return self.redis.ping()
        wait_until(answers, "Redis answers")

    def durable(self, search="s"):
        """The units whose results Redis holds, or None while it does not say."""
        with contextlib.suppress(redis.exceptions.RedisError):
            return {field.decode() for field in self.redis.hkeys(f"bitalloc:{{{search}}}:results")}

    def results(self, search="s"):
        """What Redis holds of every unit."""
        stored = self.redis.hgetall(f"bitalloc:{{{search}}}:results")
        return {unit.decode(): value.hex() for unit, value in stored.items()}

    def durable_now(self, search="s"):
        return wait_until(lambda: self.durable(search), "Redis answers")

    def status(self, search="s"):
        """What `bitalloc status` says, or None while nothing answers it."""
        said = subprocess.run([BUILD / "bin/bitalloc", "status", search, "--json"], text=True,
                              env=self.cli.environment, stdout=subprocess.PIPE)
        assert said.returncode in (0, 3), said.stdout
        return json.loads(said.stdout) if said.returncode == 0 else None

    def runs_of(self, worker, search="s"):
        """The units that a worker has computed, as its log says."""
        return re.findall(rf"unit (\S+) of {search}: ", self.said(worker))

    def runs_of_units(self, search="s"):
        """How often each unit was computed."""
        workers = [name for name in self.commands if name.startswith("worker")]
        return collections.Counter(unit for worker in workers for unit in self.runs_of(worker, search))

    def submit(self, model, sequences=SEQUENCES):
        return self.cli.json("submit", *search_arguments(model, sequences))


def search_arguments(model, sequences=SEQUENCES):
    return ["--model", model, "--data", tokens_file(sequences), "--batch", 2, "--sites-per-unit", 1,
            "--id", "s"]


# ---- the undisturbed search -----------------------------------------------------------------------


def cached(name, make):
    """The file `name` of the cache; `make(path)` writes it when it is not there. Between processes."""
    CACHE.mkdir(parents=True, exist_ok=True)
    path = CACHE / name
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            make(path)
    return path


def texts_file():
    """All texts of the fixtures in one file: 160."""
    def make(path):
        texts = sorted((SOURCE / "tests/fixtures/small").glob("*.jsonl"))
        path.write_text("".join(file.read_text() for file in texts))
    return cached("texts.jsonl", make)


def tokens_file(sequences):
    def make(path):
        CommandLine(CACHE / "home").run("tokenize", "--model", SMALL_MODEL, "--input", texts_file(),
                                        "--output", path, "--sequences", sequences, "--length", 128)
    return cached(f"tokens-{sequences}.safetensors", make)


def undisturbed(ranks=1, sequences=SEQUENCES):
    """{"sequences": …, "scores": …, "frontier": …, "results": {unit: packed, hex}} of a search without
    any fault.

    Kept for the worker program that made it: another build computes it anew. `ranks`: a model on
    several processes sums in another order, so it has scores of its own.
    """
    program = (BUILD / "bin/bitalloc-worker").stat()

    def make(path):
        service = Service().start_all(ranks=ranks)
        try:
            Trial(service, {"sequences": sequences}).wait_for_end()
            found = {"sequences": sequences, **answers(service), "results": service.results()}
            assert len(found["results"]) == units_of(sequences)
        finally:
            service.close()
            service.remove()
        path.write_text(json.dumps(found))
    name = f"oracle-{sequences}-{ranks}-{program.st_size}-{program.st_mtime_ns}.json"
    tokens_file(sequences)
    return json.loads(cached(name, make).read_text())


def answers(service, search="s"):
    return {"scores": without_time(service.cli.json("assignment", search, "--scores")),
            "frontier": service.cli.json("frontier", search)}


# ---- one search under faults ----------------------------------------------------------------------


class Row:
    """One kind of fault: how often it was made, and how long until the next durable result."""

    def __init__(self, fault):
        self.fault = fault
        self.times = 0
        self.recovery_s = []


class Trial:
    """One search on a service, from its submission to the comparison of its scores."""

    def __init__(self, service, oracle, model=SMALL_MODEL):
        self.service = service
        self.oracle = oracle
        self.total = units_of(oracle["sequences"])
        self.rows = []
        self.acknowledged = set()  # every unit that was durable before some fault
        wait_until(lambda: os.path.exists(service.folder / "client.sock"), "the coordinator listens")
        self.service.submit(model, oracle["sequences"])

    def row(self, fault):
        self.rows.append(Row(fault))
        return self.rows[-1]

    @property
    def over(self):
        return len(self.service.durable_now()) >= self.total

    def wait_for_results(self, count):
        """Until so many results are durable (or all that the search has)."""
        wait_until(lambda: len(self.service.durable() or ()) >= min(count, self.total), f"{count} results")

    def run_on(self, results=3):
        """Lets the search get on by so many results."""
        self.wait_for_results(len(self.service.durable_now()) + results)

    @contextlib.contextmanager
    def fault(self, row):
        """The body makes the fault and takes it away; then the next durable result is waited for."""
        self.acknowledged |= self.service.durable_now()
        yield
        row.times += 1
        ended = time.monotonic()
        self.wait_for_results(len(self.service.durable_now()) + 1)
        row.recovery_s.append(time.monotonic() - ended)

    def strike(self, what, parts, rounds, make):
        """`make(part)`, a fault, for each of `parts` ({part: its name in the table}) in turn."""
        kinds = {part: self.row(f"{what}: {name}") for part, name in parts.items()}
        for _ in range(rounds):
            for part, row in kinds.items():
                if not self.over:
                    with self.fault(row):
                        make(part)
        assert all(row.times >= 1 for row in kinds.values())

    def freeze(self, parts, rounds, seconds=LIVENESS_S + 2):
        """SIGSTOP for longer than anybody waits for a sign of life, then SIGCONT."""
        def make(part):
            with self.service.frozen(part):
                time.sleep(seconds)
        self.strike(f"SIGSTOP for {seconds} s", parts, rounds, make)

    def wait_for_end(self):
        def ended():
            status = self.service.status()
            assert status is None or status["state"] in ("queued", "running", "done"), status
            return status if status and status["state"] == "done" else None
        return wait_until(ended, "the search is done", 2 * PATIENCE_S)

    def finish(self, end="same scores"):
        """Waits for the end and compares everything; writes the rows."""
        status = self.wait_for_end()
        stored = self.service.results()
        found = answers(self.service)
        lost = len(self.acknowledged - set(stored))
        doubled = count_doubled(found, self.oracle)
        again = sum(self.service.runs_of_units().values()) - len(stored)
        for row in self.rows:
            rows.write(row, lost=lost, doubled=doubled, run_again=max(again, 0), end=end)
        assert lost == 0 and doubled == 0
        units = {"total": self.total, "done": self.total, "leased": 0, "failed": 0}
        assert units.items() <= status["units"].items()
        assert status["conflicts"] == 0
        assert "differ (the second" not in self.service.said("coordinator")
        assert stored == self.oracle["results"]
        assert found == {key: self.oracle[key] for key in ("scores", "frontier")}


def count_doubled(found, oracle):
    """Scores into which more tokens were counted than there are."""
    doubled = 0
    for site, right in zip(found["scores"]["sites"], oracle["scores"]["sites"]):
        for candidate, score in site["scores"].items():
            doubled += score["tokens"] > right["scores"][candidate]["tokens"]
    return doubled


# ---- fixtures: test files import them by name -----------------------------------------------------


@pytest.fixture
def oracle(request):
    return undisturbed(sequences=getattr(request.module, "SEQUENCES", SEQUENCES))


@pytest.fixture
def bare():
    """A service of which nothing runs yet. Its logs are shown when the test fails."""
    service = Service()
    yield service
    service.close()
    for name in service.commands:
        print(f"---- {name}\n" + "\n".join(service.said(name).splitlines()[-25:]), file=sys.stderr)
    service.remove()


@pytest.fixture
def trial(bare, oracle):
    """A search that has just begun on a service of two workers."""
    trial = Trial(bare.start_all(), oracle)
    trial.run_on(3)
    return trial
