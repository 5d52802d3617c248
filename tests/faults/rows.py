"""The table of faults: every test writes its rows as JSON; this prints them as Markdown."""

import json
import os
import re
import statistics
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("BITALLOC_BINARY_DIR", SOURCE / "build")) / "faults"
COLUMNS = ["fault", "times", "lost", "doubled", "time to recover", "end"]


def write(row, lost, doubled, run_again, end):
    folder = FOLDER / "rows"
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", row.fault.lower()).strip("-")
    facts = {"fault": row.fault, "times": row.times, "lost": lost, "doubled": doubled,
             "run_again": run_again, "recovery_s": row.recovery_s, "end": end}
    (folder / f"{name}.json").write_text(json.dumps(facts))


def read():
    found = [json.loads(file.read_text()) for file in (FOLDER / "rows").glob("*.json")]
    return sorted(found, key=lambda row: row["fault"])


def recovery_text(seconds):
    if not seconds:
        return "–"
    middle, longest = statistics.median(seconds), max(seconds)
    return f"{middle:.2f} s" if len(seconds) == 1 else f"{middle:.2f} s (at most {longest:.2f} s)"


def markdown(found):
    lines = ["| " + " | ".join(COLUMNS) + " |", "| --- |" + " ---: |" * 3 + " --- | --- |"]
    for row in found:
        cells = [row["fault"], row["times"], row["lost"], row["doubled"],
                 recovery_text(row["recovery_s"]), row["end"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def publish():
    """Writes faults.json and faults.md into the build folder. The Markdown."""
    found = read()
    text = markdown(found)
    (FOLDER / "faults.json").write_text(json.dumps(found, indent=1) + "\n")
    (FOLDER / "faults.md").write_text(text + "\n")
    return text


if __name__ == "__main__":
    print(publish())
    sys.exit(0 if read() else "no test has written a row yet: run `ctest -L faults` first")
