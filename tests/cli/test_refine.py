"""`refine` on real searches: what it measures, what it makes of it, and that it measures nothing twice.

Expected numbers are worked out here with numpy and scipy from what the jobs' files hold, or come from other commands.
"""

import collections
import json
import os
import re
import shutil

import numpy
import pytest
from scipy import stats

from conftest import SOURCE, CommandLine

DATA = SOURCE / "tests/fixtures/small/score.jsonl"
HELD_OUT = SOURCE / "tests/fixtures/small/heldout.jsonl"
SHAPE = ["--sequences", 6, "--length", 64, "--device", "cpu"]
BUDGET = 5.4
BITS = {"fp8_e4m3/fp8_e4m3": 8, "nvfp4/nvfp4": 4.5, "fp8_e4m3/nvfp4": 6.25}


def searched(folder, *more):
    cli = CommandLine(folder / "home")
    model = folder / "model"
    shutil.copytree(SOURCE / "tests/fixtures/small/model", model)
    cli.search = cli.json("search", "--model", model, "--data", DATA, *SHAPE, "--id", "s", *more)
    return cli


def refine(cli, *more, data=DATA):
    return ["refine", "s", "--data", data, "--device", "cpu", *more]


@pytest.fixture(scope="module")
def refined(tmp_path_factory):
    """A home with a search and its refinement, which is in `answer`."""
    cli = searched(tmp_path_factory.mktemp("refined"))
    cli.answer = cli.json(*refine(cli, "--neighbours", 4, "--rounds", 3))
    return cli


def runs(cli):
    """Units that the worker has computed, by job."""
    with open(os.path.join(cli.environment["BITALLOC_HOME"], "logs/worker-0.log")) as log:
        return collections.Counter(re.findall(r"unit \S+ of (\S+): ", log.read()))


def jobs(cli):
    return {search["id"] for search in cli.json("list")}


def chosen(assignment):
    return {site["site"]: site["candidate"] for site in assignment["sites"]}


def measured_choices(answer):
    """Of every row, site: candidate."""
    start = chosen(answer["start"])
    choices = []
    for row in answer["measured"]:
        changes = {} if row["configuration"] == "start" else dict(
            change.split("=", 1) for change in row["configuration"].split(", "))
        assert all(start[site] != candidate for site, candidate in changes.items())
        choices.append({**start, **changes})
    return choices


def effective_bits(choice):
    return sum(BITS[candidate] for candidate in choice.values()) / len(choice)  # sites are equally wide


def sums_of_jobs(cli):
    """{assignment as a tuple: nats of each sequence} of all validations, and tokens of each sequence."""
    folder = os.path.join(cli.environment["BITALLOC_HOME"], "searches")
    found = {}
    for name in os.listdir(folder):
        if ".validation-" not in name:
            continue
        with open(os.path.join(folder, name)) as file:
            job = json.load(file)
        assert len(job["results"]) == len(job["spec"]["configurations"])  # one batch, a row a unit
        for result in job["results"]:
            row = int(result["unit"].rpartition("/")[2].split("-")[0])
            kl = numpy.array(result["sums"]).reshape(4, -1)[0]  # of KL, NLL, agreements, positions
            found[tuple(job["spec"]["configurations"][row]["candidates"])] = kl
            tokens = numpy.array(result["tokens"])
    return found, tokens


def error_of_ratio(x, t):
    n = len(x)
    return numpy.sqrt(n / (n - 1) * ((x - x.sum() / t.sum() * t) ** 2).sum()) / t.sum()


def test_start_is_the_assignment_and_validate_measures_the_same(refined):
    start = refined.answer["start"]
    assignment = refined.json("assignment", "s")
    assert start["sites"] == assignment["sites"] and refined.answer["budget"] == assignment["budget"]
    assert start["predicted_kl_nats"] == pytest.approx(assignment["objective_kl_nats"], rel=1e-12)
    row = refined.json("validate", "s", "--data", DATA, "--device", "cpu")[-1]
    assert row["effective_bits"] == start["effective_bits"]
    assert row["kl_nats_per_token"] == pytest.approx(start["measured_kl_nats"], rel=1e-12)
    assert row["standard_error"]["kl_nats_per_token"] == pytest.approx(start["standard_error"], rel=1e-9)


