"""The scores of a finished search as an instance of `bitalloc solve` and of solver_bench, budgets included.

    .venv/bin/python ops/bench/solve_instance.py CHECKPOINT > ops/bench/data/NAME.json
"""

import json
import random
import subprocess
import sys

STEP = 0.025  # bits from one budget to the next


def bits_of_formats():
    said = subprocess.run(["build/bin/bitalloc", "formats", "--json"], check=True, capture_output=True, text=True)
    return {row["format"]: row["bits_per_element"] for row in json.loads(said.stdout)}


def scores(search, site):
    """Nats of each candidate at a site, summed over tokens."""
    columns = len(search["spec"]["candidates"])
    totals = [0.0] * columns
    for result in search["results"]:
        begin, end = map(int, result["unit"].split("/")[2].split("-"))
        if not begin <= site < end:
            continue
        sequences = len(result["tokens"])
        for column in range(columns):
            start = ((site - begin) * columns + column) * sequences
            totals[column] += sum(result["sums"][start:start + sequences])
    return totals


def instance(search):
    spec, bits = search["spec"], bits_of_formats()
    sides = [candidate.split("/") for candidate in spec["candidates"]]
    rows = []
    for site in spec["sites"]:
        widths = site["k_width"], site["v_width"]
        rows.append([(widths[0] * bits[k] + widths[1] * bits[v]) / sum(widths) for k, v in sides])
    width = [site["k_width"] + site["v_width"] for site in spec["sites"]]
    lowest, highest = (sum(w * pick(row) for w, row in zip(width, rows)) / sum(width) for pick in (min, max))
    budgets = [round(lowest + STEP * k, 6) for k in range(1 + round((highest - lowest) / STEP))]
    random.Random(1).shuffle(budgets)  # rivals get the first ones
    return {"bits": rows, "width": width, "score": [scores(search, i) for i in range(len(width))],
            "budgets": budgets}


def main(checkpoint):
    with open(checkpoint) as file:
        found = instance(json.load(file))
    print("{" + ",\n ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()) + "}")


main(*sys.argv[1:])
