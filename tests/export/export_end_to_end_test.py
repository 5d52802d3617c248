"""From a search to a directory that transformers loads, through the command line.

transformers 5.24 knows no quantization method "modelopt": it says so, loads the weights as they
are, and reports the K/V scales as keys that the network does not use. So the exported model must
compute exactly what the model computes, and those keys must be all that is new.
"""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ALGORITHMS = {
    "fp8_e4m3/fp8_e4m3": "FP8",
    "nvfp4/nvfp4": "NVFP4",
    "fp8_e4m3/nvfp4": "FP8_K_NVFP4_V",
}


@pytest.fixture(scope="module")
def search(cli, small_model):
    return cli.json(
        *("search", "--model", small_model, "--data", small_model.parent / "score.jsonl"),
        *("--recipe", "kv_fp8_nvfp4_cast_kl_div", "--sequences", "2", "--length", "64"),
        *("--bits", "5.5"),
    )


@pytest.fixture(scope="module")
def exported(cli, search, tmp_path_factory):
    output = tmp_path_factory.mktemp("export") / "small-kv"
    cli.run("export", search["search"], "--bits", "5.5", "--output", output)
    return output


@torch.inference_mode()
def test_transformers_loads_it(small_model, exported):
    ids = torch.arange(96)[None]
    network = AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.bfloat16).eval()
    loaded, info = AutoModelForCausalLM.from_pretrained(
        exported, dtype=torch.bfloat16, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["mismatched_keys"]
    assert set(info["unexpected_keys"]) == {
        f"model.layers.{layer}.self_attn.{side}_proj.{side}_scale" for layer in range(12) for side in "kv"
    }
    assert torch.equal(network(ids).logits, loaded.eval()(ids).logits)
    assert AutoTokenizer.from_pretrained(exported)("In the beginning")["input_ids"]


def test_layers_are_those_of_the_assignment(search, exported):
    layers = json.loads((exported / "hf_quant_config.json").read_text())["quantization"]
    chosen = {site["site"]: ALGORITHMS[site["candidate"]] for site in search["sites"]}
    listed = {site: entry["quant_algo"] for site, entry in layers["kv_cache_quantized_layers"].items()}
    assert listed == chosen
    assert layers["kv_cache_quant_algo"] == "MIXED_PRECISION"
    provenance = json.loads((exported / "bitalloc.json").read_text())
    assert provenance["fingerprint"] == search["fingerprint"]
    assert provenance["effective_bits"] == pytest.approx(search["effective_bits"])
    assert provenance["objective_kl_nats"] == pytest.approx(search["objective_kl_nats"])


def test_an_export_is_replaced_only_with_force(cli, search, exported):
    before = (exported / "bitalloc.json").stat().st_ino
    refused = cli.json("export", search["search"], "--output", exported, code=2)
    assert str(exported) in refused["error"]["message"]
    assert (exported / "bitalloc.json").stat().st_ino == before
    cli.run("export", search["search"], "--output", exported, "--force")
    assert (exported / "bitalloc.json").stat().st_ino != before


def test_other_weights_are_refused(cli, search, small_model, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(small_model, model)
    weights = model / "model.safetensors"
    weights.chmod(0o644)
    content = bytearray(weights.read_bytes())
    content[-2] ^= 1
    weights.write_bytes(content)
    output = tmp_path / "out"
    refused = cli.json("export", search["search"], "--model", model, "--output", output, code=2)
    assert refused["error"]["code"] == "mismatch"
    assert not output.exists()