def test_takes_the_best_of_what_it_measured(refined):
    answer = refined.answer
    measured, best = answer["measured"], answer["refined"]
    assert best["measured_kl_nats"] == min(row["measured_kl_nats"] for row in measured)
    assert best["measured_kl_nats"] <= answer["start"]["measured_kl_nats"]
    assert measured[0]["configuration"] == "start" and best["configuration"] in [m["configuration"] for m in measured]
    assert len({row["configuration"] for row in measured}) == len(measured)
    rounds = collections.Counter(row["round"] for row in measured)
    assert rounds[1] == 5 and set(rounds) == set(range(1, answer["rounds"] + 1))
    better = [min(row["measured_kl_nats"] for row in measured if row["round"] <= r) for r in range(1, answer["rounds"])]
    assert answer["rounds"] <= 3 and better == sorted(better, reverse=True)
    if answer["ended"] == "no neighbour was better":
        assert best["round"] < answer["rounds"] or best["configuration"] == "start"
    else:
        assert answer["ended"] == "the rounds were used up" and best["round"] == answer["rounds"] == 3


def test_everything_keeps_the_budget(refined):
    for row, choice in zip(refined.answer["measured"], measured_choices(refined.answer)):
        assert row["effective_bits"] == pytest.approx(effective_bits(choice), rel=1e-12)
        assert effective_bits(choice) <= BUDGET
    sites = refined.answer["refined"]["sites"]
    assert effective_bits(chosen({"sites": sites})) <= BUDGET
    assert all(site["bits"] == BITS[site["candidate"]] and site["standard_error"] > 0 for site in sites)


def test_numbers_follow_from_the_sums_of_the_jobs(refined):
    answer = refined.answer
    sums, tokens = sums_of_jobs(refined)
    scores = {site["site"]: site["scores"] for site in refined.json("assignment", "s", "--scores")["sites"]}
    predicted, measured = [], []
    for row, choice in zip(answer["measured"], measured_choices(answer)):
        predicted.append(sum(scores[site][c]["kl_nats_per_token"] for site, c in choice.items()))
        kl = sums[tuple(choice[site] for site in scores)]
        measured.append(kl.sum() / tokens.sum())
        assert row["predicted_kl_nats"] == pytest.approx(predicted[-1], rel=1e-12)
        assert row["measured_kl_nats"] == pytest.approx(measured[-1], rel=1e-12)
        assert row["standard_error"] == pytest.approx(error_of_ratio(kl, tokens), rel=1e-9)
        assert row["ratio"] == pytest.approx(measured[-1] / predicted[-1], rel=1e-12)
    additivity = answer["additivity"]
    assert additivity["spearman"] == pytest.approx(stats.spearmanr(predicted, measured).statistic, abs=1e-12)
    assert additivity["slope"] == pytest.approx(stats.linregress(predicted, measured).slope, rel=1e-6)
    assert additivity["ratio_median"] == pytest.approx(numpy.median(numpy.divide(measured, predicted)), rel=1e-12)
    order = list(scores)
    gain = (sums[tuple(chosen(answer["start"])[site] for site in order)]
            - sums[tuple(chosen(answer["refined"])[site] for site in order)])
    assert answer["improvement_kl_nats"] == pytest.approx(gain.sum() / tokens.sum(), rel=1e-9, abs=1e-15)
    assert answer["improvement_standard_error"] == pytest.approx(error_of_ratio(gain, tokens), rel=1e-9, abs=1e-15)


def test_again_measures_nothing(refined):
    before = jobs(refined), runs(refined)
    assert refined.json(*refine(refined, "--neighbours", 4, "--rounds", 3)) == refined.answer
    assert (jobs(refined), runs(refined)) == before


def test_other_data_is_refused_or_said(refined):
    before = jobs(refined)
    error = refined.json(*refine(refined, data=HELD_OUT), code=2)["error"]
    assert error["field"] == "--data" and "tokens" in error["message"] and "--held-out" in error["hint"]
    assert jobs(refined) == before
    answer = refined.json(*refine(refined, "--held-out", "--neighbours", 1, "--rounds", 1, data=HELD_OUT))
    assert answer["held_out"] and not refined.answer["held_out"]
    assert chosen(answer["start"]) == chosen(refined.answer["start"])
    assert answer["start"]["measured_kl_nats"] != refined.answer["start"]["measured_kl_nats"]


