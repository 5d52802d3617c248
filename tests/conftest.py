"""What Python tests share: the programs that were built, run as a user runs them."""

import json
import os
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("BITALLOC_BINARY_DIR", SOURCE / "build"))
SMALL_MODEL = SOURCE / "tests/fixtures/small/model"
SMOLLM2 = SOURCE / ".cache/SmolLM2-135M-Instruct"


started = []  # commands in the background; they end with their test


@pytest.fixture(autouse=True)
def no_command_outlives_its_test():
    yield
    while started:
        process = started.pop()
        process.kill()
        process.wait()


class CommandLine:
    """build/bin/bitalloc on a home of its own."""

    def __init__(self, home):
        self.environment = {**os.environ, "BITALLOC_HOME": str(home), "NO_COLOR": "1"}
        self.environment.pop("BITALLOC_SERVER", None)

    def run(self, *arguments, code=0):
        """The finished process; fails the test unless it exits with `code`."""
        command = [str(BUILD / "bin/bitalloc"), *map(str, arguments)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == code, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *arguments):
        """The process, running."""
        command = [str(BUILD / "bin/bitalloc"), *map(str, arguments)]
        started.append(subprocess.Popen(command, env=self.environment, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return started[-1]

    def json(self, *arguments, code=0):
        return json.loads(self.run(*arguments, "--json", code=code).stdout)


@pytest.fixture(scope="module")
def cli(tmp_path_factory):
    return CommandLine(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def small_model():
    return SMALL_MODEL


@pytest.fixture(scope="session")
def smollm2():
    if not (SMOLLM2 / "config.json").is_file():
        pytest.skip(f"{SMOLLM2} is not there; ops/demo.sh makes it")
    return SMOLLM2


@pytest.fixture(scope="session")
def logits_program():
    return BUILD / "bin/bitalloc-logits"
