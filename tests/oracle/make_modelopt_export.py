#!/usr/bin/env python3
"""What ModelOpt writes when it exports a model with quantized K/V caches.

  tests/oracle/make_modelopt_export.py MODEL_DIR tests/oracle/modelopt_export.json

Runs nvidia-modelopt 0.48.0rc1 (export_hf_checkpoint) on the small model for several assignments and
keeps of each export: hf_quant_config.json, config.json's quantization_config, and every K/V scale
tensor. The export's own weights are not kept: bitalloc links the model's files.

Formats a layer: fp8, nvfp4, fp8_k_nvfp4_v, or off (K/V stay bf16). NVFP4 fake quantization needs
CUDA in ModelOpt, so nothing is ever run with it here: calibration only observes.
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

import modelopt
import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from safetensors import safe_open
from transformers import AutoModelForCausalLM

FP8 = {"num_bits": (4, 3)}
NVFP4 = {"num_bits": (2, 1), "block_sizes": {-1: 16, "type": "dynamic", "scale_bits": (4, 3)}}
PAIRS = {"fp8": (FP8, FP8), "nvfp4": (NVFP4, NVFP4), "fp8_k_nvfp4_v": (FP8, NVFP4)}
NAMES = {  # bitalloc's names
    "fp8": "fp8_e4m3/fp8_e4m3",
    "nvfp4": "nvfp4/nvfp4",
    "fp8_k_nvfp4_v": "fp8_e4m3/nvfp4",
    "off": "bf16/bf16",
}
LAYERS = 12
MIXED = ["fp8", "fp8_k_nvfp4_v", "nvfp4", "nvfp4"] * 3

CASES = {  # name: (format of each layer, calibrated)
    "uniform_fp8": (["fp8"] * LAYERS, False),
    "uniform_nvfp4": (["nvfp4"] * LAYERS, False),
    "uniform_fp8_k_nvfp4_v": (["fp8_k_nvfp4_v"] * LAYERS, False),
    "mixed": (MIXED, False),
    "mixed_calibrated": (MIXED, True),
    "uniform_fp8_calibrated": (["fp8"] * LAYERS, True),
    "one_layer_off": (["off"] + ["fp8"] * (LAYERS - 1), False),
    "mixed_with_layers_off": (["off", "off"] + MIXED[2:], False),
}


def quant_config(formats, calibrated):
    entries = [{"quantizer_name": "*", "enable": False}]
    for layer, name in enumerate(formats):
        if name == "off":
            continue
        for side, cfg in zip("kv", PAIRS[name]):
            constant = {} if calibrated else {"constant_amax": 448.0}
            entries.append(
                {
                    "quantizer_name": f"model.layers.{layer}.self_attn.{side}_bmm_quantizer",
                    "cfg": {**cfg, **constant},
                }
            )
    return {"quant_cfg": entries, "algorithm": "max" if calibrated else None}


def export(model_dir, formats, calibrated):
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16).eval()
    tokens = torch.randint(0, model.config.vocab_size, (2, 64), generator=torch.Generator().manual_seed(1))
    mtq.quantize(model, quant_config(formats, calibrated), lambda m: m(tokens) if calibrated else None)
    with tempfile.TemporaryDirectory() as folder:
        export_hf_checkpoint(model, export_dir=folder)
        scales = {}
        for file in sorted(Path(folder).glob("*.safetensors")):
            with safe_open(file, "pt") as tensors:
                for name in tensors.keys():
                    if name.endswith(("k_scale", "v_scale")):
                        value = tensors.get_tensor(name)
                        scales[name] = {
                            "dtype": str(value.dtype).removeprefix("torch."),
                            "shape": list(value.shape),
                            "value": float(value),
                        }
        amax = []
        for layer in model.model.layers:
            for side in "kv":
                quantizer = getattr(layer.self_attn, f"{side}_bmm_quantizer")
                amax.append(float(quantizer.amax) if quantizer.is_enabled else 448.0)
        return {
            "candidates": [NAMES[name] for name in formats],
            "calibrated": calibrated,
            "amax": amax,
            "hf_quant_config": json.loads(Path(folder, "hf_quant_config.json").read_text()),
            "quantization_config": json.loads(Path(folder, "config.json").read_text())["quantization_config"],
            "scales": scales,
        }


def main():
    model_dir, output = sys.argv[1:3]
    cases = {name: export(model_dir, *case) for name, case in CASES.items()}
    document = {"generator": f"nvidia-modelopt {modelopt.__version__}", "cases": cases}
    Path(output).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
