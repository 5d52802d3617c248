"""Our search against ModelOpt's own K/V search: same model, same tokens, same NVFP4 encoding.

Expected values: modelopt_scores.json beside this file, made by make_modelopt_scores.py with
nvidia-modelopt 0.48.0rc1. Its sums are float32, and that noisy: its own scores on two kinds of CPU are
2.4e-3 apart (relative, at the smallest score), so we can be no nearer than that.
"""

import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "modelopt_scores.json").read_text())
CANDIDATES = "fp8_e4m3/fp8_e4m3,nvfp4/nvfp4,fp8_e4m3/nvfp4"
TOLERANCE = 5e-3
SMALLEST = 1e-6  # nats a token: below, float32 sums of the peer say nothing


def plain(candidate):
    return candidate.replace("[encoding=modelopt]", "")


@pytest.fixture(scope="module")
def search(cli, small_model):
    return cli.json(
        *("search", "--model", small_model, "--data", HERE / "modelopt_scores_tokens.safetensors"),
        *("--candidates", CANDIDATES, "--encoding", "modelopt", "--dtype", "float32"),
        *("--bits", EXPECTED["assignments"][0]["budget"]),
    )


def test_scores(cli, search):
    sites = cli.json("assignment", search["search"], "--scores")["sites"]
    assert {site["site"] for site in sites} == set(EXPECTED["kl_nats_per_token"])
    worst = 0.0
    for site in sites:
        expected = EXPECTED["kl_nats_per_token"][site["site"]]
        assert {plain(name) for name in site["scores"]} == set(expected)
        for name, score in site["scores"].items():
            assert score["tokens"] == EXPECTED["num_scored_tokens"]
            wanted = expected[plain(name)]
            if wanted > SMALLEST:
                error = abs(score["kl_nats_per_token"] - wanted) / wanted
                assert error <= TOLERANCE, f"{site['site']} {name}: {error:.1e} off"
                worst = max(worst, error)
    print(f"largest relative difference: {worst:.1e}")


@pytest.mark.parametrize("expected", EXPECTED["assignments"], ids=lambda a: str(a["budget"]))
def test_assignment(cli, search, expected):
    answer = cli.json("rebudget", search["search"], "--bits", expected["budget"])
    answer = answer[0] if isinstance(answer, list) else answer
    chosen = {site["site"]: plain(site["candidate"]) for site in answer["sites"]}
    assert chosen == expected["assignment"]
    assert answer["effective_bits"] == pytest.approx(expected["effective_bits"], rel=1e-12)
    assert answer["objective_kl_nats"] == pytest.approx(expected["objective_kl_nats"], rel=TOLERANCE)
