#!/usr/bin/env python3
"""How sure an assignment is, computed without any code of ours: the oracle of solver/confidence_test.cc.

  make_confidence.py [FILE]      default: confidence.json beside this script; needs numpy, scipy, kneed

Every resample is solved by trying all assignments. Resample indices: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014; constants of the
reference code at prng.di.unimi.it/splitmix64.c), each number modulo the count of sequences with tokens. Isotonic fits are
scipy.optimize.isotonic_regression, normal quantiles scipy.stats.norm, percentiles numpy.percentile, standard errors the
delete-nothing linearisation of a ratio (Cochran 1977, 6.13) written out in numpy. Made with numpy 2.4.6, scipy 1.17.1, kneed 0.9.0.
"""
import itertools
import json
import math
import pathlib
import sys

import kneed
import numpy
from scipy.optimize import isotonic_regression
from scipy.stats import norm

MASK = (1 << 64) - 1


def splitmix64(state):
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        yield z ^ (z >> 31)


def ratio(x, t):
    """Value and standard error of sum(x) / sum(t)."""
    value = x.sum() / t.sum()
    n = len(x)
    return value, math.sqrt(n / (n - 1) * ((x - value * t) ** 2).sum()) / t.sum()


def fitted(case, scores, weights):
    """Falling isotonic fits by bits; the bits of a smoothed case are all different."""
    out = []
    for bits, score, weight in zip(case["bits"], scores, weights):
        order = numpy.argsort(bits)
        fit = isotonic_regression(numpy.array(score)[order], weights=numpy.array(weight)[order], increasing=False).x
        back = numpy.empty(len(bits))
        back[order] = fit
        out.append(back)
    return out


def fit_weights(case):
    out = []
    for sums in case["sums"]:
        errors = numpy.array([ratio(numpy.array(s), numpy.array(case["tokens"]))[1] for s in sums])
        out.append(1 / numpy.maximum(errors / errors.max(), 1e-3) ** 2)
    return out


class Enumeration:
    def __init__(self, case):
        widths = numpy.array(case["width"])
        everything = itertools.product(*[range(len(b)) for b in case["bits"]])
        self.choices = numpy.array([c for c in everything if sum(
            w * b[j] for w, b, j in zip(widths, case["bits"], c)) <= case["budget"] * widths.sum() * (1 + 1e-12)])

    def best(self, scores, site=None, candidate=None):
        total = sum(numpy.array(scores[i])[self.choices[:, i]] for i in range(self.choices.shape[1]))
        if site is not None:
            total = numpy.where(self.choices[:, site] == candidate, total, numpy.inf)
        return self.choices[total.argmin()]


