"""Searches with little memory: the same scores, or a clear stop with the bytes that are missing."""

import json
import os
import re

import pytest

from conftest import SOURCE, CommandLine

DATA = SOURCE / "tests/fixtures/small/score.jsonl"
SHAPE = ["--sequences", 8, "--length", 128, "--batch", 8, "--device", "cpu", "--id", "s"]


def search(cli, model, *more, code=0):
    return cli.json("search", "--model", model, "--data", DATA, *SHAPE, *more, code=code)


def results(cli):
    """Every score, as the search's checkpoint spells them: doubles keep every bit."""
    file = os.path.join(cli.environment["BITALLOC_HOME"], "searches/s.checkpoint.json")
    with open(file) as stream:
        return json.dumps(json.load(stream)["results"])


def plans(cli):
    """Bytes kept on the device, unit by unit, as the worker's log says."""
    with open(os.path.join(cli.environment["BITALLOC_HOME"], "logs/worker-0.log")) as log:
        said = log.read()
    return [int(number) for number in re.findall(r"\((\d+) bytes\) of the reference kept", said)
            ] + [0] * said.count(" 0 bytes of the reference kept")


@pytest.fixture(scope="module")
def unlimited(tmp_path_factory, small_model):
    cli = CommandLine(tmp_path_factory.mktemp("unlimited"))
    search(cli, small_model)
    return cli


# 1024 tokens × 12 layers of hidden state, q, k and v (3 × 128 numbers) would be 18 MiB.
@pytest.mark.parametrize("flags, kept", [
    (["--activation-memory", "1MiB"], 1 << 20),
    (["--activation-memory", 0], 0),
    (["--memory-limit", "24MiB"], 24 << 20),
], ids=["1MiB", "none", "limit"])
def test_same_scores(unlimited, small_model, tmp_path, flags, kept):
    cli = CommandLine(tmp_path / "home")
    search(cli, small_model, *flags)
    assert results(cli) == results(unlimited)
    assert plans(cli) and all(bytes <= kept for bytes in plans(cli))


def test_settings_from_environment_and_file(unlimited, small_model, tmp_path):
    settings = tmp_path / "bitalloc.yaml"
    settings.write_text("activation_memory: 1MiB\n")
    cli = CommandLine(tmp_path / "home")
    cli.environment["BITALLOC_CONFIG"] = str(settings)
    search(cli, small_model)
    assert results(cli) == results(unlimited)
    assert plans(cli) and all(bytes <= 1 << 20 for bytes in plans(cli))


def test_too_little_memory_fails_the_job_with_the_bytes(small_model, tmp_path):
    cli = CommandLine(tmp_path / "home")
    # The weights alone are 10 MiB in float32.
    error = search(cli, small_model, "--memory-limit", "4MiB", code=1)["error"]
    assert error["code"] == "resource_exhausted"
    assert "weights need" in error["message"] and "(4194304 bytes)" in error["message"]
    assert "--memory-limit" in error["hint"]
    # They fit, and no sequence beside them.
    other = CommandLine(tmp_path / "other")
    error = search(other, small_model, "--memory-limit", "14MiB", code=1)["error"]
    assert error["code"] == "resource_exhausted" and "(14680064 bytes)" in error["message"]
    needed = int(re.search(r"tokens need [^(]*\((\d+) bytes\)", error["message"])[1])
    assert needed > 14680064
    assert other.json("status", "s")["error"]["code"] == "resource_exhausted"
    # With the bytes that it asked for it goes on to the end.
    assert search(other, small_model, "--memory-limit", needed)["search"] == "s"


def test_sizes_that_are_none(small_model, tmp_path):
    cli = CommandLine(tmp_path / "home")
    for size in ["much", "-1", "8GiBs"]:
        cli.run("search", "--model", small_model, "--data", DATA, "--activation-memory", size, code=2)
