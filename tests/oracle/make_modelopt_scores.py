#!/usr/bin/env python3
"""ModelOpt's own K/V search on the small model: scores and assignment to compare ours with.

  tests/oracle/make_modelopt_scores.py MODEL_DIR SCORE_JSONL tests/oracle

Writes modelopt_scores_tokens.safetensors (input_ids and attention_mask, both int64
[sequences, length]; the last sequence is padded, so that masks matter) and modelopt_scores.json:
what ops/bench/rivals/peer_gemm_kv_modelopt.py --mode kv_auto (nvidia-modelopt 0.48.0rc1, float32)
makes of them, at two budgets. Candidate names are bitalloc's.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

SEQUENCES, LENGTH, PADDING = 4, 128, 29
BUDGETS = [5.0, 6.0]
PEER = Path(__file__).resolve().parents[2] / "ops/bench/rivals/peer_gemm_kv_modelopt.py"
NAMES = {"fp8": "fp8_e4m3/fp8_e4m3", "nvfp4": "nvfp4/nvfp4", "fp8_k_nvfp4_v": "fp8_e4m3/nvfp4"}


def make_tokens(model_dir, score_jsonl, output):
    tokenizer = Tokenizer.from_file(str(Path(model_dir, "tokenizer.json")))
    texts = [json.loads(line)["text"] for line in Path(score_jsonl).read_text().splitlines()]
    rows = [tokenizer.encode(text).ids for text in texts]
    rows = [row[:LENGTH] for row in rows if len(row) >= LENGTH][:SEQUENCES]
    ids = torch.tensor(rows, dtype=torch.int64)
    mask = torch.ones_like(ids)
    ids[-1, LENGTH - PADDING :] = 0
    mask[-1, LENGTH - PADDING :] = 0
    save_file({"input_ids": ids, "attention_mask": mask}, output)


def search(model_dir, tokens, budget):
    with tempfile.TemporaryDirectory() as folder:
        options = ["--mode", "kv_auto", "--out", folder, "--model", model_dir, "--tokens", tokens]
        options += ["--batch", "1", "--score_steps", str(SEQUENCES), "--calib_steps", "1"]
        subprocess.run([sys.executable, str(PEER), *options, "--kv_bits", str(budget)], check=True)
        result = json.loads(Path(folder, "kv_auto.json").read_text())
    if "error" in result:
        sys.exit(result["error"])
    return result


def main():
    model_dir, score_jsonl, output = sys.argv[1:4]
    tokens = str(Path(output, "modelopt_scores_tokens.safetensors"))
    make_tokens(model_dir, score_jsonl, tokens)
    results = [search(model_dir, tokens, budget) for budget in BUDGETS]
    first = results[0]
    document = {
        "generator": f"nvidia-modelopt {first['modelopt']}",
        "num_scored_tokens": int(first["num_scored_tokens"]),
        "kl_nats_per_token": {
            site: {NAMES[name]: score for name, score in scores.items()}
            for site, scores in first["layers"].items()
        },
        "assignments": [
            {
                "budget": budget,
                "effective_bits": float(result["best"]["constraints"]["effective_bits"]),
                "objective_kl_nats": float(result["best"]["score"]),
                "assignment": {s: NAMES[n] for s, n in result["best"]["recipe"].items()},
            }
            for budget, result in zip(BUDGETS, results)
        ],
    }
    Path(output, "modelopt_scores.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
