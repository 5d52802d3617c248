#!/usr/bin/env python3
# Provenance: written for this project as the rival of ops/bench/solver_bench.sh; how ModelOpt's AutoQuantize calls PuLP's CBC.
"""How a user solves the allocation today: PuLP starting a CBC process for every budget (ModelOpt's way), and HiGHS as a second rival.

  peer_solver.py --sites 128 --candidates 8 --budgets 20 --seed 1 [--kind realistic|ties|correlated]
  peer_solver.py --instance FILE.json        # {"bits":[[...]],"width":[...],"score":[[...]],"budgets":[...]}
  … [--first N] [--time-limit 60]          # only the first N budgets; seconds each
Prints one JSON document on the last line (HiGHS prints a banner first): per budget the objective and milliseconds of each rival. Needs pulp; HiGHS through highspy, else through scipy, when present.
Instances are printed with --dump so that another program can solve exactly the same ones.
"""
import argparse, json, math, random, time
import pulp


def instance(sites, candidates, seed, kind, budgets):
    rng = random.Random(seed)
    bits = [4.5 + 11.5 * j / (candidates - 1) for j in range(candidates)]
    width, score = [], []
    for _ in range(sites):
        width.append(rng.choice([256, 1024]) if kind == "correlated" else 1024)
        scale = math.exp(rng.gauss(0, 1.5)) * 1e-4
        if kind == "ties":
            scale = 1e-4
        noise = (lambda: 1.0) if kind == "ties" else (lambda: 0.7 + 0.6 * rng.random())
        if kind == "correlated":
            score.append([scale * (16.0 - b + 1e-3 * rng.random()) for b in bits])
        else:
            score.append([scale * math.exp(-0.6 * (b - 4.5)) * noise() for b in bits])
    low, high = bits[0], bits[-1]
    return {"bits": [bits] * sites, "width": width, "score": score,
            "budgets": [low + (high - low) * (i + 1) / (budgets + 1) for i in range(budgets)]}


def with_pulp(p, budget, limit):
    problem = pulp.LpProblem("allocation", pulp.LpMinimize)
    x = [[pulp.LpVariable(f"x_{i}_{j}", cat="Binary") for j in range(len(row))] for i, row in enumerate(p["score"])]
    problem += pulp.lpSum(s * v for row, vars_ in zip(p["score"], x) for s, v in zip(row, vars_))
    for vars_ in x:
        problem += pulp.lpSum(vars_) == 1
    total = sum(p["width"])
    problem += pulp.lpSum(w * b * v for w, row, vars_ in zip(p["width"], p["bits"], x) for b, v in zip(row, vars_)) <= total * budget
    status = problem.solve(pulp.PULP_CBC_CMD(msg=False, timeLimit=limit))
    chosen = [max(range(len(vars_)), key=lambda j: vars_[j].value() or 0) for vars_ in x]
    return pulp.LpStatus[status], sum(row[j] for row, j in zip(p["score"], chosen))


def with_highspy(p, budget, limit):
    import highspy
    h = highspy.Highs(); h.setOptionValue("output_flag", False)
    h.setOptionValue("mip_rel_gap", 0.0); h.setOptionValue("time_limit", float(limit))
    x = [[h.addBinary(obj=s) for s in row] for row in p["score"]]
    for vars_ in x:
        h.addConstr(sum(vars_) == 1)
    total = sum(p["width"])
    h.addConstr(sum(w * b * v for w, row, vars_ in zip(p["width"], p["bits"], x) for b, v in zip(row, vars_)) <= total * budget)
    h.run()
    return str(h.getModelStatus()), h.getObjectiveValue()


def with_scipy(p, budget, limit):
    import numpy
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array
    sites = [len(row) for row in p["score"]]
    columns = sum(sites)
    one = csr_array((numpy.ones(columns), (numpy.repeat(numpy.arange(len(sites)), sites), numpy.arange(columns))))
    weight = numpy.concatenate([w * numpy.array(row) for w, row in zip(p["width"], p["bits"])])[None]
    answer = milp(numpy.concatenate(p["score"]), integrality=numpy.ones(columns), bounds=Bounds(0, 1),
                  constraints=[LinearConstraint(one, 1, 1), LinearConstraint(weight, -numpy.inf, sum(p["width"]) * budget)],
                  options={"mip_rel_gap": 0, "time_limit": limit})
    return str(answer.status), answer.fun


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--sites", type=int, default=36); a.add_argument("--candidates", type=int, default=4)
    a.add_argument("--budgets", type=int, default=10); a.add_argument("--seed", type=int, default=1)
    a.add_argument("--kind", default="realistic", choices=["realistic", "ties", "correlated"])
    a.add_argument("--first", type=int); a.add_argument("--time-limit", type=float, default=60)
    a.add_argument("--instance"); a.add_argument("--dump")
    a = a.parse_args()
    p = json.load(open(a.instance)) if a.instance else instance(a.sites, a.candidates, a.seed, a.kind, a.budgets)
    if a.dump:
        json.dump(p, open(a.dump, "w"))
    rivals = {"pulp_cbc": with_pulp}
    try:
        import highspy  # noqa: F401
        rivals["highs"] = with_highspy
    except ImportError:
        try:
            import scipy.optimize  # noqa: F401
            rivals["highs"] = with_scipy
        except ImportError:
            pass
    rows = []
    for budget in p["budgets"][:a.first]:
        row = {"budget": budget}
        for name, solve in rivals.items():
            start = time.perf_counter(); status, objective = solve(p, budget, a.time_limit)
            row[name] = {"status": status, "objective": objective, "ms": round(1e3 * (time.perf_counter() - start), 2)}
        rows.append(row)
    print(json.dumps({"sites": len(p["score"]), "candidates": len(p["score"][0]), "rows": rows}))


main()
