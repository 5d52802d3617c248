"""Exit codes, JSON and refusals of the commands that need no worker."""

import json
import subprocess

import numpy
import pytest
from safetensors.numpy import load_file, save_file

from conftest import BUILD, SOURCE

DATA = SOURCE / "tests/fixtures/small/score.jsonl"
COMMANDS = (
    "search serve submit list status watch cancel pause resume reprioritize delete workers rebudget "
    "frontier assignment validate export formats recipes tokenize solve doctor"
).split()


def dry_run(small_model, *arguments, data=DATA):
    return ["submit", "--dry-run", "--model", small_model, "--data", data, "--sequences", 8,
            "--length", 64, *arguments]


def tokens_file(path, ids, mask=None):
    tensors = {"input_ids": numpy.asarray(ids)}
    if mask is not None:
        tensors["attention_mask"] = numpy.asarray(mask)
    save_file(tensors, path)
    return path


def refusal(cli, arguments, *words, code=2, error="invalid_argument"):
    """Refused with `code`, as text and as JSON, naming every word."""
    said = cli.run(*arguments, code=code)
    assert said.stdout == ""
    document = cli.json(*arguments, code=code)["error"]
    assert document["code"] == error, document
    text = json.dumps(document)
    for word in words:
        assert str(word) in said.stderr and str(word) in text, (word, said.stderr, text)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(cli, command):
    said = cli.run(command, "--help").stdout
    assert "example" in said and "--json" in said


def test_version(cli):
    assert cli.run("--version").stdout.startswith("bitalloc 0.")


def test_usage_errors(cli):
    refusal(cli, ["no-such-command"])
    refusal(cli, ["rebudget", "x"], "--bits")
    refusal(cli, ["formats", "--colour"], "--colour")


def test_formats(cli):
    bits = {row["format"]: row["bits_per_element"] for row in cli.json("formats")}
    assert bits["bf16"] == 16 and bits["fp8_e4m3"] == 8 and bits["nvfp4"] == 4.5


def test_recipes(cli):
    names = [row["name"] for row in cli.json("recipes")]
    assert "kv_fp8_nvfp4_cast_kl_div" in names
    recipe = cli.json("recipe", "show", "kv_fp8_nvfp4_cast_kl_div")
    assert recipe["candidates"] == ["fp8_e4m3/fp8_e4m3", "nvfp4/nvfp4", "fp8_e4m3/nvfp4"]
    assert recipe["effective_bits"] == 5.4


@pytest.mark.parametrize(
    "text, line, key",
    [
        ("name: a\ncandidates: [fp8]\neffective_bits: 8\ncandidats: [nvfp4]\n", 4, "candidats"),
        ("name: a\ncandidates: [fp9]\neffective_bits: 8\n", 2, "fp9"),
        ("name: a\ncandidates: [fp8]\neffective_bits: lots\n", 3, "effective_bits"),
        ("name: a\ncandidates: [fp8]\neffective_bits: .nan\n", 3, "effective_bits"),
        ("name: a\ncandidates: [fp8, fp8_e4m3]\neffective_bits: 8\n", 2, "twice"),
        ("name: a\ncandidates: [fp8]\n", 1, "effective_bits"),
        ("name: a\ncandidates: [fp8]\neffective_bits: 8\nscale_policy: loud\n", 4, "scale_policy"),
        ("name: [a\n", 2, ""),
    ],
)
def test_wrong_recipe_names_line_and_key(cli, tmp_path, text, line, key):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    refusal(cli, ["recipe", "check", file], f"mine.yaml:{line}", key)


def test_settings_file(cli, tmp_path):
    file = tmp_path / "bitalloc.yaml"
    file.write_text("workers: 2\nserver: ipc:///nowhere.sock\nhomes: /tmp\n")
    command = [str(BUILD / "bin/bitalloc"), "formats"]
    said = subprocess.run(command, cwd=tmp_path, env=cli.environment, capture_output=True, text=True)
    assert said.returncode == 2 and "bitalloc.yaml:3" in said.stderr and "homes" in said.stderr