def expected(case):
    tokens = numpy.array(case["tokens"], dtype=float)
    sums = [numpy.array(s) for s in case["sums"]]  # [site][candidate, sequence]
    drawn_from = numpy.flatnonzero(tokens > 0)
    n = len(drawn_from)
    everything = Enumeration(case)
    weights = fit_weights(case)

    def seen(scores):
        return fitted(case, scores, weights) if case["smooth"] else scores

    total = seen([s.sum(axis=1) for s in sums])
    choice = everything.best(total)

    def of(assignment):
        return sum(sums[i][j] for i, j in enumerate(assignment))

    numbers = splitmix64(case["seed"])
    taken = [[0] * len(b) for b in case["bits"]]
    objectives, bias = [], []
    for _ in range(case["resamples"]):
        q = drawn_from[[next(numbers) % n for _ in range(n)]]
        again = everything.best(seen([s[:, q].sum(axis=1) for s in sums]))
        for i, j in enumerate(again):
            taken[i][j] += 1
        objectives.append(of(choice)[q].sum() / tokens[q].sum())
        bias.append(of(again).sum() / tokens.sum() - of(again)[q].sum() / tokens[q].sum())

    undecided = []
    for i, counts in enumerate(taken):
        if counts[choice[i]] / case["resamples"] >= case["threshold"]:
            continue
        others = [-1 if j == choice[i] else c for j, c in enumerate(counts)]
        runner_up = int(numpy.argmax(others))
        d, e = ratio(of(everything.best(total, i, runner_up)) - of(choice), tokens)
        more = n * (norm.ppf(case["threshold"]) * e / d) ** 2 - n if d > 0 else math.inf
        undecided.append({"site": i, "runner_up": runner_up, "runner_up_share": counts[runner_up] / case["resamples"],
                          "difference": d, "standard_error": e,
                          "more_sequences": max(1, math.ceil(more)) if more <= 1e9 else None})

    violations = []
    for i, bits in enumerate(case["bits"]):
        for a, b in itertools.permutations(range(len(bits)), 2):
            d, e = ratio(sums[i][a] - sums[i][b], tokens)
            if bits[a] > bits[b] and d > 0 and d > 2 * e:
                violations.append({"site": i, "more_bits": a, "fewer_bits": b, "excess": d, "standard_error": e})

    value, error = ratio(of(choice), tokens)
    return {"scores": [list(s) for s in total], "choice": choice.tolist(),
            "stability": [c[j] / case["resamples"] for c, j in zip(taken, choice)],
            "objective": value, "standard_error": error, "interval": list(numpy.percentile(objectives, [2.5, 97.5])),
            "selection_bias": numpy.mean(bias), "undecided": undecided, "violations": violations}


def make_case(name, seed, sites, bits, sequences, smooth, noise, swapped=()):
    """Sites of `swapped` score worse with the third candidate than with the second."""
    random = numpy.random.default_rng(seed)
    tokens = random.integers(20, 60, sequences).astype(float)
    tokens[1] = 0  # nothing scored there: never drawn
    of_sequence = random.lognormal(0, 0.5, sequences)
    sums = []
    for site in range(sites):
        scale = random.lognormal(-6, 0.8)
        mean = [scale * 2 ** (-0.7 * b) * random.lognormal(0, 0.4) for b in bits]
        if site in swapped:
            mean[2] = 1.7 * mean[1]
        sums.append([(tokens * m * of_sequence * random.lognormal(0, noise, sequences)).tolist() for m in mean])
    case = {"name": name, "bits": [list(bits)] * sites, "width": [float(64 * (1 + i % 2)) for i in range(sites)], "tokens": tokens.tolist(),
            "sums": sums, "budget": float(numpy.mean(bits)), "smooth": smooth, "resamples": 200, "seed": seed, "threshold": 0.95}
    case["expected"] = expected(case)
    return case


def knee_curve():
    """ln(objective) over bits of a smooth convex curve, and where Kneedle finds its one knee."""
    bits = numpy.linspace(2, 16, 57)
    log = numpy.log(1e-4 + numpy.exp(-0.9 * (bits - 2)))
    found = kneed.KneeLocator(bits, log, S=1.0, curve="convex", direction="decreasing")
    return {"bits": bits.tolist(), "objective": numpy.exp(log).tolist(), "knee": int(numpy.flatnonzero(bits == found.knee)[0])}


def main():
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).with_name("confidence.json")
    cases = [make_case("plain", 3, 6, [4.5, 6.25, 8.0], 12, False, 0.3),
             make_case("noisy", 11, 5, [2.25, 3.0, 4.5, 8.0], 7, False, 0.9),
             make_case("smooth", 5, 5, [4.5, 5.0, 6.25, 8.0], 9, True, 0.3, swapped=(1, 3))]
    target.write_text(json.dumps({"cases": cases, "knee": knee_curve()}, indent=1) + "\n")
    for case in cases:
        e = case["expected"]
        print(case["name"], "stability", e["stability"], "undecided", [(u["site"], u["more_sequences"]) for u in e["undecided"]],
              "violations", len(e["violations"]))


if __name__ == "__main__":
    main()
