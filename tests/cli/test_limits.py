"""Budgets in bytes and other limits of an assignment, from a checkpoint file and from a service.

Every answer is compared with the best of all assignments, enumerated here; bytes are multiplied out here.
"""

import itertools
import json

import pytest

from test_confidence import Sums, make_search, served  # noqa: F401

SITES, HEADS, HEAD_DIM = 6, 8, 128
BYTES = {"fp8_e4m3": 128, "nvfp4": 72}  # a row of a head: 128 elements, or 64 and 8 block scales


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return make_search(tmp_path_factory.mktemp("search") / "s.json", "--sites", SITES, "--sequences", 6)


def token_bytes(candidate, heads):
    return sum(heads * BYTES[side] for side in candidate.split("/"))


class Everything:
    """All assignments with their nats; best() of those that `keeps` lets through."""

    def __init__(self, file):
        sums = Sums(file)
        self.sites, self.candidates = sums.sites, sums.spec["candidates"]
        tokens = sums.tokens.sum()
        score = {(s, c): sums.of(s, c).sum() / tokens for s in self.sites for c in self.candidates}
        self.all = [(sum(score[s, c] for s, c in zip(self.sites, choice)), choice)
                    for choice in itertools.product(self.candidates, repeat=len(self.sites))]

    def best(self, keeps):
        return min(nats for nats, choice in self.all if keeps(choice))


