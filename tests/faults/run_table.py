"""Makes every fault and prints the table of what the service survives, as Markdown.

    .venv/bin/python tests/faults/run_table.py           about five minutes
    .venv/bin/python tests/faults/run_table.py --long    ten times as often

The table is in build/faults/faults.md, and with every number in build/faults/faults.json.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import rows


def main():
    shutil.rmtree(rows.FOLDER / "rows", ignore_errors=True)
    environment = {**os.environ, "BITALLOC_FAULTS_LONG": "1" if "--long" in sys.argv else "0"}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider",
                           Path(__file__).parent], cwd=rows.SOURCE, env=environment, stdout=sys.stderr)
    print(rows.publish())
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
