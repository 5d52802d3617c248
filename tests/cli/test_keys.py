"""Keys as users make and use them: `bitalloc keys`, `serve --listen`, clients with and without."""

import json
import socket
import stat
import subprocess
import time

import pytest

from conftest import BUILD, CommandLine


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def error(done):
    return json.loads(done.stdout)["error"]


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def own(home):
    return CommandLine(home)


class Served:
    """`bitalloc serve --listen` on a home of its own, without workers that need a model."""

    def __init__(self, own, home, *flags):
        self.home = home
        self.client = f"tcp://127.0.0.1:{free_port()}"
        self.process = own.start("serve", "--listen", self.client, *flags)
        deadline = time.monotonic() + 60
        self.lines = []
        while time.monotonic() < deadline:
            self.lines.append(self.process.stdout.readline())
            if "clients with keys" in self.lines[-1]:
                return
        raise AssertionError(f"serve does not start: {self.lines}")

    def keys(self, *names):
        keys = self.home / "keys"
        return ["--server", self.client, "--server-public-key", keys / "server.pub", "--key", keys / names[0]]


def test_a_secret_is_for_its_owner_alone(own, home):
    made = own.json("keys", "new", "--role", "worker", "--name", "gpu-1")
    secret = home / "keys/gpu-1.key"
    assert made["key_file"] == str(secret) and made["allowed"] is False
    assert mode(secret) == 0o600 and mode(home / "keys") == 0o700
    role, name, public = (home / "keys/gpu-1.pub").read_text().split()
    assert (role, name, public) == ("worker", "gpu-1", made["public_key"]) and len(public) == 40
    assert "secret worker gpu-1" in secret.read_text() and public not in secret.read_text()
    again = own.run("keys", "new", "--role", "worker", "--name", "gpu-1", code=2)
    assert "gpu-1.key" in again.stderr


def test_the_list_is_edited_by_name(own, home, tmp_path):
    assert own.json("keys", "list") == []
    own.run("keys", "server")
    own.run("keys", "new", "--role", "client", "--name", "ann", "--output", tmp_path)
    own.run("keys", "allow", tmp_path / "ann.pub")
    own.run("keys", "allow", tmp_path / "ann.pub")  # again: nothing changes
    own.run("keys", "new", "--role", "viewer", "--name", "bob", "--allow")
    listed = own.json("keys", "list")
    assert [(row["role"], row["name"]) for row in listed] == [("client", "ann"), ("viewer", "bob")]

    own.run("keys", "new", "--role", "admin", "--name", "ann")
    other = own.run("keys", "allow", home / "keys/ann.pub", code=2)
    assert "revoke ann" in other.stderr, "the same name with another key"
    assert "secret key" in own.run("keys", "allow", tmp_path / "ann.key", code=2).stderr
    assert "server's key" in own.run("keys", "allow", home / "keys/server.pub", code=2).stderr

    own.run("keys", "revoke", "ann")
    assert [row["name"] for row in own.json("keys", "list")] == ["bob"]
    own.run("keys", "revoke", "ann", code=4)
    with (home / "keys/allowed_keys").open("a") as file:
        file.write("client eve nonsense\n")
    assert "allowed_keys:3" in own.run("keys", "list", code=2).stderr


def test_bad_names_and_roles_are_refused(own):
    own.run("keys", "new", "--role", "king", code=2)
    own.run("keys", "new", "--role", "client", "--name", "../ann", code=2)
    own.run("keys", code=2)


