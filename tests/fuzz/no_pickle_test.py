"""No file of this repository unpickles anything: a pickle is a program of whoever wrote it."""

import re
import subprocess

from conftest import SOURCE

# Readers of pickles, and of formats that hold them.
FORBIDDEN = re.compile(
    r"(\bimport\s+(c?pickle|dill|joblib|shelve|marshal)\b|\bfrom\s+(c?pickle|dill|joblib|shelve|marshal)\s+import"
    r"|\btorch\.(load|jit\.load|package)\b|\btorch::(load|jit::load|pickle_load|jit::pickle_load)\b"
    r"|\bread_pickle\b|allow_pickle\s*=\s*True|\byaml\.(load|unsafe_load|full_load)\b|weights_only\s*=\s*False)")
SUFFIXES = (".py", ".cc", ".h", ".cu", ".cuh", ".sh", ".cmake", ".txt", ".yaml")


def sources():
    listed = subprocess.run(["git", "-C", SOURCE, "ls-files"], capture_output=True, text=True)
    names = listed.stdout.splitlines() if listed.returncode == 0 else [
        str(path.relative_to(SOURCE)) for folder in ("common", "coordinator", "kernels", "ops", "solver", "tests", "worker")
        for path in (SOURCE / folder).rglob("*")]
    own = "tests/fuzz/no_pickle_test.py"
    return [SOURCE / name for name in names if name.endswith(SUFFIXES) and name != own]


def test_the_pattern_finds_what_it_is_for():
    for line in ("import pickle", "from pickle import loads", "torch.load(file)", "numpy.load(f, allow_pickle=True)",
                 "torch::jit::load(path)", "yaml.load(text)"):
        assert FORBIDDEN.search(line), line
    assert not FORBIDDEN.search("numpy.load(file)") and not FORBIDDEN.search("yaml.safe_load(text)")


def test_no_pickle_anywhere():
    files = sources()
    assert len(files) > 200
    found = [f"{file.relative_to(SOURCE)}:{number}: {line.strip()}"
             for file in files for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1)
             if FORBIDDEN.search(line)]
    assert not found, "\n".join(found)


def test_models_in_pickle_files_are_refused(cli, small_model, tmp_path):
    """A folder with pytorch_model.bin alone: said so, not opened."""
    (tmp_path / "config.json").write_bytes((small_model / "config.json").read_bytes())
    (tmp_path / "tokenizer.json").write_bytes((small_model / "tokenizer.json").read_bytes())
    touched = tmp_path / "touched"
    program = b"cos\nsystem\n(S'touch " + str(touched).encode() + b"'\ntR."
    (tmp_path / "pytorch_model.bin").write_bytes(program)
    data = SOURCE / "tests/fixtures/small/score.jsonl"
    error = cli.json("submit", "--dry-run", "--model", tmp_path, "--data", data, code=2)["error"]
    assert "safetensors" in error["message"] + str(error["hint"])
    (tmp_path / "model.safetensors").write_bytes(program)
    error = cli.json("submit", "--dry-run", "--model", tmp_path, "--data", data, code=2)["error"]
    assert "model.safetensors" in error["message"]
    assert not touched.exists()
