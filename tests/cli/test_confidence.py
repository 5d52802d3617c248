"""How sure an assignment is, and the frontier's picture: from a checkpoint file and from a service.

The searches are made up (confidence_bench --dump), so no worker is needed. Expected numbers are worked out here with
numpy from the sums in the file; tests/oracle/make_confidence.py has the resamples' and the knees' own oracle.
"""

import csv
import itertools
import json
import math
import subprocess
import xml.etree.ElementTree

import numpy
import pytest

from conftest import BUILD, CommandLine

SVG = "{http://www.w3.org/2000/svg}"


def make_search(file, *arguments):
    subprocess.run([BUILD / "bin/confidence_bench", "--dump", file, *map(str, arguments)], check=True)
    return file


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return make_search(tmp_path_factory.mktemp("search") / "s.json", "--sites", 10, "--sequences", 14)


def same(answer):
    return {key: value for key, value in answer.items() if key != "solve_ms"}


class Sums:
    """The sums of a checkpoint file: of(site, candidate) is an array over sequences."""

    def __init__(self, file):
        found = json.loads(file.read_text())
        self.spec = found["spec"]
        self.columns = len(self.spec["candidates"])
        self.sites = [site["name"] for site in self.spec["sites"]]
        rows = {}
        tokens = {}
        for result in found["results"]:
            _, batch, units = result["unit"].split("/")
            begin, end = map(int, units.split("-"))
            sums = numpy.array(result["sums"]).reshape(end - begin, self.columns, -1)
            tokens[int(batch)] = result["tokens"]
            for row in range(begin, end):
                rows[row, int(batch)] = sums[row - begin]
        self.tokens = numpy.concatenate([tokens[b] for b in sorted(tokens)])
        self.sums = [numpy.concatenate([rows[row, b] for b in sorted(tokens)], axis=1) for row in range(len(self.sites))]

    def of(self, site, candidate):
        return self.sums[self.sites.index(site)][self.spec["candidates"].index(candidate)]

    def mean_and_error(self, x):
        """Of a ratio of sums over sequences, linearised."""
        t, n = self.tokens, len(self.tokens)
        value = x.sum() / t.sum()
        return value, math.sqrt(n / (n - 1) * ((x - value * t) ** 2).sum()) / t.sum()


def test_errors_are_those_of_the_sequences(cli, file):
    sums = Sums(file)
    answer = cli.json("rebudget", "--checkpoint", file, "--bits", 7)
    assert "confidence" not in answer
    whole = sum(sums.of(site["site"], site["candidate"]) for site in answer["sites"])
    value, error = sums.mean_and_error(whole)
    assert answer["objective_kl_nats"] == pytest.approx(value, rel=1e-12)
    assert answer["objective_standard_error"] == pytest.approx(error, rel=1e-12)
    for point in cli.json("frontier", "--checkpoint", file):
        whole = sum(sums.of(*pair) for pair in point["assignment"].items())
        assert point["objective_standard_error"] == pytest.approx(sums.mean_and_error(whole)[1], rel=1e-12)


def test_confidence(cli, file):
    sums = Sums(file)
    asked = ["rebudget", "--checkpoint", file, "--bits", 7, "--confidence"]
    answer = cli.json(*asked)
    sure = answer["confidence"]
    assert sure["sequences"] == 14 and sure["resamples"] == 200 and sure["resamples_unproven"] == 0
    low, high = sure["objective_interval"]
    assert low < answer["objective_kl_nats"] < high
    assert {site["site"]: site["candidate"] for site in sure["undecided"]} == {
        site["site"]: site["candidate"] for site in answer["sites"] if sure["stability"][site["site"]] < 0.95}
    assert sure["undecided"], "a search with some noise"
    for site in sure["undecided"]:
        # Forcing the runner-up costs what the solver says it costs.
        forced = cli.json("rebudget", "--checkpoint", file, "--bits", 7, "--pin", f"{site['site']}={site['runner_up']}")
        cost = forced["objective_kl_nats"] - answer["objective_kl_nats"]
        assert site["difference_kl_nats"] == pytest.approx(cost, rel=1e-9)
        assert site["more_batches"] == math.ceil(site["more_sequences"] / sums.spec["batch_sequences"])
    assert cli.json(*asked)["confidence"] == sure
    other = cli.json(*asked, "--seed", 2, "--resamples", 50, "--threshold", 0.8)["confidence"]
    assert other["resamples"] == 50 and other["objective_interval"] != sure["objective_interval"]
    assert len(other["undecided"]) <= len(sure["undecided"])
    said = cli.run(*asked).stdout
    assert "200 resamples of 14 sequences" in said and "more batches" in said
    assert all(site["runner_up"] in said for site in sure["undecided"])