def test_refusals(refined):
    assert refined.json(*refine(refined, "--bits", 4), code=5)["error"]["code"] == "infeasible"
    assert refined.json(*refine(refined, "--pin", "layers.0"), code=2)["error"]["field"] == "--pin"
    missing = refined.json(*refine(refined, data="/nowhere.jsonl"), code=2)["error"]
    assert "/nowhere.jsonl" in missing["message"]
    refined.json("refine", "nosuch", "--data", DATA, code=4)


def test_all_neighbours_of_three_layers(refined, tmp_path):
    """Few enough to measure all of them: no move and no swap helps, and the answer says so."""
    pins = [word for layer in range(9) for word in ("--pin", f"layers.{layer}=nvfp4/nvfp4")]
    arguments = refine(refined, *pins, "--bits", 5.4, "--neighbours", 40, "--rounds", 20)
    answer = refined.json(*arguments)
    assert answer["all_neighbours_measured"] and answer["ended"].startswith("no neighbour")
    assert "no swap within the budget helps" in refined.run(*arguments).stdout
    known = {tuple(choice.items()): row["measured_kl_nats"]
             for row, choice in zip(answer["measured"], measured_choices(answer))}
    best = chosen(answer["refined"])
    free = list(best)[9:]
    assert all(best[site] == "nvfp4/nvfp4" for site in list(best)[:9])
    others = 0
    for choice in ({**best, a: x, b: y} for a in free for b in free for x in BITS for y in BITS):
        more = [BITS[choice[site]] - BITS[best[site]] for site in free if choice[site] != best[site]]
        if not more or effective_bits(choice) > BUDGET or len(more) == 2 and more[0] * more[1] > 0:
            continue
        others += 1
        assert known[tuple(choice.items())] >= answer["refined"]["measured_kl_nats"]
    assert others > 10


def test_limits_hold_and_the_answer_can_be_deployed(refined, tmp_path):
    answer = refined.json(*refine(refined, "--max-formats", 2, "--exclude", "*=fp8_e4m3/fp8_e4m3", "--rounds", 2,
                                  "--neighbours", 3))
    for choice in measured_choices(answer):
        assert set(choice.values()) <= {"nvfp4/nvfp4", "fp8_e4m3/nvfp4"}
    file = tmp_path / "refined.json"
    file.write_text(json.dumps(answer))
    kept = refined.json("rebudget", "s", "--bits", BUDGET, "--deployed", file, "--max-changes", 0)
    assert chosen(kept) == chosen(answer["refined"])


def test_memory_budget(refined):
    limit = ["--memory", "192KiB", "--context", 128]
    answer = refined.json(*refine(refined, *limit, "--rounds", 1, "--neighbours", 2))
    assert answer["budget"]["effective_bits"] is None
    for one in (answer["start"], answer["refined"]):
        assert one["memory"]["kv_bytes"] <= one["memory"]["memory_bytes"] == 192 << 10


def test_calibrated_scales(tmp_path):
    cli = searched(tmp_path, "--scale-policy", "calibrated", "--calib", HELD_OUT)
    answer = cli.json(*refine(cli, "--rounds", 1, "--neighbours", 2))
    row = cli.json("validate", "s", "--data", DATA, "--device", "cpu")[-1]
    assert row["kl_nats_per_token"] == pytest.approx(answer["start"]["measured_kl_nats"], rel=1e-12)


def test_text(refined):
    said = refined.run(*refine(refined, "--neighbours", 4, "--rounds", 3)).stdout
    assert re.search(r"^ +1 +\S+ +\d\.\d+e-\d+ +\d\.\d+e-\d+ +\d\.\d+e-\d+ +\d\.\d+ +start$", said, re.M)
    assert "rank correlation" in said and "the tokens of the search" in said
    assert ("no swap within the budget helps" in said) == refined.answer["all_neighbours_measured"]
