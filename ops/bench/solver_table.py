"""Table of solver_bench.sh, as Markdown: CELL.ours, .first and .rivals of a folder.

solver_table.py FOLDER "CELLS" [JSON]
"""

import json
import pathlib
import sys


def load(folder, cell):
    base = pathlib.Path(folder)
    ours, first, rivals = (json.loads((base / f"{cell}.{part}").read_text()) for part in ("ours", "first", "rivals"))
    row = {"size": f"{ours['sites']}x{ours['candidates']}", "kind": cell.rpartition(".")[2], "solves": ours["solves"], "proven": ours["proven"], "gap": ours["gap"],
           **{f"{q}_ms": ours["solve_ms"][q] for q in ("p50", "p99", "max")}, "rivals": {}}
    plain = ours["plain_cbc"]
    row["rivals"]["plain CBC"] = {"max_ms": plain["ms"]["max"], "excess": plain["excess"]}
    for name in sorted(set(rivals["rows"][0]) - {"budget"}):
        pairs = [(theirs[name], mine) for theirs, mine in zip(rivals["rows"], first["rows"])]
        excess = max(1.0 if theirs["objective"] is None else theirs["objective"] / mine["objective"] - 1
                     for theirs, mine in pairs)
        row["rivals"][name] = {"max_ms": max(theirs["ms"] for theirs, _ in pairs), "excess": excess}
    return row


def milliseconds(value):
    return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"


def proven_text(row):
    if row["proven"] == row["solves"]:
        return f"all {row['solves']:,}"
    return f"{row['proven']:,} of {row['solves']:,}, gap up to {row['gap']:.1e}"


def rival_text(rival):
    if rival["excess"] == 1.0:
        return f"{milliseconds(rival['max_ms'])}, no answer"
    worse = f", {100 * rival['excess']:.2g} % worse" if rival["excess"] > 1e-7 else ""
    return f"{milliseconds(rival['max_ms'])}{worse}"


def main(folder, cells, out=""):
    rows = [load(folder, cell) for cell in cells.split()]
    names = list(rows[0]["rivals"])
    print("| sites × candidates | scores | p50 ms | p99 | max | proven | " +
          " | ".join(f"{name}: ms" for name in names) + " |")
    print("| --- " * (6 + len(names)) + "|")
    for row in rows:
        print(f"| {row['size'].replace('x', ' × ')} | {row['kind'].replace('_', ' ')} | " +
              " | ".join(milliseconds(row[f"{q}_ms"]) for q in ("p50", "p99", "max")) +
              f" | {proven_text(row)} | " +
              " | ".join(rival_text(row["rivals"][name]) for name in names) + " |")
    if out:
        pathlib.Path(out).write_text(json.dumps(rows, indent=1) + "\n")


main(*sys.argv[1:])