def test_more_bits_that_score_worse(cli, tmp_path):
    """Scores that do not depend on the bits: about half of all pairs break the rule, the clear ones are listed."""
    odd = make_search(tmp_path / "odd.json", "--sites", 6, "--sequences", 14, "--unordered")
    sums = Sums(odd)
    bits = dict(zip(sums.spec["candidates"], (4.5, 6.25, 6.25, 8)))
    plain = cli.json("rebudget", "--checkpoint", odd, "--bits", 7, "--confidence")
    expected = {}
    for site in sums.sites:
        for more, fewer in itertools.permutations(bits, 2):
            excess, error = sums.mean_and_error(sums.of(site, more) - sums.of(site, fewer))
            if bits[more] > bits[fewer] and excess > 2 * error:
                expected[site, more, fewer] = (excess, error)
    found = {(v["site"], v["candidate"], v["scores_worse_than"]): (v["excess_kl_nats"], v["standard_error"])
             for v in plain["confidence"]["monotonicity_violations"]}
    assert expected and found.keys() == expected.keys()
    for key, numbers in expected.items():
        assert found[key] == pytest.approx(numbers, rel=1e-9)
    assert "smoothed_objective_kl_nats" not in plain
    smooth = cli.json("rebudget", "--checkpoint", odd, "--bits", 7, "--smooth")
    total = sum(s["smoothed_kl_nats_per_token"] for s in smooth["sites"])
    assert smooth["smoothed_objective_kl_nats"] == pytest.approx(total, rel=1e-12)
    assert total != pytest.approx(smooth["objective_kl_nats"], rel=1e-3)
    assert smooth["objective_kl_nats"] >= plain["objective_kl_nats"]  # the best of what was measured is the latter
    assert "smoothed" in cli.run("rebudget", "--checkpoint", odd, "--bits", 7, "--smooth").stdout
    assert "more bits score worse at" in cli.run("rebudget", "--checkpoint", odd, "--bits", 7, "--confidence").stdout


def test_one_sequence_says_so(cli, tmp_path):
    one = make_search(tmp_path / "one.json", "--sites", 3, "--sequences", 1)
    answer = cli.json("rebudget", "--checkpoint", one, "--bits", 7, "--confidence")
    assert answer["objective_standard_error"] is None
    assert answer["confidence"]["sequences"] == 1 and "stability" not in answer["confidence"]
    assert "one sequence" in cli.run("rebudget", "--checkpoint", one, "--bits", 7, "--confidence").stdout
    assert cli.json("frontier", "--checkpoint", one)[0]["objective_standard_error"] is None
    cli.run("frontier", "--checkpoint", one, "--plot", tmp_path / "one.svg")
    assert "standard errors" not in (tmp_path / "one.svg").read_text()


