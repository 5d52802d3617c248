"""Whole searches on the small model with the real service: interrupted, killed, resumed, reused."""

import collections
import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from conftest import BUILD, SOURCE, CommandLine

BITALLOC = str(BUILD / "bin/bitalloc")
DATA = SOURCE / "tests/fixtures/small/score.jsonl"
HELD_OUT = SOURCE / "tests/fixtures/small/heldout.jsonl"
# 12 batches × 12 layers: seconds of work, so that a kill finds some units done and some to do.
SHAPE = ["--sequences", 24, "--length", 128, "--batch", 2, "--sites-per-unit", 1, "--device", "cpu"]
TOTAL = 144
HELD_AT_ONCE = 2  # units in a worker's hands (bitalloc-worker --credits)


def search_arguments(model, *more, data=DATA):
    return list(map(str, ["search", "--model", model, "--data", data, *SHAPE, "--id", "s", *more]))


def service(cli):
    with open(os.path.join(cli.environment["BITALLOC_HOME"], "run/service.json")) as file:
        return json.load(file)


def results(cli):
    """Every score of the search, as its checkpoint spells them: doubles keep every bit."""
    file = os.path.join(cli.environment["BITALLOC_HOME"], "searches/s.checkpoint.json")
    with open(file) as stream:
        return json.dumps(json.load(stream)["results"])


def same(answer):
    """An answer without the time that solving took."""
    return {key: value for key, value in answer.items() if key != "solve_ms"}


def runs_of_units(cli):
    """How often each unit was computed, as the worker's log says."""
    log = os.path.join(cli.environment["BITALLOC_HOME"], "logs/worker-0.log")
    with open(log) as stream:
        return collections.Counter(re.findall(r"unit (\S+) of s: ", stream.read()))


def done_units(status):
    return status["units"]["done"]


def wait_for_units(cli, count):
    """Until so many units are done, and what `status` then says."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        said = subprocess.run([BITALLOC, "status", "s", "--json"], env=cli.environment, text=True,
                              capture_output=True)
        if said.returncode == 0 and done_units(json.loads(said.stdout)) >= count:
            return done_units(json.loads(said.stdout))
        time.sleep(0.05)
    pytest.fail(f"no {count} units within 300 s")


def wait_for_the_middle(cli):
    """Until some units are done and some are not, and how many are."""
    done = wait_for_units(cli, 4)
    assert done < TOTAL, "the search ended before its fault: make it longer"
    return done


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A home whose search has run without any trouble, and what `search --json` printed."""
    folder = tmp_path_factory.mktemp("finished")
    model = folder / "model"
    shutil.copytree(SOURCE / "tests/fixtures/small/model", model)
    cli = CommandLine(folder / "home")
    cli.model = model
    cli.folder = folder
    cli.answer = same(cli.json(*search_arguments(model, "--output", folder / "out")))
    return cli


def test_answer(finished):
    answer = finished.answer
    assert answer["search"] == "s" and answer["budget"] == {"effective_bits": 5.4}
    assert answer["proven_optimal"] and answer["effective_bits"] <= 5.4
    assert [site["site"] for site in answer["sites"]] == [
        f"model.layers.{i}.self_attn" for i in range(12)]
    total = sum(site["kl_nats_per_token"] for site in answer["sites"])
    assert answer["objective_kl_nats"] == pytest.approx(total, rel=1e-12)
    bits = {"fp8_e4m3/fp8_e4m3": 8, "nvfp4/nvfp4": 4.5, "fp8_e4m3/nvfp4": 6.25}
    for site in answer["sites"]:
        assert site["bits"] == bits[site["candidate"]] and site["standard_error"] > 0
    saved = json.loads((finished.folder / "out/result.json").read_text())
    assert same(saved) == answer


def test_same_command_again(finished):
    """Nothing runs again: the answer comes from what is there."""
    again = finished.json(*search_arguments(finished.model, "--output", finished.folder / "out"))
    assert same(again) == finished.answer


