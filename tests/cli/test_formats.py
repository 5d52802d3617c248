"""Formats beyond the default ones, from the command line to an assignment and back."""

import json

import numpy
import pytest
from safetensors.numpy import save_file

from conftest import SOURCE, CommandLine

DATA = SOURCE / "tests/fixtures/small/score.jsonl"
SHAPE = ["--sequences", 4, "--length", 96, "--device", "cpu"]
# At 96 tokens, head_dim 32: KIVI's keys are stored once 64 are there, so 32 stay exact; values keep 64.
KIVI = "int2[group=32,axis=channel,see=kivi,window=64]/int2[group=32,see=kivi,window=64]"
BITS = {
    "fp8_e4m3/fp8_e4m3": 8,
    "mxfp4/mxfp8": (4.25 + 8.25) / 2,
    "nvfp4[rotate=hadamard]/nvfp4_4over6": 4.5,
    "int8_token_head/nvfp4": (8 + 32 / 32 + 4.5) / 2,
    "nvfp4[see=window,window=24]/nvfp4": ((24 * 16 + 72 * 4.5) / 96 + 4.5) / 2,
    KIVI: ((32 * 16 + 64 * 3) / 96 + (64 * 16 + 32 * 3) / 96) / 2,
}


@pytest.fixture(scope="module")
def searched(tmp_path_factory, small_model):
    cli = CommandLine(tmp_path_factory.mktemp("formats") / "home")
    cli.model = small_model
    cli.search = cli.json("search", "--model", small_model, "--data", DATA, *SHAPE, "--id", "s",
                          "--candidates", ",".join(BITS), "--bits", 6)
    return cli


def test_bits_and_scores_of_every_candidate(searched):
    sites = searched.json("assignment", "s", "--scores")["sites"]
    assert len(sites) == 12
    for site in sites:
        assert site["scores"].keys() == BITS.keys()
        for candidate, score in site["scores"].items():
            assert score["kl_nats_per_token"] > 0, (site["site"], candidate)
        assert site["bits"] == pytest.approx(BITS[site["candidate"]], rel=1e-12)
    widest = searched.json("rebudget", "s", "--bits", 12, "--pin", f"layers.0={KIVI}")
    assert widest["sites"][0]["bits"] == pytest.approx(BITS[KIVI], rel=1e-12)


def test_exact_tokens_make_scores_smaller(searched):
    """Less of the same format: the window's score is below that of no window, in every layer."""
    other = searched.json("search", "--model", searched.model, "--data", DATA, *SHAPE, "--id", "plain",
                          "--candidates", "nvfp4/nvfp4,nvfp4[see=window,window=24]/nvfp4[see=window,window=24]",
                          "--bits", 9)
    assert other["effective_bits"] <= 9
    for site in searched.json("assignment", "plain", "--scores")["sites"]:
        with_window, without = (site["scores"][name]["kl_nats_per_token"] for name in (
            "nvfp4[see=window,window=24]/nvfp4[see=window,window=24]", "nvfp4/nvfp4"))
        assert with_window < without, site["site"]


def test_validate_measures_them_together(searched):
    rows = searched.json("validate", "s", "--data", DATA, "--device", "cpu")
    assert rows[-1]["effective_bits"] <= 6 and 0 < rows[-1]["kl_nats_per_token"] < 1


def test_what_no_checkpoint_can_say_is_not_exported(searched, tmp_path):
    pins = [word for layer in range(12) for word in ("--pin", f"layers.{layer}=nvfp4[rotate=hadamard]/nvfp4_4over6")]
    assert searched.json("rebudget", "s", "--bits", 4.5, *pins)["effective_bits"] == 4.5
    error = searched.json("export", "s", "--bits", 4.5, "--output", tmp_path / "out", code=2)["error"]
    assert "nvfp4" in error["message"] and "no name for" in error["message"]


def test_padding_before_a_token_is_refused_before_work_starts(searched, tmp_path):
    mask = numpy.ones((2, 32), numpy.uint8)
    mask[1, 0] = 0
    save_file({"input_ids": numpy.ones((2, 32), numpy.int32), "attention_mask": mask}, tmp_path / "tokens.safetensors")
    arguments = ["search", "--model", searched.model, "--data", tmp_path / "tokens.safetensors", "--device", "cpu"]
    error = searched.json(*arguments, "--candidates", "nvfp4,nvfp4[see=window]", "--bits", 8, code=2)["error"]
    assert error["field"] == "--data" and "sequence 1" in error["message"]


@pytest.mark.parametrize("candidates, said", [
    ("int4[group=48]", "group=64|32|128"),
    ("int4[see=after_prefill]", "prefill=TOKENS"),
    ("int4[axis=channel,see=window]", "see=kivi"),
    ("int5", "int4"),
])
def test_refusals_say_what_there_is(searched, candidates, said):
    error = searched.json("search", "--model", searched.model, "--data", DATA, "--candidates", candidates, "--bits", 8,
                          code=2)["error"]
    assert said in error["message"] + error["hint"]


def test_formats_lists_parameters(searched):
    rows = {row["format"]: row for row in searched.json("formats")}
    assert len(rows) >= 13 and "axis=token|channel" in rows["int4"]["parameters"]
    assert rows["mxfp4"]["bits_per_element"] == 4.25
    said = searched.run("formats").stdout
    assert "int2, int3, int4, int8" in said
