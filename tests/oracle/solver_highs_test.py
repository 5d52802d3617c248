"""`bitalloc solve` against HiGHS (scipy.optimize.milp): bigger programs with several rows and limits.

Rows have whole coefficients, so that HiGHS's tolerance of 1e-6 cannot let a sum over a bound.
"""

import json
import os
import pathlib
import random
import subprocess

import numpy
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

BITALLOC = pathlib.Path(os.environ.get("BITALLOC_BINARY_DIR", "build")) / "bin/bitalloc"


def make_instance(seed):
    rng = random.Random(seed)
    sites, candidates = rng.randint(6, 48), rng.randint(2, 6)
    def table(entry):
        return [[entry() for _ in range(candidates)] for _ in range(sites)]
    bits = table(lambda: rng.randint(2, 64) / 4)
    width = [64 * rng.randint(1, 8) for _ in range(sites)]
    score = [[10 ** rng.gauss(0, 0.5) * 2 ** (-0.8 * b) for b in row] for row in bits]
    base = [rng.randrange(candidates) for _ in range(sites)]
    total = sum(w * row[j] for w, row, j in zip(width, bits, base))
    instance = {"bits": bits, "width": width, "score": score,
                "budgets": [rng.choice([1.0, 1.03, 1.1]) * total / sum(width)], "rows": []}
    for _ in range(rng.randint(1, 3)):
        row = {"coefficient": table(lambda: rng.randint(0, 40))}
        there = sum(c[j] for c, j in zip(row["coefficient"], base))
        if rng.random() < 0.7:
            row["upper"] = there + rng.randint(0, 10)
        else:
            row["lower"] = there - rng.randint(0, 10)
        instance["rows"].append(row)
    instance["exclude"] = [{"site": rng.randrange(sites), "candidate": rng.randrange(candidates)}
                           for _ in range(3)]
    if rng.random() < 0.5:
        instance["groups"] = [{"sites": rng.sample(range(sites), 3)}]
    if rng.random() < 0.4:
        instance["max_changes"] = rng.randint(2, sites)
        instance["deployed"] = base
    if rng.random() < 0.3:
        names = "abcdef"[:candidates]
        instance["max_distinct"] = rng.randint(2, 4)
        instance["labels"] = [list(names) for _ in range(sites)]
    return instance


class Program:
    """The plain program: x[site][candidate], and y[label] where labels are limited."""

    def __init__(self, instance):
        self.instance = instance
        self.sites, self.candidates = len(instance["bits"]), len(instance["bits"][0])
        self.labels = sorted({name for row in instance.get("labels", []) for name in row})
        self.columns = self.sites * self.candidates + len(self.labels)
        self.rows, self.lower, self.upper = [], [], []
        self.upper_bound = numpy.ones(self.columns)

    def x(self, site, candidate):
        return site * self.candidates + candidate

    def add(self, entries, lower=-numpy.inf, upper=numpy.inf):
        self.rows.append(entries)
        self.lower.append(lower)
        self.upper.append(upper)

    def add_table(self, table, lower=-numpy.inf, upper=numpy.inf):
        self.add([(self.x(i, j), c) for i, row in enumerate(table) for j, c in enumerate(row)],
                 lower, upper)

    def build(self):
        p = self.instance
        for i in range(self.sites):
            self.add([(self.x(i, j), 1) for j in range(self.candidates)], 1, 1)
        # Quarters of a bit over multiples of 64 elements: whole numbers.
        self.add_table([[w * b / 16 for b in row] for w, row in zip(p["width"], p["bits"])],
                       upper=numpy.floor(p["budgets"][0] * sum(p["width"]) / 16 * (1 + 1e-10)))
        for row in p["rows"]:
            self.add_table(row["coefficient"], row.get("lower", -numpy.inf),
                           row.get("upper", numpy.inf))
        for entry in p["exclude"]:
            self.upper_bound[self.x(entry["site"], entry["candidate"])] = 0
        for group in p.get("groups", []):
            for site in group["sites"][1:]:
                for j in range(self.candidates):
                    self.add([(self.x(group["sites"][0], j), 1), (self.x(site, j), -1)], 0, 0)
        if "max_changes" in p:
            self.add_table([[int(j != deployed) for j in range(self.candidates)]
                            for deployed in p["deployed"]], upper=p["max_changes"])
        if "max_distinct" in p:
            first = self.sites * self.candidates
            self.add([(first + k, 1) for k in range(len(self.labels))], upper=p["max_distinct"])
            for i, row in enumerate(p["labels"]):
                for j, name in enumerate(row):
                    self.add([(self.x(i, j), 1), (first + self.labels.index(name), -1)], upper=0)

    def solve(self):
        self.build()
        entries = [(r, c, v) for r, row in enumerate(self.rows) for c, v in row]
        r, c, v = zip(*entries)
        matrix = coo_array((v, (r, c)), shape=(len(self.rows), self.columns)).tocsr()
        cost = numpy.zeros(self.columns)
        cost[:self.sites * self.candidates] = numpy.ravel(self.instance["score"])
        return milp(cost, integrality=numpy.ones(self.columns),
                    bounds=Bounds(0, self.upper_bound),
                    constraints=LinearConstraint(matrix, self.lower, self.upper),
                    options={"mip_rel_gap": 0, "time_limit": 20})


def run_bitalloc(instance, path):
    path.write_text(json.dumps(instance))
    return subprocess.run([BITALLOC, "solve", path], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_objectives_of_highs(start, tmp_path):
    decided = infeasible = 0
    for seed in range(start, start + 50):
        instance = make_instance(seed)
        expected = Program(instance).solve()
        answer = run_bitalloc(instance, tmp_path / "instance.json")
        if expected.status == 2:  # infeasible
            assert answer.returncode == 5, (seed, answer.stdout, answer.stderr)
            infeasible += 1
            continue
        assert answer.returncode == 0, (seed, answer.stderr)
        (solution,) = json.loads(answer.stdout)
        assert solution["cbc"] != "disagreed", seed
        if expected.status != 0:
            continue  # HiGHS ran out of its time
        if not solution["proven_optimal"]:
            assert solution["gap"] > 0, seed
            assert solution["lower_bound"] <= expected.fun * (1 + 1e-6), seed
            assert solution["objective"] >= expected.fun * (1 - 1e-6), seed
            continue
        decided += 1
        assert solution["objective"] == pytest.approx(expected.fun, rel=1e-6, abs=1e-9), seed
    assert decided >= 25, (decided, infeasible)
