"""Local mode without workers: joining, stopping, and being killed."""

import json
import os
import signal
import subprocess
import time

from conftest import CommandLine


def home_of(cli):
    return cli.environment["BITALLOC_HOME"]


def service(cli):
    """What the supervisor says of itself; pid 0 between two of them."""
    try:
        with open(os.path.join(home_of(cli), "run/service.json")) as file:
            return json.load(file)
    except FileNotFoundError:
        return {"pid": 0, "processes": {"redis": 0, "coordinator": 0}}


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def idle_watch(cli, small_model):
    """A command that stays attached: follows a search that no worker runs. It, and the service."""
    data = home_of(cli) + ".jsonl"
    with open(data, "w") as file:
        file.write('{"text": "In the beginning"}\n')
    cli.json("submit", "--model", small_model, "--data", data, "--id", "idle")
    process = cli.start("watch", "idle", "--json")
    assert json.loads(process.stdout.readline())["state"] in ("queued", "running")
    return process, service(cli)


def test_stops_afterwards(tmp_path):
    cli = CommandLine(tmp_path / "home")
    assert cli.json("list") == []
    assert not (tmp_path / "home/run/service.json").exists()
    for file in (tmp_path / "home/run").iterdir():
        assert file.suffix == ".lock", file


def test_second_command_joins(tmp_path, small_model):
    cli = CommandLine(tmp_path / "home")
    watcher, before = idle_watch(cli, small_model)
    assert [row["id"] for row in cli.json("list")] == ["idle"]
    assert service(cli)["processes"] == before["processes"]
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait(30) == 130
    wait_until(lambda: not is_running(before["pid"]), "the supervisor stops")
    assert not any(map(is_running, before["processes"].values()))


def test_many_at_once(tmp_path):
    cli = CommandLine(tmp_path / "home")
    commands = [cli.start("list", "--json") for _ in range(6)]
    assert [command.communicate(timeout=60)[0] for command in commands] == ["[]\n"] * 6


def test_killed_command_frees_the_service(tmp_path, small_model):
    cli = CommandLine(tmp_path / "home")
    watcher, before = idle_watch(cli, small_model)
    watcher.kill()
    watcher.wait()
    wait_until(lambda: not is_running(before["pid"]), "the supervisor stops")
    assert not any(map(is_running, before["processes"].values()))


def test_parts_are_restarted_after_kill(tmp_path, small_model):
    cli = CommandLine(tmp_path / "home")
    watcher, before = idle_watch(cli, small_model)
    for part in ("redis", "coordinator"):
        os.kill(before["processes"][part], signal.SIGKILL)
        wait_until(lambda: service(cli)["processes"][part] not in (0, before["processes"][part]),
                   f"{part} runs again")
    assert [row["id"] for row in cli.json("list")] == ["idle"]
    cli.json("cancel", "idle")
    assert watcher.wait(60) == 1  # the same watch saw the end
    assert json.loads(watcher.stdout.read().splitlines()[-1])["state"] == "cancelled"


def test_supervisor_is_restarted_after_kill(tmp_path, small_model):
    cli = CommandLine(tmp_path / "home")
    watcher, before = idle_watch(cli, small_model)
    os.kill(before["pid"], signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, before["processes"].values())), "children die with it")
    wait_until(lambda: is_running(service(cli)["pid"]), "the attached command starts another")
    assert [row["id"] for row in cli.json("list")] == ["idle"]
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait(60) == 130


def test_left_over_redis_is_stopped(tmp_path, small_model):
    """A redis-server that outlived its supervisor never shares its file with a second one."""
    cli = CommandLine(tmp_path / "home")
    cli.json("list")
    home = tmp_path / "home"
    stray = subprocess.Popen(["redis-server", str(home / "redis/redis.conf")], stdout=subprocess.DEVNULL)
    with open(f"/proc/{stray.pid}/stat") as file:
        started = file.read().rpartition(")")[2].split()[19]
    (home / "run/redis.pid").write_text(f"{stray.pid} {started}\n")
    assert cli.json("list") == []
    assert stray.wait(30) == -signal.SIGKILL


def test_process_ids_of_others_are_left_alone(tmp_path):
    """A process file whose start time is another process's does not get that one killed."""
    cli = CommandLine(tmp_path / "home")
    cli.json("list")
    stranger = subprocess.Popen(["sleep", "60"])
    (tmp_path / "home/run/redis.pid").write_text(f"{stranger.pid} 12345\n")
    assert cli.json("list") == []
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_long_home(tmp_path):
    """Unix socket names end at 107 bytes; homes do not."""
    cli = CommandLine(tmp_path / ("long" * 40) / "home")
    assert cli.json("list") == []


def test_home_that_is_a_file(tmp_path):
    (tmp_path / "home").write_text("")
    error = CommandLine(tmp_path / "home").json("list", code=2)["error"]
    assert str(tmp_path / "home") in error["field"]


def test_without_redis_server(tmp_path):
    cli = CommandLine(tmp_path / "home")
    cli.environment["PATH"] = str(tmp_path)
    error = cli.json("list", code=3)["error"]
    assert "redis-server" in error["message"] and "apt-get install redis-server" in error["hint"]