def test_who_gets_in(own, home, tmp_path):
    served = Served(own, home)
    assert (home / "keys/server.key").exists(), "serve makes its own key"
    own.run("keys", "new", "--role", "client", "--name", "ann", "--allow")
    own.run("keys", "new", "--role", "viewer", "--name", "vera", "--allow")
    own.run("keys", "new", "--role", "client", "--name", "eve")
    own.run("keys", "new", "--role", "worker", "--name", "w", "--allow")
    time.sleep(2.5)  # the service looks once a second

    far = CommandLine(tmp_path / "far")  # somebody else's home
    assert far.json("list", *served.keys("ann.key")) == []
    assert far.json("workers", *served.keys("vera.key")) is not None

    start = time.monotonic()
    for keys in (served.keys("eve.key"), ["--server", served.client]):
        refused = far.run("list", *keys, "--json", code=3)
        assert "key" in error(refused)["hint"], refused.stdout
    wrong = served.keys("ann.key")
    own.run("keys", "server", "--name", "other", "--output", tmp_path)
    wrong[3] = tmp_path / "other.pub"
    assert "public key" in error(far.run("list", *wrong, "--json", code=3))["hint"]
    assert time.monotonic() - start < 60, "refusals are told, not waited for"

    denied = far.run("cancel", "none", *served.keys("vera.key"), "--json", code=2)
    assert error(denied)["field"] == "key" and "client" in error(denied)["message"]
    assert "worker" in error(far.run("list", *served.keys("w.key"), "--json", code=2))["message"]
    missing = far.run("list", "--server", "tcp://192.0.2.1:7600", "--json", code=2)
    assert error(missing)["field"] == "server_public_key"

    (home / "keys/ann.key").chmod(0o644)
    opened = far.run("list", *served.keys("ann.key"), "--json", code=2)
    assert error(opened)["hint"].startswith("chmod 600")
    assert "chmod 600" in own.run("doctor", "--json", code=1).stdout
    (home / "keys/ann.key").chmod(0o600)

    own.run("keys", "revoke", "ann")
    time.sleep(2.5)
    assert "refuses this key" in far.run("list", *served.keys("ann.key"), code=3).stderr


def test_settings_name_the_keys(own, home, tmp_path):
    served = Served(own, home)
    own.run("keys", "new", "--role", "client", "--allow")
    time.sleep(2.5)
    config = tmp_path / "bitalloc.yaml"
    config.write_text(f"server: {served.client}\nkey: {home}/keys/client.key\n"
                      f"server_public_key: {home}/keys/server.pub\n")
    far = CommandLine(tmp_path / "far")
    far.environment["BITALLOC_CONFIG"] = str(config)
    assert far.json("list") == []
    far.environment["BITALLOC_KEY"] = str(tmp_path / "none.key")  # the environment wins
    assert "none.key" in far.run("list", code=2).stderr
    # A secret in the environment, for who has no files.
    del far.environment["BITALLOC_KEY"]
    config.write_text(f"server: {served.client}\nserver_public_key: {home}/keys/server.pub\n")
    far.environment["BITALLOC_SECRET_KEY"] = (home / "keys/client.key").read_text().split()[-1]
    assert far.json("list") == []
    # On the machine of the service the home's own keys are found.
    assert own.json("list", "--server", served.client) == []


def test_serve_refuses_what_is_no_door(own, home, tmp_path):
    assert "tcp://" in own.run("serve", "--listen", "ipc:///tmp/x.sock", code=2).stderr
    assert "is not a directory" in own.run("serve", "--model-root", tmp_path / "none", code=2).stderr
    assert not (home / "run/service.json").exists()


def test_models_must_be_below_their_root(own, home, tmp_path, small_model):
    (tmp_path / "models").mkdir()
    served = Served(own, home, "--model-root", tmp_path / "models")
    data = small_model.parent / "score.jsonl"
    texts = data if data.exists() else next(small_model.parent.glob("*.jsonl"))
    refused = own.run("submit", "--model", small_model, "--data", texts, "--json", code=2)
    assert error(refused)["field"] == "model.path"
    assert served.process.poll() is None


def test_a_worker_is_told_why_it_is_refused(own, home, tmp_path):
    worker = BUILD / "bin/bitalloc-worker"
    if not worker.exists():
        pytest.skip("bitalloc-worker was not built")
    port = free_port()
    Served(own, home, "--listen-workers", f"tcp://127.0.0.1:{port}")
    own.run("keys", "new", "--role", "worker", "--name", "gpu")
    own.run("keys", "new", "--role", "client", "--name", "ann")
    command = [worker, "--coordinator", f"tcp://127.0.0.1:{port}", "--server-public-key", home / "keys/server.pub",
               "--device", "cpu"]
    done = subprocess.run([*command, "--key", home / "keys/ann.key"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "is the key of a client" in done.stderr
    log = tmp_path / "worker.log"
    process = subprocess.Popen([*command, "--key", home / "keys/gpu.key", "--log-file", log])
    try:
        wait_for(lambda: log.exists() and "refuses this key" in log.read_text())
        own.run("keys", "allow", home / "keys/gpu.pub")
        wait_for(lambda: own.json("workers") and len(own.json("workers")) == 2)  # serve's own one, too
    finally:
        process.kill()
        process.wait()


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.2)
