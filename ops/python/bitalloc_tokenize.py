#!/usr/bin/env python3
"""Text or JSONL to token ids and masks, with a model's own tokenizer.json.

    bitalloc_tokenize.py --model DIR --input FILE --output tokens.safetensors
                         [--sequences N] [--length T]

A `.jsonl` (or `.ndjson`) file has one document a line, {"text": "…"}: one sequence each, cut to
--length tokens. Any other file is one text, cut into consecutive sequences of --length tokens.
Shorter sequences are padded on the right with id 0 and mask 0. Documents without tokens are
skipped. The output has `input_ids` and `attention_mask`, int64 [sequences, tokens], and is replaced
as a whole.

Exit codes: 0 done, 2 the input is not usable (why is on stderr), 3 a Python package is missing.
"""
import argparse
import json
import os
import sys

BAD_INPUT = 2
NO_PACKAGE = 3


def fail(message, code=BAD_INPUT):
    print(message, file=sys.stderr)
    sys.exit(code)


def read_text(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    except UnicodeDecodeError as error:
        fail(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}")


def json_documents(path):
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            fail(f"{path}:{number}: not JSON: {error.msg}")
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            fail(f'{path}:{number}: field "text" is missing or is not a string')
        yield row["text"]


def sequences_of(path, tokenizer, length, limit):
    """Lists of token ids, none empty, none longer than `length`, at most `limit` (0: all)."""
    found = []
    if path.endswith((".jsonl", ".ndjson")):
        for text in json_documents(path):
            ids = tokenizer.encode(text).ids[:length]
            if ids:
                found.append(ids)
            if limit and len(found) == limit:
                break
        return found
    ids = tokenizer.encode(read_text(path)).ids
    starts = range(0, len(ids), length)
    found = [ids[start : start + length] for start in starts]
    # A remainder of one token predicts nothing.
    found = [part for part in found if len(part) > 1 or len(found) == 1]
    return found[:limit] if limit else found


def load_tokenizer(directory, tokenizer_class):
    path = os.path.join(directory, "tokenizer.json")
    if not os.path.isfile(path):
        fail(f"{directory} has no tokenizer.json: give tokens as a .safetensors file instead")
    try:
        tokenizer = tokenizer_class.from_file(path)
    except Exception as error:  # the package raises plain Exception
        fail(f"{path} is not a tokenizer: {error}")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def write(path, found, numpy, save_file, write_error):
    width = max(len(ids) for ids in found)
    input_ids = numpy.zeros((len(found), width), dtype=numpy.int64)
    attention_mask = numpy.zeros_like(input_ids)
    for row, ids in enumerate(found):
        input_ids[row, : len(ids)] = ids
        attention_mask[row, : len(ids)] = 1
    temporary = f"{path}.tmp-{os.getpid()}"
    try:
        save_file({"input_ids": input_ids, "attention_mask": attention_mask}, temporary)
        os.replace(temporary, path)
    except (OSError, write_error) as error:
        fail(f"cannot write {path}: {error}")
    return input_ids.shape


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--sequences", type=int, default=0)
    parser.add_argument("--length", type=int, default=512)
    arguments = parser.parse_args()
    try:
        import numpy
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
        from tokenizers import Tokenizer
    except ImportError as error:
        fail(str(error), NO_PACKAGE)
    tokenizer = load_tokenizer(arguments.model, Tokenizer)
    found = sequences_of(arguments.input, tokenizer, arguments.length, arguments.sequences)
    if not found:
        fail(f"{arguments.input} holds no text: there is nothing to score")
    sequences, length = write(arguments.output, found, numpy, save_file, SafetensorError)
    tokens = sum(len(ids) for ids in found)
    print(json.dumps({"sequences": sequences, "length": length, "tokens": tokens}))


if __name__ == "__main__":
    main()
