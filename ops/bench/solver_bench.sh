#!/usr/bin/env bash
# The exact solve beside what users run today (PuLP starting CBC; HiGHS where highspy is installed), on the
# same instances in the same run. Prints milliseconds, ratios, and how far each rival's objective is above ours.
#
#   ops/bench/solver_bench.sh [--sites 36] [--candidates 4] [--budgets 6] [--seed 1] [--kinds "realistic ties correlated"]
#
# Needs build/bin/solver_bench, and Python with PuLP (PYTHON, default .venv/bin/python).
set -euo pipefail
cd "$(dirname "$0")/../.."

sites=36 candidates=4 budgets=6 seed=1 kinds="realistic ties correlated"
while [ $# -gt 0 ]; do
  case "$1" in
    --sites | --candidates | --budgets | --seed | --kinds)
      [ $# -ge 2 ] || { echo "$1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" '%s' "$2"
      shift 2
      ;;
    -h | --help)
      sed -n '2,8s/^# \{0,1\}//p' "$0"
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
for kind in $kinds; do
  file="$work/$kind.json"
  build/bin/solver_bench --sites "$sites" --candidates "$candidates" --kind "$kind" \
    --instances 1 --budgets "$budgets" --seed "$seed" --dump "$file" >/dev/null
  build/bin/solver_bench --instance "$file" >"$work/$kind.ours"
  "$python" ops/bench/rivals/peer_solver.py --instance "$file" | tail -n 1 >"$work/$kind.rivals"
done
"$python" ops/bench/solver_ratios.py "$work" $kinds