def test_text_output(finished):
    said = finished.run("assignment", "s").stdout
    assert re.search(r"^model\.layers\.0\.self_attn +\S+ +\S+ +\S+ +\d\.\d+e-\d+", said, re.M)
    assert "5.375 effective bits" in said and "\033[" not in said


def test_answers_without_service_model_or_redis(finished, tmp_path):
    """rebudget, assignment, frontier read the search's file: nothing is started."""
    bare = CommandLine(finished.environment["BITALLOC_HOME"])
    bare.environment["PATH"] = str(tmp_path)
    hidden = finished.folder / "moved"
    finished.model.rename(hidden)
    try:
        assert same(bare.json("rebudget", "s", "--bits", 5.4)) == finished.answer
        assert same(bare.json("assignment", "s")) == finished.answer
        two = bare.json("rebudget", "s", "--bits", 4.5, "--bits", 8)
        assert [one["effective_bits"] for one in two] == [4.5, 8]
        pinned = bare.json("rebudget", "s", "--bits", 6, "--pin", "layers.0=bf16")
        assert pinned["sites"][0]["candidate"] == "bf16/bf16"
        assert pinned["sites"][0]["kl_nats_per_token"] == 0
        frontier = bare.json("frontier", "s")
        bits = [point["effective_bits"] for point in frontier]
        assert bits == sorted(bits) and bits[0] == 4.5 and bits[-1] == 8
        scores = bare.json("assignment", "s", "--scores")["sites"][3]["scores"]
        assert set(scores) == {"fp8_e4m3/fp8_e4m3", "nvfp4/nvfp4", "fp8_e4m3/nvfp4"}
    finally:
        hidden.rename(finished.model)


def test_rebudget_refusals(finished):
    error = finished.json("rebudget", "s", "--bits", 4, code=5)["error"]
    assert error["code"] == "infeasible" and "4.5" in error["message"]
    for pin in ["layers.77=bf16", "layers.1=fp9", "layers.0", "layers=bf16"]:
        assert finished.json("rebudget", "s", "--bits", 6, "--pin", pin, code=2)["error"]["message"]
    assert finished.json("rebudget", "s", "--bits", "nan", code=2)["error"]["field"] == "--bits"


def test_checkpoint_file(finished, tmp_path):
    file = tmp_path / "s.json"
    finished.run("checkpoint", "export", "s", file)
    facts = finished.json("checkpoint", "inspect", file)
    assert facts["complete"] and facts["units"] == {"total": TOTAL, "done": TOTAL}
    assert same(finished.json("rebudget", "--checkpoint", file, "--bits", 5.4)) == finished.answer
    other = CommandLine(tmp_path / "home")
    assert done_units(other.json("checkpoint", "import", file)) == TOTAL
    assert other.json("status", "s")["state"] == "done"
    assert same(other.json("rebudget", "s", "--bits", 5.4)) == finished.answer
    file.write_text(file.read_text().replace('"length":128', '"length":127', 1))
    assert other.json("checkpoint", "inspect", file, code=2)["error"]["field"]


def test_search_from_a_checkpoint_runs_nothing(finished, tmp_path):
    """All units are in the file: a home without workers ends at once, with the same scores."""
    other = CommandLine(tmp_path / "home")
    kept = finished.folder / "out/checkpoint.json"
    answer = other.json(*search_arguments(finished.model, "--checkpoint", kept))
    assert same(answer) == finished.answer and results(other) == results(finished)


def test_checkpoint_of_something_else_is_refused(finished, tmp_path):
    def refused(model, *more, data=DATA):
        other = CommandLine(tmp_path / "home")
        kept = finished.folder / "out/checkpoint.json"
        for flag in (["--checkpoint", kept], ["--output", finished.folder / "out"]):
            error = other.json(*search_arguments(model, *flag, *more, data=data), code=2)["error"]
            assert error["code"] == "mismatch" and "checkpoint.json" in error["message"]
        return error["message"].rpartition(":")[2]

    changed = tmp_path / "changed"  # same shapes, other weights
    shutil.copytree(finished.model, changed)
    weights = changed / "model-00001-of-00002.safetensors"
    if not weights.exists():
        weights = changed / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-2] ^= 1
    weights.write_bytes(content)
    assert "model weights" in refused(changed)
    assert "tokens" in refused(finished.model, data=HELD_OUT)
    assert "candidates" in refused(finished.model, "--encoding", "modelopt")