def test_frontier_as_picture_and_table(cli, file, tmp_path):
    picture, table = tmp_path / "f.svg", tmp_path / "f.csv"
    points = cli.json("frontier", "--checkpoint", file, "--plot", picture, "--csv", table)
    rows = list(csv.DictReader(table.open()))
    assert [float(row["effective_bits"]) for row in rows] == [p["effective_bits"] for p in points]
    assert [float(row["objective_standard_error"]) for row in rows] == [p["objective_standard_error"] for p in points]
    assert [row["knee"] == "true" for row in rows] == [p["knee"] for p in points]
    root = xml.etree.ElementTree.parse(picture).getroot()
    assert root.tag == f"{SVG}svg"
    (line,) = [p.get("d") for p in root.iter(f"{SVG}path") if p.get("class") == "line"]
    heights = [float(step) for step in line.replace("H", "V").split("V")[2::2]]
    assert len(heights) == len(points) and heights == sorted(heights)
    drops = numpy.diff(heights) / numpy.diff([-math.log(p["objective_kl_nats"]) for p in points])
    assert drops == pytest.approx(drops.mean(), rel=0.02), "a logarithmic axis"
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert "budget (effective bits an element)" in words and "best summed KL (nats a token)" in words
    knees = [p for p in points if p["knee"]]
    assert knees and len([w for w in words if w.startswith("knee: ")]) == len(knees)
    assert [p.get("class") for p in root.iter(f"{SVG}path")].count("band") == 1
    assert "knee" in cli.run("frontier", "--checkpoint", file).stdout


def test_refusals(cli, file, tmp_path):
    ask = ["rebudget", "--checkpoint", file, "--bits", 7]
    for bad in [["--confidence", "--resamples", 0], ["--confidence", "--resamples", 10001], ["--seed", 1],
                ["--confidence", "--threshold", 2], ["--confidence", "--threshold", 0.5], ["--confidence", "--seed", -1]]:
        assert cli.json(*ask, *bad, code=2)["error"]["message"], bad
    nowhere = tmp_path / "none/f.svg"
    assert "none" in cli.json("frontier", "--checkpoint", file, "--plot", nowhere, code=2)["error"]["message"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A client that knows only the endpoint of a service."""
    folder = tmp_path_factory.mktemp("service")
    host = CommandLine(folder / "home")
    serving = host.start("serve", "--device", "cpu", "--json")
    client = CommandLine(folder / "client")
    client.environment["BITALLOC_SERVER"] = json.loads(serving.stdout.readline())["client_endpoint"]
    return client


def test_a_service_answers_the_same(cli, file, tmp_path, served):
    """Whole, under way, and too long for a message. One test: what is started ends with its test."""
    served.json("checkpoint", "import", file)
    ask = ["--bits", 7, "--confidence", "--smooth", "--seed", 4, "--pin", "layers.3=bf16"]
    here = same(cli.json("rebudget", "--checkpoint", file, *ask))
    assert same(served.json("rebudget", "made-up", *ask)) == here
    assert same(served.json("assignment", "made-up", "--bits", 7, "--confidence")) == same(
        cli.json("assignment", "--checkpoint", file, "--bits", 7, "--confidence"))
    assert served.json("frontier", "made-up") == cli.json("frontier", "--checkpoint", file)

    # Ten sites in units of four, the last ones first: two units are the sites 4 to 9.
    begun = make_search(tmp_path / "begun.json", "--id", "begun", "--sites", 10, "--sequences", 14, "--units", 2)
    served.json("checkpoint", "import", begun)
    assert served.json("frontier", "begun", code=3)["error"]["code"] == "unavailable"
    points = served.json("frontier", "begun", "--partial")
    assert all(p["scored_share"] == 0.6 and len(p["assignment"]) == 6 for p in points)
    assert points == cli.json("frontier", "--checkpoint", begun, "--partial")
    assert "6 of 10 sites" in served.run("frontier", "begun", "--partial").stdout
    assert served.json("rebudget", "begun", "--bits", 7, "--confidence", code=3)["error"]["code"] == "unavailable"

    large = make_search(tmp_path / "large.json", "--id", "large", "--sites", 64, "--candidates", 8, "--sequences", 4)
    served.json("checkpoint", "import", large)
    points = served.json("frontier", "large")
    assert len(json.dumps(points)) > 1 << 20, "more than a message may have"
    assert points == cli.json("frontier", "--checkpoint", large)