def test_solve(cli, tmp_path):
    instance = {"bits": [[8, 4.5], [8, 4.5]], "width": [128, 128],
                "score": [[0.1, 0.9], [0.2, 0.3]], "budgets": [6.25, 8]}
    file = tmp_path / "instance.json"
    file.write_text(json.dumps(instance))
    first, second = cli.json("solve", file)
    # By hand: one site may stay at 8 bits; keeping the first saves 0.8, the second 0.1.
    assert first["choice"] == [0, 1] and first["objective"] == pytest.approx(0.4)
    assert first["effective_bits"] == 6.25 and first["proven_optimal"]
    assert second["choice"] == [0, 0]
    instance["budgets"] = [4]
    file.write_text(json.dumps(instance))
    refusal(cli, ["solve", file], "budgets[0]", code=5, error="infeasible")
    # A second row: 5 + 5 at the dear candidate, at most 5. Then a pin that cannot go with it.
    instance["budgets"] = [8]
    instance["rows"] = [{"name": "latency", "coefficient": [[5, 0], [5, 0]], "upper": 5}]
    file.write_text(json.dumps(instance))
    (only,) = cli.json("solve", file)
    assert only["choice"] == [0, 1] and only["proven_optimal"] and only["gap"] == 0
    instance["pins"] = [{"site": 0, "candidate": 0}, {"name": "keep", "site": 1, "candidate": 0}]
    file.write_text(json.dumps(instance))
    refusal(cli, ["solve", file], "latency, pins[0], keep", code=5, error="infeasible")
    file.write_text("{")
    refusal(cli, ["solve", file], "instance.json")


def test_tokenize_jsonl(cli, small_model, tmp_path):
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "In the beginning"}\n{"text": ""}\n\n{"text": "And"}\n')
    out = tmp_path / "tokens.safetensors"
    said = cli.json("tokenize", "--model", small_model, "--input", text, "--output", out)
    tokens = load_file(out)
    assert said["sequences"] == 2
    assert tokens["input_ids"].shape == tokens["attention_mask"].shape == (2, said["length"])
    assert tokens["attention_mask"].sum() == said["tokens"]
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(small_model / "tokenizer.json"))
    for row, sentence in enumerate(["In the beginning", "And"]):
        ids = tokenizer.encode(sentence).ids
        assert tokens["input_ids"][row, : len(ids)].tolist() == ids
        assert tokens["attention_mask"][row].sum() == len(ids)


