#!/usr/bin/env python3
"""Tiny random models of every family, and what transformers computes on them: the oracle of worker/.

  make_models.py [FIXTURES]      default: tests/fixtures beside this folder; needs torch, transformers, safetensors

Writes FIXTURES/tiny/NAME/{config.json, model*.safetensors, expected.safetensors} and
FIXTURES/small/expected_bf16.safetensors. expected.safetensors: input_ids and attention_mask [sequences, length], logits
[sequences, length, vocab] of a float32 run (of the bfloat16 run for the small model), as AutoModelForCausalLM gives them when it
loads the very directory. Weights are random with a fixed seed; norms and biases too, so that none of them can be left out unseen.
"""
import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import (AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

COMMON = dict(vocab_size=96, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
              num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False)
LENGTH = 40


def spell_as_transformers_4(config):
    """rope_theta beside rope_scaling, torch_dtype: what checkpoints of before 2026 say."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config["torch_dtype"] = config.pop("dtype")


def spell_type(config):
    """The oldest spelling: "type" for "rope_type"."""
    spell_as_transformers_4(config)
    config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")


MODELS = {
    # name: (model class, config, stored dtype, shard size, rewriting of config.json)
    "llama": (LlamaForCausalLM, LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}), torch.bfloat16, None, spell_as_transformers_4),
    "llama_linear": (LlamaForCausalLM, LlamaConfig(**COMMON, rope_parameters={
        "rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}), torch.bfloat16, None, spell_type),
    "mistral": (MistralForCausalLM, MistralConfig(**{**COMMON, "hidden_size": 40, "num_attention_heads": 4}, head_dim=12,
                sliding_window=7), torch.bfloat16, None, None),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**COMMON, use_sliding_window=True, sliding_window=9, max_window_layers=2),
              torch.float32, None, None),
    "qwen2_sharded": (Qwen2ForCausalLM, Qwen2Config(**COMMON), torch.float16, "40KB", spell_as_transformers_4),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**{**COMMON, "tie_word_embeddings": True}, head_dim=16, rope_parameters={
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}),
        torch.bfloat16, None, None),
    "qwen3_yarn": (Qwen3ForCausalLM, Qwen3Config(**COMMON, head_dim=8, attention_bias=True, rope_parameters={
        "rope_type": "yarn", "rope_theta": 1000.0, "factor": 3.0, "original_max_position_embeddings": 100, "beta_fast": 16.0,
        "beta_slow": 2.0, "mscale": 0.8, "mscale_all_dim": 0.5, "truncate": False}), torch.bfloat16, None,
        spell_as_transformers_4),
}


def randomize(model, generator):
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(1 + 0.3 * noise if "norm" in name else noise * (0.3 if name.endswith("bias") else 0.2))


def tokens(vocab, generator):
    """No padding; padding on the right; padding on the left and a hole."""
    ids = torch.randint(0, vocab, (3, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, LENGTH - 11:] = 0
    mask[2, :5] = 0
    mask[2, 20:23] = 0
    return ids, mask


@torch.inference_mode()
def expected_logits(directory, ids, mask, dtype):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="sdpa").eval()
    return model(ids, attention_mask=mask, use_cache=False).logits


def make_tiny(folder, seed, model_class, config, dtype, shard_size, rewrite):
    generator = torch.Generator().manual_seed(seed)
    shutil.rmtree(folder, ignore_errors=True)
    model = model_class(config)
    randomize(model, generator)
    model.to(dtype).save_pretrained(folder, **({"max_shard_size": shard_size} if shard_size else {}))
    (folder / "generation_config.json").unlink(missing_ok=True)
    written = json.loads((folder / "config.json").read_text())
    written.pop("transformers_version", None)
    if rewrite:
        rewrite(written)
    (folder / "config.json").write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    ids, mask = tokens(config.vocab_size, generator)
    logits = expected_logits(folder, ids, mask, torch.float32)
    save_file({"input_ids": ids.to(torch.int32), "attention_mask": mask.to(torch.uint8), "logits": logits},
              folder / "expected.safetensors")


def make_small(folder):
    text = [json.loads(line)["text"] for line in (folder / "score.jsonl").read_text().splitlines()[1:3]]
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    ids = torch.tensor([tokenizer(t)["input_ids"][:64] for t in text])
    mask = torch.ones_like(ids)
    logits = expected_logits(folder / "model", ids, mask, torch.bfloat16)
    save_file({"input_ids": ids.to(torch.int32), "attention_mask": mask.to(torch.uint8), "logits": logits},
              folder / "expected_bf16.safetensors")


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
    fixtures = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    torch.set_num_threads(1)
    for seed, (name, row) in enumerate(MODELS.items()):
        make_tiny(fixtures / "tiny" / name, seed, *row)
    make_small(fixtures / "small")


main()