def test_interrupted_and_resumed(finished, tmp_path):
    cli = CommandLine(tmp_path / "home")
    first = cli.start(*search_arguments(finished.model))
    done = wait_for_the_middle(cli)
    first.send_signal(signal.SIGINT)
    said = first.communicate(timeout=120)
    assert first.returncode == 130, said
    assert "nothing is lost" in said[1]
    assert done_units(cli.json("status", "s")) >= done
    assert same(cli.json(*search_arguments(finished.model))) == finished.answer
    assert results(cli) == results(finished)


def test_an_interrupted_search_does_not_hold_up_the_next(finished, tmp_path):
    cli = CommandLine(tmp_path / "home")
    first = cli.start(*search_arguments(finished.model))
    wait_for_the_middle(cli)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    other = ["search", "--model", finished.model, "--data", HELD_OUT, "--sequences", 2,
             "--length", 64, "--device", "cpu", "--id", "other"]
    assert cli.json(*other)["search"] == "other"
    left = cli.json("status", "s")
    assert left["state"] != "done" and done_units(left) < TOTAL


@pytest.mark.parametrize("part", ["worker-0", "coordinator", "redis", "supervisor", "command"])
def test_killed_half_way(finished, tmp_path, part):
    """kill -9: the search goes on by itself (after the command's own death, with it again)."""
    cli = CommandLine(tmp_path / "home")
    running = cli.start(*search_arguments(finished.model, "--json"))
    done = wait_for_the_middle(cli)
    now = service(cli)
    victim = {"command": running.pid, "supervisor": now["pid"]}.get(part) or now["processes"][part]
    os.kill(victim, signal.SIGKILL)
    if part == "command":
        running.communicate()
        assert done_units(cli.json("status", "s")) >= done
        answer = cli.json(*search_arguments(finished.model))
    else:
        assert wait_for_units(cli, done) >= done
        out, errors = running.communicate(timeout=300)
        assert running.returncode == 0, errors
        answer = json.loads(out)
    assert same(answer) == finished.answer
    assert results(cli) == results(finished)
    # What was acknowledged before the kill did not run again: twice ran at most what was held.
    runs = runs_of_units(cli)
    assert len(runs) == TOTAL and sum(runs.values()) <= TOTAL + HELD_AT_ONCE


def test_two_at_once_share_one_service(finished, tmp_path):
    cli = CommandLine(tmp_path / "home")
    arguments = search_arguments(finished.model, "--json")
    both = [cli.start(*arguments), cli.start(*arguments)]
    answers = [same(json.loads(process.communicate(timeout=300)[0])) for process in both]
    assert answers == [finished.answer] * 2
    assert results(cli) == results(finished)


def test_two_workers_give_the_same_scores(finished, tmp_path):
    cli = CommandLine(tmp_path / "home")
    answer = cli.json(*search_arguments(finished.model, "--workers", 2, "--threads", 1))
    for one, other in zip(answer["sites"], finished.answer["sites"]):
        assert one["candidate"] == other["candidate"]
        assert one["kl_nats_per_token"] == pytest.approx(other["kl_nats_per_token"], rel=1e-5)


def test_calibrated_scales(finished, tmp_path):
    cli = CommandLine(tmp_path / "home")
    answer = cli.json(*search_arguments(finished.model, "--scale-policy", "calibrated",
                                        "--calib", HELD_OUT))
    assert all("scale=calibrated" in site["candidate"] for site in answer["sites"])
    rows = cli.json("validate", "s", "--data", HELD_OUT, "--sequences", 4, "--device", "cpu")
    assert rows[0]["kl_nats_per_token"] == 0 < rows[-1]["kl_nats_per_token"]