def test_tokenize_text_in_windows(cli, small_model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("In the beginning God created the heaven and the earth. " * 20)
    out = tmp_path / "tokens.safetensors"
    said = cli.json("tokenize", "--model", small_model, "--input", text, "--output", out,
                    "--length", 16, "--sequences", 3)
    assert (said["sequences"], said["length"]) == (3, 16)


def test_tokenize_refusals(cli, small_model, tmp_path):
    text = tmp_path / "text.jsonl"
    command = ["tokenize", "--model", small_model, "--input", text, "--output", tmp_path / "t"]
    refusal(cli, command, "text.jsonl")
    text.write_text('{"text": ""}\n')
    refusal(cli, command, "text.jsonl")
    text.write_text('{"text": "a"}\n{"words": "b"}\n')
    refusal(cli, command, "text.jsonl:2", "text")
    text.write_text("not json\n")
    refusal(cli, command, "text.jsonl:1")


def test_dry_run(cli, small_model):
    plan = cli.json(*dry_run(small_model, "--batch", 4, "--sites-per-unit", 5))
    assert plan["sites"] == 12 and plan["candidates"] == 3
    # 2 batches × ceil(12 layers / 5); 8 × (1 + 3 × Σ (12 − layer)/12) = 8 × (1 + 3 × 6.5).
    assert plan["units"] == 2 * 3
    assert plan["forward_passes"] == pytest.approx(164)


def test_disabled_layers(cli, small_model):
    plan = cli.json(*dry_run(small_model, "--disabled-layers", "*.layers.1*.self_attn"))
    assert plan["disabled_sites"] == 3 and plan["sites"] == 9  # layers 1, 10, 11
    refusal(cli, dry_run(small_model, "--disabled-layers", "*.mlp"), "disabled_layers", "*.mlp")
    refusal(cli, dry_run(small_model, "--disabled-layers", "*"), "disabled_layers")


def test_wrong_flags(cli, small_model):
    refusal(cli, dry_run(small_model, "--candidates", "fp9"), "fp9")
    refusal(cli, dry_run(small_model, "--bits", "4.4"), "--bits", "4.5")
    for bits in ["nan", "0", "-3", "inf", "x"]:
        refusal(cli, dry_run(small_model, f"--bits={bits}"), "--bits")
    refusal(cli, dry_run(small_model, "--recipe", "nothing"), "nothing")
    refusal(cli, dry_run(small_model, "--dtype", "float16"), "dtype", "float16")
    refusal(cli, dry_run(small_model, "--scale-policy", "loud"), "--scale-policy")
    refusal(cli, dry_run(small_model, "--id", "../x"), "../x")
    refusal(cli, dry_run(small_model, "--tp", "3"), "--tp", error="unsupported")
    refusal(cli, dry_run(small_model, "--memory", "8GiB"), "--context")
    refusal(cli, dry_run(small_model, "--memory", "8 bits", "--context", 100), "--memory", "8 bits")
    refusal(cli, dry_run(small_model, "--memory", "1KiB", "--context", 100), "--memory", "1024 bytes")
    refusal(cli, dry_run(small_model, "--memory", "1GiB", "--context", 100, "--serve-tp", 5), "--serve-tp")


def test_wrong_data(cli, small_model, tmp_path):
    def check(data, *words):
        refusal(cli, dry_run(small_model, data=data), *words)

    check(tmp_path / "none.safetensors", "none.safetensors")
    check(tmp_path / "none.jsonl", "none.jsonl")
    good = numpy.ones((2, 8), dtype=numpy.int64)
    beyond = good.copy()
    beyond[1, 3] = 2048
    check(tokens_file(tmp_path / "beyond.safetensors", beyond), "input_ids[1, 3]", 2048)
    check(tokens_file(tmp_path / "below.safetensors", -good), "input_ids")
    check(tokens_file(tmp_path / "shape.safetensors", good, good[:, :4].copy()), "attention_mask")
    check(tokens_file(tmp_path / "flat.safetensors", good[0].copy()), "input_ids")
    check(tokens_file(tmp_path / "zero.safetensors", good, good * 0), "attention_mask")
    check(tokens_file(tmp_path / "two.safetensors", good, good * 2), "attention_mask")
    check(tokens_file(tmp_path / "none_left.safetensors", good[:0].copy()), "none_left")
    check(tokens_file(tmp_path / "float.safetensors", good.astype(numpy.float32)), "input_ids")
    whole = tokens_file(tmp_path / "cut.safetensors", good)
    whole.write_bytes(whole.read_bytes()[:-5])
    check(whole, "cut.safetensors")
    (tmp_path / "empty.jsonl").write_text("\n")
    check(tmp_path / "empty.jsonl", "empty.jsonl")


def copy_model(small_model, target):
    target.mkdir()
    for file in small_model.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_wrong_model(cli, small_model, tmp_path):
    def check(model, *words, error="invalid_argument"):
        refusal(cli, dry_run(model), *words, error=error)

    check(tmp_path / "nowhere", "nowhere")
    model = copy_model(small_model, tmp_path / "model")
    weights = model / "model.safetensors"
    content = weights.read_bytes()

    weights.write_bytes(content[: len(content) // 2])
    check(model, "model.safetensors")
    weights.write_bytes(content[:-2] + b"\xc0\x7f")  # the last bf16 becomes NaN
    check(model, "model.safetensors")
    weights.write_bytes(content)

    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "intermediate_size": 385}))
    check(model, "385")
    (model / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    check(model, "config.json", "mamba", error="unsupported")
    (model / "config.json").write_text("{")
    check(model, "config.json")


def test_unknown_search(cli):
    for command in ["status", "watch", "cancel", "pause", "resume", "delete", "assignment", "frontier"]:
        refusal(cli, [command, "nobody"], "nobody", code=4, error="not_found")
    refusal(cli, ["rebudget", "nobody", "--bits", 5], "nobody", code=4, error="not_found")
    refusal(cli, ["export", "nobody", "--output", "/tmp/x"], "nobody", code=4, error="not_found")
    refusal(cli, ["checkpoint", "export", "nobody", "/tmp/x"], "nobody", code=4, error="not_found")
    refusal(cli, ["status", "no/body"], "no/body")
    refusal(cli, ["checkpoint", "inspect", DATA], "score.jsonl")


def test_nothing_answers(cli, tmp_path):
    refusal(cli, ["list", "--server", f"ipc://{tmp_path}/none.sock"], "none.sock", code=3,
            error="unavailable")


def test_empty_lists(cli):
    assert cli.json("list") == []
    assert cli.json("workers") == []


def test_queue_without_workers(cli, small_model):
    def submit(length):
        return ["submit", "--model", small_model, "--data", DATA, "--sequences", 2, "--length", length,
                "--id", "waiting"]

    first = cli.json(*submit(32))
    assert first["created"] and first["id"] == "waiting" and first["units"]["done"] == 0
    again = cli.json(*submit(32))
    assert not again["created"] and again["fingerprint"] == first["fingerprint"]
    refusal(cli, submit(30), "waiting", "tokens", error="mismatch")
    assert cli.json("pause", "waiting")["state"] == "paused"
    assert cli.json("resume", "waiting")["state"] in ("queued", "running")
    assert cli.json("reprioritize", "waiting", "--priority", 7)["priority"] == 7
    assert [row["id"] for row in cli.json("list")] == ["waiting"]
    refusal(cli, ["rebudget", "waiting", "--bits", 5], "waiting", code=3, error="unavailable")
    assert cli.json("cancel", "waiting")["state"] == "cancelled"
    cli.json("delete", "waiting")
    assert cli.json("list") == []
