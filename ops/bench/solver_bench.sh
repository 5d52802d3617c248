#!/usr/bin/env bash
# The exact solve beside what users run today, on the same instances in the same run: plain CBC, PuLP starting
# CBC (ModelOpt's way), HiGHS (highspy or scipy). Prints one table, and its JSON with --json FILE.
#
#   ops/bench/solver_bench.sh [--sizes "36x4 128x8 1000x10"] [--kinds "realistic ties near_ties correlated uneven strong"]
#                             [--instances 10] [--budgets 100] [--rival-budgets 2] [--rival-seconds 5] [--seconds 10] [--seed 1]
#                             [--files "ops/bench/data/smollm2.json"] [--json FILE]
#
# Ours: all budgets (random) of all instances; each rival: the first budgets of the first instance. Files are
# instances of `bitalloc solve`, with the budgets they hold (solve_instance.py makes them of measured scores). Time
# limits are seconds a solve. Needs build/bin/solver_bench, and Python with PuLP (PYTHON, default .venv/bin/python).
set -euo pipefail
cd "$(dirname "$0")/../.."

sizes="36x4 128x8 1000x10" kinds="realistic ties near_ties correlated uneven strong"
instances=10 budgets=100 rival_budgets=2 rival_seconds=5 seconds=10 seed=1 json=""
files="ops/bench/data/smollm2.json"
while [ $# -gt 0 ]; do
  case "$1" in
    --sizes | --kinds | --instances | --budgets | --rival-budgets | --rival-seconds | --seconds | --seed | --files | --json)
      [ $# -ge 2 ] || { echo "$1 needs a value" >&2; exit 2; }
      name="${1#--}"
      printf -v "${name//-/_}" '%s' "$2"
      shift 2
      ;;
    -h | --help)
      sed -n '2,12s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    *)
      echo "unknown option: $1" >&2
      exit 2
      ;;
  esac
done

python="${PYTHON:-.venv/bin/python}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cells=""

# measure CELL WHAT: a row of the table, of the instances that these flags of solver_bench stand for.
measure() {
  local cell="$1" file="$work/instance.json"
  shift
  build/bin/solver_bench "$@" --time-limit "$seconds" --dump "$file" --plain-cbc "$rival_budgets" \
    --cbc-limit "$rival_seconds" >"$work/$cell.ours"
  # The rivals' budgets once more, for their objectives.
  "$python" - "$file" "$rival_budgets" <<'PYTHON'
import json, sys
instance = json.load(open(sys.argv[1]))
instance["budgets"] = instance["budgets"][:int(sys.argv[2])]
json.dump(instance, open(sys.argv[1], "w"))
PYTHON
  build/bin/solver_bench --instance "$file" --time-limit "$seconds" >"$work/$cell.first"
  "$python" ops/bench/rivals/peer_solver.py --instance "$file" --time-limit "$rival_seconds" | tail -n 1 \
    >"$work/$cell.rivals"
  cells+=" $cell"
}

for file in $files; do
  measure "$(basename "$file" .json)" --instance "$file"
done
for size in $sizes; do
  for kind in $kinds; do
    measure "$size.$kind" --sites "${size%x*}" --candidates "${size#*x}" --kind "$kind" --instances "$instances" \
      --budgets "$budgets" --seed "$seed"
  done
done
"$python" ops/bench/solver_table.py "$work" "$cells" "$json"