def cache_bytes(choice, context, sequences, heads=HEADS, block=16):
    blocks = -(-context // block)
    return sum(token_bytes(c, heads) for c in choice) * blocks * block * sequences


@pytest.mark.parametrize("share", [0.6, 0.75, 0.9, 0.99, 1])
@pytest.mark.parametrize("ranks", [1, 2, 16])
def test_memory(cli, file, share, ranks):
    everything = Everything(file)
    heads = max(1, HEADS // ranks)
    load = {"context": 1000, "sequences": 3, "heads": heads}  # 63 blocks of 16
    budget = int(share * cache_bytes(["fp8_e4m3/fp8_e4m3"] * SITES, **load))
    answer = cli.json("rebudget", "--checkpoint", file, "--memory", budget, "--context", 1000, "--sequences", 3,
                      "--serve-tp", ranks)
    chosen = [site["candidate"] for site in answer["sites"]]
    used = cache_bytes(chosen, **load)
    assert answer["proven_optimal"] and used <= budget
    assert answer["objective_kl_nats"] == pytest.approx(
        everything.best(lambda c: cache_bytes(c, **load) <= budget), rel=1e-9)
    memory = answer["memory"]
    assert memory["kv_bytes"] == used and memory["memory_bytes"] == budget and memory["tp"] == ranks
    assert memory["most_sequences"] == budget // cache_bytes(chosen, 1000, 1, heads)
    longest = memory["longest_context"]
    assert cache_bytes(chosen, longest, 3, heads) <= budget < cache_bytes(chosen, longest + 1, 3, heads)
    assert answer["budget"]["effective_bits"] is None


@pytest.mark.parametrize("ranks", [1, 2])
def test_gpu_memory_is_weights_and_cache(cli, file, ranks):
    """The cache's budget is what weights of 2 bytes a parameter leave of the GPU's share."""
    parameters = 3_000_000  # of every search that is made here
    load = {"context": 1000, "sequences": 3, "heads": max(1, HEADS // ranks)}
    cache = int(0.8 * cache_bytes(["fp8_e4m3/fp8_e4m3"] * SITES, **load))
    weights = 2 * parameters // ranks
    asked = ["--context", 1000, "--sequences", 3, "--serve-tp", ranks]
    answer = cli.json("rebudget", "--checkpoint", file, "--gpu-memory", cache + weights, "--gpu-utilization", 1, *asked)
    plain = cli.json("rebudget", "--checkpoint", file, "--memory", cache, *asked)
    assert answer["sites"] == plain["sites"] and answer["memory"]["kv_bytes"] <= cache
    memory = answer["memory"]
    assert (memory["memory_bytes"], memory["weight_bytes"], memory["gpu_memory_bytes"]) == (cache, weights, cache + weights)
    half = cli.json("rebudget", "--checkpoint", file, "--gpu-memory", 2 * (cache + weights), "--gpu-utilization", 0.5, *asked)
    assert half["sites"] == plain["sites"]
    error = refused(cli, 5, "memory", "rebudget", "--checkpoint", file, "--gpu-memory", weights, *asked)
    assert "the weights take" in error["message"]
    refused(cli, 2, "--context", "rebudget", "--checkpoint", file, "--gpu-memory", "1GiB")
    refused(cli, 2, "--context", "rebudget", "--checkpoint", file, "--context", 100)


def test_both_budgets_and_units_of_people(cli, file):
    everything = Everything(file)
    budget = 64 << 20
    load = {"context": 2000, "sequences": 3}
    asked = ["rebudget", "--checkpoint", file, "--memory", "64MiB", "--context", 2000, "--sequences", 3]
    answer = cli.json(*asked, "--bits", 6)
    bits = {c: 8 * token_bytes(c, 1) / 2 / HEAD_DIM for c in everything.candidates}
    keeps = lambda c: cache_bytes(c, **load) <= budget and sum(bits[x] for x in c) <= 6 * SITES
    assert answer["objective_kl_nats"] == pytest.approx(everything.best(keeps), rel=1e-9)
    text = cli.run(*asked).stdout
    assert "of 64.00 MiB (67108864 bytes)" in text and "sequences of that context fit" in text


def test_limits_of_every_kind(cli, file, tmp_path):
    everything = Everything(file)
    e4, nv = "fp8_e4m3/fp8_e4m3", "nvfp4/nvfp4"

    def check(keeps, *flags, bits=6.3):
        answer = cli.json("rebudget", "--checkpoint", file, "--bits", bits, *flags)
        chosen = tuple(site["candidate"] for site in answer["sites"])
        cost = {c: 8 * token_bytes(c, 1) / 2 / HEAD_DIM for c in everything.candidates}
        all_keep = lambda c: keeps(c) and sum(cost[x] for x in c) <= bits * SITES
        assert all_keep(chosen)
        assert answer["objective_kl_nats"] == pytest.approx(everything.best(all_keep), rel=1e-9)

    check(lambda c: c[0] == c[3] == c[5], "--same", "layers.0,layers.3,layers.5")
    check(lambda c: e4 not in c, "--exclude", f"*={e4}")
    check(lambda c: c[2] != nv and c[1] != nv, "--exclude", f"layers.1={nv}", "--exclude", f"layers.2={nv}")
    check(lambda c: "nvfp4/fp8_e4m3" not in c, "--k-not-below-v")
    check(lambda c: len(set(c)) <= 2, "--max-formats", 2)
    check(lambda c: c[4] == e4 and len(set(c)) <= 3, "--pin", f"layers.4={e4}", "--max-formats", 3)
    deployed = tmp_path / "now.json"
    deployed.write_text(cli.run("rebudget", "--checkpoint", file, "--bits", 5, "--json").stdout)
    now = tuple(site["candidate"] for site in json.loads(deployed.read_text())["sites"])
    check(lambda c: sum(a != b for a, b in zip(c, now)) <= 2, "--deployed", deployed, "--max-changes", 2)
    limits = tmp_path / "limits.json"
    cost = {e4: 3.0, "fp8_e4m3/nvfp4": 5.0, "nvfp4/fp8_e4m3": 4.0, nv: 7.0}
    limits.write_text(json.dumps({"costs": [{"name": "latency", "cost": cost, "upper": 30}]}))
    check(lambda c: sum(cost[x] for x in c) <= 30, "--limits", limits)


def refused(cli, code, field, *arguments):
    error = cli.json(*arguments, code=code)["error"]
    assert field in error["field"], error
    return error


def test_what_cannot_be(cli, file, tmp_path):
    asked = ["rebudget", "--checkpoint", file]
    error = refused(cli, 5, "memory", *asked, "--memory", "1MiB", "--context", 1000)
    assert error["hint"].startswith("at most 0 sequences of 1000 tokens fit, or 1 sequences of")
    error = refused(cli, 5, "pin", *asked, "--bits", 4.6, "--pin", "layers.0=fp8", "--max-formats", 3)
    assert "pin layers.0=fp8" in error["message"] and "max_formats" not in error["message"]
    error = refused(cli, 5, "exclude", *asked, "--bits", 4.6, "--exclude", "*=nvfp4")
    assert error["message"].endswith("together: 4.6 effective bits, exclude *=nvfp4")
    refused(cli, 2, "--bits", *asked)
    refused(cli, 2, "--context", *asked, "--memory", "1GiB")
    refused(cli, 2, "--memory", *asked, "--memory", "lots", "--context", 10)
    refused(cli, 2, "tp", *asked, "--memory", "1GiB", "--context", 10, "--serve-tp", 3)
    refused(cli, 2, "--max-changes", *asked, "--bits", 6, "--deployed", file)
    refused(cli, 2, "exclude", *asked, "--bits", 6, "--exclude", "layers.9=fp8")
    refused(cli, 2, "--exclude", *asked, "--bits", 6, "--exclude", "layers.1")
    bad = tmp_path / "limits.json"
    bad.write_text('{"max_format": 2}')
    error = refused(cli, 2, "max_format", *asked, "--bits", 6, "--limits", bad)
    assert str(bad) in error["message"]


def test_a_service_answers_the_same(cli, file, served):
    same = lambda answer: {key: value for key, value in answer.items() if key != "solve_ms"}
    limits = ["--memory", "64MiB", "--context", 2000, "--sequences", 3, "--max-formats", 2]
    served.json("checkpoint", "import", file)
    name = json.loads(file.read_text())["id"]
    assert same(served.json("rebudget", name, *limits)) == same(cli.json("rebudget", "--checkpoint", file, *limits))
    refused(served, 5, "memory", "rebudget", name, "--memory", "1MiB", "--context", 1000)
