"""Writes the seed corpus (corpus/TARGET/ok-* and bad-*) of the fuzz targets.

    .venv/bin/python tests/fuzz/make_seeds.py

safetensors and token files come from the safetensors library, model configurations from the models
of tests/fixtures, recipes from ops/recipes; the rest is written by hand from the documentation of
each format. checkpoint/ok-served is what a coordinator wrote (see README.md) and is left alone.
"""

import json
import struct
from pathlib import Path

import numpy
from safetensors.numpy import save

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
DIGEST = "0" * 64


def put(target, name, content):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def safetensors_file(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def safetensors_seeds():
    numbers = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    put("safetensors", "ok-two", save({"a": numbers, "b": numbers.astype(numpy.float16)}))
    put("safetensors", "ok-integers", save({"i": numpy.array([[1, -2]], dtype=numpy.int32)}))
    put("safetensors", "ok-metadata", save({"a": numbers}, metadata={"format": "pt"}))
    put("safetensors", "ok-nothing", safetensors_file({}))
    put("safetensors", "ok-empty-tensor",
        safetensors_file({"a": {"dtype": "F32", "shape": [0, 5], "data_offsets": [0, 0]}}))
    tensor = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    put("safetensors", "bad-cut", safetensors_file({"a": tensor}, b"abc"))
    put("safetensors", "bad-overlap", safetensors_file({"a": tensor, "b": tensor}, b"abcd"))
    put("safetensors", "bad-gap", safetensors_file({"a": tensor}, b"abcdefgh"))
    put("safetensors", "bad-dtype", safetensors_file({"a": {**tensor, "dtype": "U9"}}, b"abcd"))
    put("safetensors", "bad-shape",
        safetensors_file({"a": {**tensor, "shape": [2**62, 4, 2]}}, b"abcd"))
    put("safetensors", "bad-offsets",
        safetensors_file({"a": {**tensor, "data_offsets": [4, 0]}}, b"abcd"))
    put("safetensors", "bad-negative",
        safetensors_file({"a": {**tensor, "shape": [-4]}}, b"abcd"))
    put("safetensors", "bad-header-length", safetensors_file({}, length=2**63))
    put("safetensors", "bad-deep", safetensors_file(b"[" * 1000 + b"]" * 1000))
    put("safetensors", "bad-pickle", b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01a\x94K\x01s.")


def token_file_seeds():
    ids = numpy.array([[1, 2, 3], [4, 5, 0]], dtype=numpy.int64)
    mask = numpy.array([[1, 1, 1], [1, 1, 0]], dtype=numpy.int64)
    put("token_file", "ok-both", save({"input_ids": ids, "attention_mask": mask}))
    put("token_file", "ok-ids", save({"input_ids": ids.astype(numpy.int32)}))
    put("token_file", "bad-negative", save({"input_ids": -ids}))
    put("token_file", "bad-large", save({"input_ids": ids + 2**40}))
    put("token_file", "bad-mask", save({"input_ids": ids, "attention_mask": mask * 2}))
    put("token_file", "bad-mask-shape", save({"input_ids": ids, "attention_mask": mask[:1]}))
    put("token_file", "bad-rank", save({"input_ids": ids.reshape(-1)}))
    put("token_file", "bad-float", save({"input_ids": ids.astype(numpy.float32)}))
    put("token_file", "bad-name", save({"ids": ids}))


def recipe_seeds():
    for file in sorted((SOURCE / "ops/recipes").glob("*.yaml")):
        put("recipe", f"ok-{file.stem}", file.read_bytes())
    put("recipe", "ok-anchors", "name: &n a\ndescription: *n\ncandidates: [fp8, nvfp4]\neffective_bits: 5\n")
    put("recipe", "ok-all", "name: a\ncandidates: [fp8, bf16]\neffective_bits: 8\nscale_policy: calibrated\n"
        "encoding: modelopt\nmethod: kl_div\nsequences: 4\nlength: 16\ndisabled_layers: ['*layers.0.*']\n")
    put("recipe", "bad-key", "name: a\ncandidats: [fp8]\n")
    put("recipe", "bad-number", "name: a\ncandidates: [fp8]\neffective_bits: .inf\n")
    put("recipe", "bad-list", "- name\n- candidates\n")
    put("recipe", "bad-twice", "name: a\nname: b\n")
    put("recipe", "bad-tag", "name: !!python/object/apply:os.system ['true']\n")
    put("recipe", "bad-deep", "[" * 2000)
    put("recipe", "bad-laughs", "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nname: [*c,*c]\n")
    put("recipe", "bad-self", "name: &a [*a]\n")
    put("recipe", "bad-bytes", b"name: \xff\xfe\x00\n")


def frames(*parts):
    return b"".join(struct.pack("<H", len(part)) + part for part in parts)


def wire_seeds():
    put("wire", "ok-info", frames(b"", b"BA1", b"info", b"c1", b"{}"))
    put("wire", "ok-status", frames(b"", b"BA1", b"status", b"c1", b'{"id": "s"}'))
    put("wire", "ok-blobs", frames(b"", b"BA1", b"result", b"9", b'{"unit": "score/0/0-1"}', b"\x00\x01", b""))
    put("wire", "ok-numbers", frames(b"", b"BA1", b"rebudget", b"", b'{"budgets": [5.4, -0.0, 1e308], "n": 18446744073709551615}'))
    put("wire", "bad-version", frames(b"", b"BA9", b"info", b"c1", b"{}"))
    put("wire", "bad-few", frames(b"", b"BA1", b"info"))
    put("wire", "bad-many", frames(*[b""] * 17))
    put("wire", "bad-json", frames(b"", b"BA1", b"info", b"c1", b'{"a":'))
    put("wire", "bad-list", frames(b"", b"BA1", b"info", b"c1", b"[1]"))
    put("wire", "bad-utf8", frames(b"", b"BA1", b"info", b"c1", b'{"a": "\xff"}'))
    put("wire", "bad-type", frames(b"", b"BA1", b"t" * 129, b"c1", b"{}"))
    put("wire", "bad-deep", frames(b"", b"BA1", b"info", b"c1", b'{"a":' * 40 + b"1" + b"}" * 40))


def spec(**changes):
    sites = [{"name": f"model.layers.{i}.self_attn", "layer": i, "k_width": 64, "v_width": 64} for i in range(2)]
    model = {"path": "/m/small", "name": "small", "family": "llama", "weights_sha256": "w",
             "config_sha256": "c", "num_layers": 2, "vocab_size": 500}
    return {"kind": "search", "model": model, "dtype": "float32", "sites": sites, "disabled_sites": [],
            "candidates": ["fp8_e4m3/fp8_e4m3", "nvfp4/nvfp4"], "configurations": [], "sequences": 3,
            "length": 8, "batch_sequences": 2, "sites_per_unit": 1, "calibration_sequences": 0,
            "calibration_length": 0, "amax": [], "tokens_sha256": "t", "calibration_sha256": "",
            "recipe": "r", "effective_bits": 6.0, **changes}


def spec_seeds():
    put("search_spec", "ok-search", json.dumps(spec()))
    put("search_spec", "ok-calibrated", json.dumps(spec(candidates=["fp8[scale=calibrated]"],
                                                        calibration_sequences=2, calibration_length=8)))
    put("search_spec", "ok-amax", json.dumps(spec(candidates=["fp8[scale=calibrated]"], amax=[1, 2, 3.5, 0])))
    put("search_spec", "ok-validation", json.dumps(spec(kind="validation", candidates=[], configurations=[
        {"name": "reference", "candidates": ["bf16", "bf16"]}])))
    put("search_spec", "bad-huge", json.dumps(spec(sequences=10**6, batch_sequences=1, sites_per_unit=10**9)))
    put("search_spec", "bad-fraction", json.dumps(spec(sequences=2.5)))
    put("search_spec", "bad-beyond-64-bits", json.dumps(spec(sequences=1e300)))
    put("search_spec", "bad-unsigned", json.dumps(spec(sequences=2**63)))
    put("search_spec", "bad-amax", json.dumps(spec(amax=[1e300, 1, 1, 1])))
    put("search_spec", "bad-negative-amax", json.dumps(spec(amax=[-1, 1, 1, 1])))
    put("search_spec", "bad-kind", json.dumps(spec(kind="other")))
    put("search_spec", "bad-candidate", json.dumps(spec(candidates=["fp9"])))
    put("search_spec", "bad-site-twice", json.dumps(spec(sites=spec()["sites"][:1] * 2)))


def checkpoint_seeds():
    results = [{"unit": f"score/{batch}/{row}-{row + 1}", "sums": [0.5, 0.25] * (2 - batch),
                "tokens": [7] * (2 - batch), "amax": []} for batch in range(2) for row in range(2)]
    file = {"format": "bitalloc-checkpoint", "version": 1, "id": "s", "spec": spec(), "fingerprint": {},
            "units_total": 4, "units_done": 4, "results": results, "sha256": DIGEST}
    put("checkpoint", "ok-whole", json.dumps(file))
    put("checkpoint", "ok-half", json.dumps({**file, "results": results[:1]}))
    put("checkpoint", "bad-twice", json.dumps({**file, "results": results[:1] * 2}))
    put("checkpoint", "bad-unit", json.dumps({**file, "results": [{**results[0], "unit": "score/7/0-1"}]}))
    put("checkpoint", "bad-size", json.dumps({**file, "results": [{**results[0], "sums": [1]}]}))
    put("checkpoint", "bad-id", json.dumps({**file, "id": "../../etc/passwd"}))
    put("checkpoint", "bad-not-json", "checkpoint")


def unit_result_seeds():
    def packed(sums, tokens, amax):
        return b"".join(struct.pack(f"<Q{len(v)}{kind}", len(v), *v)
                        for v, kind in ((sums, "d"), (tokens, "q"), (amax, "f")))
    nan = float("nan")
    put("unit_result", "ok-calibrate", b"\x00" + packed([], [], [1, 2, 3, 4, 5, 6]))
    put("unit_result", "ok-score", b"\x01" + packed([0.5, 0.25, 0, 1e-300], [8, 7], []))
    put("unit_result", "ok-last", b"\x02" + packed([0.5, 0.25], [8], []))
    put("unit_result", "bad-nan", b"\x01" + packed([nan, 0.25, 0, 1], [8, 7], []))
    put("unit_result", "bad-negative", b"\x01" + packed([-1, 0.25, 0, 1], [8, 7], []))
    put("unit_result", "bad-count", b"\x01" + struct.pack("<Q", 2**61) + b"\x00" * 16)
    put("unit_result", "bad-tokens", b"\x01" + packed([0.5, 0.25, 0, 1], [9, 7], []))
    put("unit_result", "bad-unit", b"\x03" + packed([], [], []))
    put("unit_result", "bad-rest", b"\x02" + packed([0.5, 0.25], [8], []) + b"x")


def model_config_seeds():
    for folder in sorted((SOURCE / "tests/fixtures/tiny").iterdir()):
        put("model_config", f"ok-{folder.name}", (folder / "config.json").read_bytes())
    base = json.loads((SOURCE / "tests/fixtures/tiny/llama/config.json").read_text())
    put("model_config", "bad-family", json.dumps({**base, "model_type": "mamba"}))
    put("model_config", "bad-heads", json.dumps({**base, "num_attention_heads": 0}))
    put("model_config", "bad-layers", json.dumps({**base, "num_hidden_layers": 10**15}))
    put("model_config", "bad-fraction", json.dumps({**base, "hidden_size": 64.5}))
    put("model_config", "bad-epsilon", json.dumps({**base, "rms_norm_eps": "small"}))
    put("model_config", "bad-cut", json.dumps(base)[:-20])


def solve_file_seeds():
    good = {"bits": [[4.5, 8], [4.5, 8]], "width": [1, 2], "score": [[0.5, 0.1], [0.25, 0.1]], "budgets": [5, 6]}
    put("solve_file", "ok-two", json.dumps(good))
    put("solve_file", "ok-one", json.dumps({"bits": [[4]], "width": [1], "score": [[0]], "budgets": [4]}))
    put("solve_file", "bad-width", json.dumps({**good, "width": [1, -2]}))
    put("solve_file", "bad-rows", json.dumps({**good, "bits": [[4.5, 8]]}))
    put("solve_file", "bad-text", json.dumps({**good, "score": [["a", 0.1], [0.25, 0.1]]}))
    put("solve_file", "bad-empty", json.dumps({**good, "budgets": []}))
    row = {"name": "bytes", "coefficient": [[1, 2], [3, 4]], "upper": 6}
    constrained = {**good, "rows": [row], "pins": [{"site": 0, "candidate": 1}],
                   "exclude": [{"site": 1, "candidate": 1}], "groups": [{"sites": [0, 1]}],
                   "pairs": [{"sites": [0, 1], "allowed": [[0, 0], [1, 1]]}],
                   "max_distinct": 1, "labels": [["a", "b"], ["a", "b"]],
                   "max_changes": 1, "deployed": [0, -1]}
    put("solve_file", "ok-constraints", json.dumps(constrained))
    put("solve_file", "bad-row-bound", json.dumps({**good, "rows": [{**row, "upper": "6"}]}))
    put("solve_file", "bad-pin", json.dumps({**good, "pins": [{"site": 2, "candidate": 0}]}))
    put("solve_file", "bad-deployed", json.dumps({**good, "max_changes": 1, "deployed": [0, 9]}))
    put("solve_file", "bad-deep", "[" * 5000 + "]" * 5000)


def http_request(first, *headers, body=b"", host="localhost"):
    lines = [first, f"Host: {host}", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def http_seeds():
    operator, viewer = "Authorization: Bearer " + "o" * 32, "Authorization: Bearer " + "v" * 32
    session, page = "Cookie: a=b; bitalloc_session=" + "5" * 64, "Sec-Fetch-Site: same-origin"
    is_json = "Content-Type: application/json"
    api = "/api/v1/searches"
    asks = {
        "list": (f"GET {api} HTTP/1.1", operator),
        "viewer": ("GET /api/v1/info HTTP/1.1", viewer),
        "session": ("GET /api/v1/workers HTTP/1.1", session),
        "assignment": (f"GET {api}/s%2Dx/assignment?bits=5.4&scores=true HTTP/1.1", operator),
        "events": (f"GET {api}/s/events HTTP/1.1", session),
        "head": (f"HEAD {api}/s HTTP/1.0", operator),
        "delete": (f"DELETE {api}/s HTTP/1.1", operator),
        "pause": (f"POST {api}/s/pause HTTP/1.1", session, page),
    }
    for name, lines in asks.items():
        put("http", f"ok-{name}", http_request(*lines))
    put("http", "ok-rebudget", http_request(f"POST {api}/s/rebudget HTTP/1.1", operator, is_json,
                                            body=b'{"budgets": [5.4], "pins": {}}'))
    put("http", "ok-priority", http_request(f"POST {api}/s/priority HTTP/1.1", session, is_json,
                                            "Origin: http://localhost:80", body=b'{"priority": 3}', host="localhost:80"))
    refusals = {
        "no-token": (f"GET {api} HTTP/1.1",),
        "wrong-token": (f"GET {api} HTTP/1.1", operator + "o"),
        "scheme": (f"GET {api} HTTP/1.1", operator.replace("Bearer", "Basic")),
        "viewer-pause": (f"POST {api}/s/pause HTTP/1.1", viewer),
        "cross-site": (f"POST {api}/s/pause HTTP/1.1", session, "Origin: http://evil.example"),
        "silent-site": (f"POST {api}/s/pause HTTP/1.1", session),
        "traversal": ("GET /../../etc/passwd HTTP/1.1", operator),
        "hidden-traversal": (f"GET {api}/%2e%2e%2fx HTTP/1.1", operator),
        "zero-byte": (f"GET {api}/a%00b HTTP/1.1", operator),
        "parameter": (f"GET {api}?bits=5 HTTP/1.1", operator),
        "twice": (f"GET {api} HTTP/1.1", operator, operator),
        "two-hosts": (f"GET {api} HTTP/1.1", operator, "Host: localhost"),
        "method": (f"BREW {api} HTTP/1.1", operator),
        "options": (f"OPTIONS {api} HTTP/1.1",),
        "page": ("GET / HTTP/1.1",),
        "health": ("GET /healthz HTTP/1.1",),
        "smuggled": (f"POST {api}/s/pause HTTP/1.1", operator, "Content-Length: 3", "Transfer-Encoding: chunked"),
    }
    for name, lines in refusals.items():
        put("http", f"bad-{name}", http_request(*lines))
    put("http", "bad-host", http_request(f"GET {api} HTTP/1.1", "X: y", host="evil.example"))
    put("http", "bad-login", http_request("POST /login HTTP/1.1", is_json, body=b'{"token": "' + b"v" * 32 + b'"}'))
    put("http", "bad-body", http_request(f"POST {api}/s/priority HTTP/1.1", operator, is_json, body=b"[1]"))
    put("http", "bad-form", http_request(f"POST {api}/s/priority HTTP/1.1", operator, body=b"priority=1"))
    put("http", "bad-chunks", f"POST {api}/s/pause HTTP/1.1\r\nHost: localhost\r\n{operator}\r\n"
        "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n")
    put("http", "bad-noise", bytes(range(256)))


if __name__ == "__main__":
    for write in (safetensors_seeds, token_file_seeds, recipe_seeds, wire_seeds, spec_seeds, checkpoint_seeds,
                  unit_result_seeds, model_config_seeds, solve_file_seeds, http_seeds):
        write()
