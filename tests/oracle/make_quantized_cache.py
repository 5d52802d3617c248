#!/usr/bin/env python3
"""Makes tests/oracle/quantized_cache.json: what transformers' QuantizedCache does to the small model's predictions.

    .venv/bin/python tests/oracle/make_quantized_cache.py      (seconds; deterministic)

Needs transformers 5.24.0 and optimum-quanto 0.2.7 (requirements.txt beside this file). The model runs in float32 on a
prompt, then token by token; the numbers are −log p(next token) at every position, with and without the cache.
"""
import json
import pathlib

import torch
from transformers import AutoModelForCausalLM, QuantizedCache

HERE = pathlib.Path(__file__).parent
TOKENS, PREFILL, GROUP, WINDOW = 120, 50, 32, 16


def losses(model, ids, cache, prefill):
    logits = [model(ids[:, :prefill], past_key_values=cache, use_cache=True).logits[0]]
    for i in range(prefill, ids.shape[1] - 1):
        logits.append(model(ids[:, i : i + 1], past_key_values=cache, use_cache=True).logits[0])
    logits = torch.cat(logits).double()
    return torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")


def main():
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(HERE.parent / "fixtures/small/model", dtype=torch.float32).eval()
    ids = (torch.arange(TOKENS) * 7919 % model.config.vocab_size)[None]
    runs = {}
    with torch.no_grad():
        exact = losses(model, ids, None, TOKENS - 1)
        for nbits in (2, 4):
            cache = QuantizedCache(backend="quanto", config=model.config, nbits=nbits, axis_key=0, axis_value=0,
                                   q_group_size=GROUP, residual_length=WINDOW)
            runs[f"int{nbits}"] = losses(model, ids, cache, PREFILL).tolist()
    (HERE / "quantized_cache.json").write_text(json.dumps(
        {"tokens": TOKENS, "prefill": PREFILL, "group": GROUP, "window": WINDOW, "exact": exact.tolist(), **runs}) + "\n")
    for name, values in runs.items():
        print(name, "mean", sum(values) / len(values), "exact", exact.mean().item())


if __name__ == "__main__":
    main()
