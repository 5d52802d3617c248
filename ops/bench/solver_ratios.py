"""Table of solver_bench.sh: KIND.ours and KIND.rivals of a folder, budget by budget, as ratios.

solver_ratios.py FOLDER KIND...
"""

import json
import pathlib
import statistics
import sys


def load(path):
    return json.loads(path.read_text())


def main(folder, kinds):
    print(f"{'kind':<12}{'solver':<12}{'p50 ms':>10}{'max ms':>10}{'× ours (p50)':>14}"
          f"{'× ours (max)':>14}{'worst objective / ours − 1':>28}")
    for kind in kinds:
        ours = load(pathlib.Path(folder) / f"{kind}.ours")["rows"]
        rivals = load(pathlib.Path(folder) / f"{kind}.rivals")["rows"]
        our_ms = [row["ms"] for row in ours]
        our_p50, our_max = statistics.median(our_ms), max(our_ms)
        proven = f"{sum(row['proven'] for row in ours)} of {len(ours)} proven"
        print(f"{kind:<12}{'bitalloc':<12}{our_p50:>10.3f}{our_max:>10.3f}{1:>14}{1:>14}{proven:>28}")
        for name in sorted(set(rivals[0]) - {"budget"}):
            ms = [row[name]["ms"] for row in rivals]
            excess = max(row[name]["objective"] / mine["objective"] - 1
                         for row, mine in zip(rivals, ours))
            p50, worst = statistics.median(ms), max(ms)
            print(f"{kind:<12}{name:<12}{p50:>10.3f}{worst:>10.3f}{p50 / our_p50:>14.1f}"
                  f"{worst / our_max:>14.1f}{excess:>28.2e}")


main(sys.argv[1], sys.argv[2:])
