"""Logits of bitalloc-logits in bfloat16 against transformers on the same directory and tokens.

bfloat16 sums differ in their last bits with the order of additions, so that the comparison is of
distributions: KL(transformers ‖ ours) of at most 1e-4 nats a token, in float64. transformers rounds
the logits themselves to bfloat16 (which alone moves SmolLM2's distributions by 2.7e-4 nats a token);
ours stay float32, so they are rounded here in the same way before they are compared.
"""

import json
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

SEQUENCES, LENGTH = 4, 128
LARGEST_KL = 1e-4  # nats a token


@pytest.fixture(autouse=True)
def two_threads():
    torch.set_num_threads(2)


def write_tokens(model, texts, file):
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = [ids for ids in (tokenizer(text)["input_ids"] for text in texts) if len(ids) >= LENGTH]
    ids = torch.tensor([row[:LENGTH] for row in rows[:SEQUENCES]])
    save_file({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, file)
    return ids


@torch.inference_mode()
def expected_logits(model, ids):
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    return network(ids, use_cache=False).logits.double()


def kl_nats_per_token(reference, other):
    log_p, log_q = (torch.log_softmax(x, -1) for x in (reference, other))
    return float((log_p.exp() * (log_p - log_q)).sum(-1).mean())


def compare(model, small_model, logits_program, folder):
    lines = (small_model.parent / "score.jsonl").read_text().splitlines()
    ids = write_tokens(model, [json.loads(line)["text"] for line in lines], folder / "tokens.safetensors")
    command = [logits_program, model, folder / "tokens.safetensors", folder / "logits.safetensors"]
    subprocess.run([*command, "--dtype", "bfloat16", "--threads", "2"], check=True)
    ours = load_file(folder / "logits.safetensors")["logits"].bfloat16().double()
    assert ours.shape[:2] == (SEQUENCES, LENGTH)
    kl = kl_nats_per_token(expected_logits(model, ids), ours)
    print(f"KL {kl:.2e} nats a token")
    assert kl <= LARGEST_KL


def test_small_model(small_model, logits_program, tmp_path):
    compare(small_model, small_model, logits_program, tmp_path)


def test_smollm2(smollm2, small_model, logits_program, tmp_path):
    compare(smollm2, small_model, logits_program, tmp_path)