def test_validate(finished):
    rows = finished.json("validate", "s", "--bits", 5.4, "--data", HELD_OUT, "--sequences", 4,
                         "--length", 64, "--device", "cpu")
    names = [row["configuration"] for row in rows]
    assert names == ["bf16/bf16", "fp8_e4m3/fp8_e4m3", "nvfp4/nvfp4", "fp8_e4m3/nvfp4",
                     "assignment at 5.4 bits"]
    reference, fp8, nvfp4, _, chosen = rows
    assert reference["kl_nats_per_token"] == 0 and reference["top1_agreement"] == 1
    assert fp8["kl_nats_per_token"] < chosen["kl_nats_per_token"] < nvfp4["kl_nats_per_token"]
    assert chosen["effective_bits"] == finished.answer["effective_bits"]
    for row in rows:
        assert set(row["standard_error"]) == {"kl_nats_per_token", "perplexity", "top1_agreement"}


def test_validate_perplexity_is_that_of_transformers(finished):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    row = finished.json("validate", "s", "--data", HELD_OUT, "--sequences", 4, "--length", 64,
                        "--device", "cpu")[0]
    model = AutoModelForCausalLM.from_pretrained(finished.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(finished.model)
    nll, count = 0.0, 0
    for line in HELD_OUT.read_text().splitlines()[:4]:
        ids = torch.tensor([tokenizer(json.loads(line)["text"])["input_ids"][:64]])
        with torch.no_grad():
            log_prob = model(ids).logits[0, :-1].double().log_softmax(-1)
        nll -= log_prob.gather(1, ids[0, 1:, None]).sum().item()
        count += ids.shape[1] - 1
    assert row["perplexity"] == pytest.approx(float(torch.tensor(nll / count).exp()), rel=1e-4)


def test_export(finished, tmp_path):
    target = tmp_path / "exported"
    said = finished.json("export", "s", "--bits", 5.4, "--output", target)
    assert said["effective_bits"] == finished.answer["effective_bits"] and said["scales"] == 24
    assert (target / "hf_quant_config.json").is_file()
    assert finished.json("export", "s", "--output", target, code=2)["error"]["message"]
    finished.json("export", "s", "--output", target, "--force")


def test_watch_streams_one_object_a_line(finished):
    lines = finished.run("watch", "s", "--json").stdout.splitlines()
    assert json.loads(lines[-1])["state"] == "done"


def test_serve_and_submit(finished, tmp_path):
    """A service in one process, its client in another that knows only the endpoint."""
    host = CommandLine(tmp_path / "home")
    serving = host.start("serve", "--device", "cpu", "--json")
    endpoint = json.loads(serving.stdout.readline())["client_endpoint"]
    client = CommandLine(tmp_path / "client")
    client.environment["BITALLOC_SERVER"] = endpoint
    submit = ["submit", *search_arguments(finished.model, "--follow")[1:]]
    assert same(client.json(*submit)) == finished.answer
    (worker,) = client.json("workers")
    assert worker["device"].startswith("cpu")
    assert same(client.json("rebudget", "s", "--bits", 5.4)) == finished.answer
    assert client.json("frontier", "s") == finished.json("frontier", "s")
    exported = tmp_path / "s.json"
    client.run("checkpoint", "export", "s", exported)
    assert json.loads(exported.read_text())["units_done"] == TOTAL
    serving.send_signal(signal.SIGTERM)
    assert serving.wait(60) == 0
    assert client.json("list", code=3)["error"]["code"] == "unavailable"


def test_doctor(finished):
    report = finished.json("doctor")
    assert report["ok"] and all(check["ok"] for check in report["checks"])
    finished.environment["BITALLOC_PYTHON"] = "/nowhere/python"
    try:
        bad = finished.json("doctor", code=1)
    finally:
        del finished.environment["BITALLOC_PYTHON"]
    assert [check["check"] for check in bad["checks"] if not check["ok"]] == ["python"]


def test_worker_that_cannot_start_is_reported(finished, tmp_path):
    """The service gives up with the worker's own last words; the command prints them."""
    cli = CommandLine(tmp_path / "home")
    arguments = search_arguments(finished.model)
    arguments[arguments.index("cpu")] = "cuda"
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has a CUDA device")
    error = cli.json(*arguments, code=3)["error"]
    assert "worker-0 ended 6 times" in error["message"] and "logs" in error["hint"]
