"""`bitalloc serve --http`: the page's address and token as printed, and what they open."""

import http.client
import json
import signal
import socket
import stat
import time

import pytest

from conftest import CommandLine


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Served:
    """`bitalloc serve --http` on a home of its own, with what it printed."""

    def __init__(self, home, *flags):
        self.own = CommandLine(home)
        self.port = free_port()
        self.process = self.own.start("serve", "--http", f"127.0.0.1:{self.port}", *flags, "--json")
        printed = self.process.stdout.readline()
        assert printed, f"serve does not start: {self.process.communicate(timeout=60)}"
        self.facts = json.loads(printed)["http"]
        with open(self.facts["token_file"]) as file:
            self.token = file.read().strip()

    def ask(self, method, path, token=None, body=None):
        """Status, headers and JSON (None: the answer is none) of one request."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
            is_json = "json" in answer.getheader("Content-Type", "")
            return answer.status, answer.headers, json.loads(text) if is_json else None
        finally:
            connection.close()

    def submit(self, model, data, search):
        """A search of 2400 units: not over before it is asked about."""
        data.write_text('{"text": "In the beginning"}\n' * 200)
        self.own.json("submit", "--model", model, "--data", data, "--id", search,
                      "--batch", 1, "--sites-per-unit", 1)


@pytest.fixture
def served(tmp_path, small_model):
    service = Served(tmp_path / "home")
    service.submit(small_model, tmp_path / "data.jsonl", "first")
    return service


@pytest.fixture
def read_only(tmp_path, small_model):
    service = Served(tmp_path / "home", "--http-read-only")
    service.submit(small_model, tmp_path / "data.jsonl", "first")
    return service


def test_prints_the_address_and_the_token_file(tmp_path):
    home = tmp_path / "home"
    port = free_port()
    process = CommandLine(home).start("serve", "--http", f"127.0.0.1:{port}")
    deadline = time.monotonic() + 60
    line = ""
    while "page:" not in line:
        assert time.monotonic() < deadline and process.poll() is None, "serve names no page"
        line = process.stdout.readline()
    assert line.split() == ["page:", f"http://127.0.0.1:{port}/", "(token:", f"{home / 'http.token'})"]


def test_the_token_is_for_its_owner_alone_and_stays(tmp_path):
    first = Served(tmp_path / "home")
    token_file = tmp_path / "home/http.token"
    assert first.facts == {"url": f"http://127.0.0.1:{first.port}/", "token_file": str(token_file)}
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    assert len(first.token) >= 32
    first.process.send_signal(signal.SIGINT)
    first.process.wait(60)
    assert Served(tmp_path / "home").token == first.token
    assert Served(tmp_path / "other").token != first.token


def test_without_the_right_token_nothing_is_answered(served):
    for token in (None, "x" * 40, served.token[:-1], served.token + "x"):
        status, headers, problem = served.ask("GET", "/api/v1/searches", token)
        assert status == 401, token
        assert headers["Content-Type"] == "application/problem+json"
        assert "first" not in json.dumps(problem) and served.token not in json.dumps(problem)
    assert served.ask("POST", "/api/v1/searches/first/pause", "x" * 40)[0] == 401
    assert served.own.json("status", "first")["state"] in ("queued", "running")


def test_the_right_token_lists_and_changes(served):
    status, _, answer = served.ask("GET", "/api/v1/searches", served.token)
    assert status == 200
    assert [row["id"] for row in answer["searches"]] == ["first"]
    assert served.ask("POST", "/api/v1/searches/first/pause", served.token)[0] == 200
    assert served.own.json("status", "first")["state"] == "paused"


def test_read_only_answers_and_refuses_every_change(read_only):
    searches = "/api/v1/searches"
    status, _, answer = read_only.ask("GET", searches, read_only.token)
    assert status == 200 and [row["id"] for row in answer["searches"]] == ["first"]
    for method, path, body in (("POST", "first/pause", None), ("POST", "first/cancel", None),
                               ("POST", "first/priority", {"priority": 5}), ("DELETE", "first", None)):
        status, _, problem = read_only.ask(method, f"{searches}/{path}", read_only.token, body)
        assert status == 403, (method, path, problem)
    assert read_only.own.json("status", "first")["state"] in ("queued", "running")


def test_a_taken_port_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        done = CommandLine(tmp_path / "home").run("serve", "--http", address, "--json", code=2)
    failure = json.loads(done.stdout)["error"]
    assert failure["field"] == "--http" and address in failure["message"]
