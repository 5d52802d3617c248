"""What Redis can do to us: no disk, no memory, no writes, no data, and a file from an hour ago."""

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import time

from conftest import SMALL_MODEL
from harness import Trial, bare, oracle, repeat, trial, wait_until

GONE_BACK = "Redis has gone back to an older state"


# ---- it refuses writes for a while ----------------------------------------------------------------


@contextlib.contextmanager
def settings(service, **values):
    before = {name: service.redis.config_get(name)[name] for name in values}
    for name, value in values.items():
        service.redis.config_set(name, value)
    yield
    for name, value in before.items():
        service.redis.config_set(name, value)


@contextlib.contextmanager
def replica(service):
    """A replica of a master that is not there."""
    service.redis.replicaof("127.0.0.1", 1)
    yield
    service.redis.replicaof("NO", "ONE")


@contextlib.contextmanager
def failed_snapshot(service):
    """With save points set, a snapshot that cannot be written makes Redis refuse writes (MISCONF)."""
    obstacle = service.data / "dump.rdb"
    obstacle.mkdir()
    with settings(service, save="3600 1"):
        service.redis.bgsave()
        wait_until(lambda: service.redis.info("persistence")["rdb_last_bgsave_status"] == "err",
                   "the snapshot has failed")
        yield
    obstacle.rmdir()


REFUSALS = {
    "Redis has too few replicas (NOREPLICAS)": lambda s: settings(s, **{"min-replicas-to-write": "1"}),
    "Redis is out of memory (OOM)": lambda s: settings(s, maxmemory="1mb"),
    "Redis has become a replica (READONLY)": replica,
    "Redis cannot write its snapshot (MISCONF)": failed_snapshot,
}


def test_refused_writes(trial):
    for what, refusal in REFUSALS.items():
        row = trial.row(what)
        for _ in range(repeat(1, 5)):
            mark = len(trial.service.said("coordinator"))
            with trial.fault(row), refusal(trial.service):
                trial.service.wait_for_log("coordinator", "Redis is lost", mark)
                time.sleep(0.5)
    trial.finish()


# ---- its disk is full -----------------------------------------------------------------------------


class SmallDisk:
    """A file system of 4 MiB under Redis, or where nothing may be mounted a limit on its files."""

    def __init__(self, service):
        self.service = service
        self.mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", service.data],
                                      capture_output=True).returncode == 0
        self.ballast = service.data / "ballast"

    def prefix(self):
        """With SIGXFSZ ignored, a write beyond the limit fails as one on a full disk does."""
        code = "import os, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); " \
               "os.execvp(sys.argv[1], sys.argv[1:])"
        return () if self.mounted else (sys.executable, "-c", code)

    @contextlib.contextmanager
    def full(self):
        if not self.mounted:
            process = self.service.parts["redis"].pid
            soft, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
            resource.prlimit(process, resource.RLIMIT_FSIZE, (1, hard))
            yield  # a Redis that is started again has the old limit
            return
        with self.ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        yield
        self.ballast.unlink()

    def close(self):
        self.service.end("redis")
        if self.mounted:
            subprocess.run(["umount", self.service.data], check=True)


def test_full_disk(bare, oracle):
    disk = SmallDisk(bare)
    try:
        bare.start_all(redis_prefix=disk.prefix())
        trial = Trial(bare, oracle)
        row = trial.row("Redis's disk is full")
        for _ in range(repeat(1, 5)):
            trial.run_on(3)
            with trial.fault(row):
                deaths = len(bare.exits["redis"])
                with disk.full():  # with appendfsync always, Redis ends when it cannot write
                    wait_until(lambda: len(bare.exits["redis"]) > deaths, "Redis ends")
                    time.sleep(1)
        trial.finish()
    finally:
        disk.close()


# ---- it forgets -----------------------------------------------------------------------------------


def restart_redis_with(service, change):
    """Ends Redis, changes its files, starts it again."""
    service.end("redis")
    change()
    service.start("redis")
    service.wait_for_redis()


def wait_for_restarted_coordinator(service, deaths, reason, mark):
    """The coordinator has said why, has ended with 1, and the keeper has started it again."""
    service.wait_for_log("coordinator", reason, mark)
    wait_until(lambda: len(service.exits["coordinator"]) > deaths, "the coordinator ends")
    assert service.exits["coordinator"][deaths] == 1


def goes_back(trial, row, change):
    service = trial.service
    deaths = len(service.exits["coordinator"])
    mark = len(service.said("coordinator"))
    with trial.fault(row):
        restart_redis_with(service, change)
    wait_for_restarted_coordinator(service, deaths, GONE_BACK, mark)


def test_older_file(trial):
    """Acknowledged results are gone from Redis. They are noticed and scored again."""
    service = trial.service
    files, copy = service.data / "appendonlydir", service.folder / "older"

    def put_back():
        shutil.rmtree(files)
        shutil.copytree(copy, files)

    def cut_tail():
        newest = max(files.glob("*.incr.aof"), key=os.path.getmtime)
        os.truncate(newest, newest.stat().st_size - 100)

    kinds = {trial.row("Redis comes back with an older file"): put_back,
             trial.row("Redis comes back with a truncated file"): cut_tail}
    for row, change in kinds.items():
        for _ in range(repeat(1, 5)):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(files, copy)
            trial.run_on(3)
            goes_back(trial, row, change)
    trial.finish("coordinator starts again; same scores")


def test_everything_lost(trial):
    """An empty Redis ends the coordinator; its clients are told, and the search can be made again."""
    service = trial.service
    row = trial.row("Redis comes back empty")
    watcher = service.cli.start("watch", "s", "--json")
    watcher.stdout.readline()
    mark = len(service.said("coordinator"))
    restart_redis_with(service, lambda: shutil.rmtree(service.data / "appendonlydir"))
    wait_for_restarted_coordinator(service, 0, "Redis has lost its data", mark)
    said, _ = watcher.communicate(timeout=60)
    assert watcher.returncode == 4 and "there is no search 's'" in said
    row.times = 1
    service.cli.json("status", "s", code=4)
    service.submit(SMALL_MODEL)
    trial.finish("clear stop; submitted again: same scores")


def test_start_while_redis_is_loading(bare, oracle):
    """A long file takes Redis a while; a coordinator that starts meanwhile waits for it."""
    bare.define_redis()
    bare.start("redis")
    bare.wait_for_redis()
    bare.redis.eval("for i = 1, 10000 do redis.call('SET', 'k' .. i, i) end", 0)
    bare.end("redis")
    bare.start_all(redis_settings=("--key-load-delay", "200"), wait_for_redis=False)
    trial = Trial(bare, oracle)
    row = trial.row("Redis takes seconds to read its file")
    row.times = 1
    assert "Redis is loading its file" in bare.said("coordinator")
    trial.finish()
