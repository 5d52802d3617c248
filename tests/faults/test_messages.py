"""Messages that no honest worker sends, and honest ones that arrive cut, twice or late."""

import json
import math

import pytest

from harness import Trial, bare, oracle, repeat, trial
from mangler import VERSION, Mangler, RawWorker, packed

TYPE, HEADER, BLOB = 2, 4, 5  # places of the frames


def unchanged(frames):
    return [frames]


@pytest.fixture
def behind(bare, oracle):
    """behind(change, change_back): a trial whose workers reach the coordinator through a Mangler."""
    manglers = []

    def start(change=unchanged, change_back=unchanged):
        front = f"ipc://{bare.folder}/mangled.sock"
        manglers.append(Mangler(front, bare.endpoint("worker"), change, change_back))
        manglers[0].start()
        bare.start_all(worker_endpoint=front)
        return Trial(bare, oracle)
    yield start
    for mangler in manglers:
        mangler.close()


def once_a_unit(change, every, kind=b"result"):
    """A rule for the Mangler: `change` for the first message of this kind of every so-manieth unit.
    And the units for which it was done."""
    seen, changed = set(), []

    def rule(frames):
        is_one = len(frames) > BLOB and frames[TYPE] == kind
        unit = json.loads(frames[HEADER]).get("unit") if is_one else None
        if unit is None or unit in seen:
            return [frames]
        seen.add(unit)
        if len(seen) % every:
            return [frames]
        changed.append(unit)
        return change(frames)
    return rule, changed


def cut(frames):
    """Loses the end of the blob."""
    return [[*frames[:BLOB], frames[BLOB][:-7]]]


def test_cut_results(behind):
    rule, changed = once_a_unit(cut, every=repeat(24, 4))
    trial = behind(rule)
    row = trial.row("result message cut short")
    trial.wait_for_end()
    row.times = len(changed)
    assert row.times >= 4
    said = trial.service.said("coordinator")
    assert all(f"the stored result of {unit} is damaged" in said for unit in changed)
    trial.finish("refused, scored again; same scores")


def test_doubled_results(behind):
    rule, changed = once_a_unit(lambda frames: [frames, frames], every=2)
    trial = behind(rule)
    row = trial.row("result message doubled")
    trial.wait_for_end()
    row.times = len(changed)
    assert row.times >= trial.total // 2
    trial.finish()


def test_lost_results(behind):
    """The message is gone, the worker keeps the result until it is acknowledged."""
    rule, changed = once_a_unit(lambda frames: [], every=repeat(40, 8))
    trial = behind(rule)
    row = trial.row("result message lost")
    trial.wait_for_end()
    row.times = len(changed)
    assert row.times >= 3
    trial.finish("sent again; same scores")


def test_lost_units(behind):
    """The unit never comes to its worker, which lives and does not list it."""
    rule, changed = once_a_unit(lambda frames: [], every=repeat(40, 8), kind=b"unit")
    trial = behind(change_back=rule)
    row = trial.row("unit message lost")
    trial.wait_for_end()
    row.times = len(changed)
    assert row.times >= 3
    trial.finish("given out again; same scores")


def test_late_results(behind):
    """Each tenth result is held back until thirty messages later, when its unit may be done again."""
    late = []

    def hold(frames):
        late.append([0, frames])
        return []

    rule, changed = once_a_unit(hold, every=10)

    def rule_with_late_ones(frames):
        for entry in late:
            entry[0] += 1
        due = [entry[1] for entry in late if entry[0] > 30]
        late[:] = [entry for entry in late if entry[0] <= 30]
        return rule(frames) + due

    trial = behind(rule_with_late_ones)
    row = trial.row("result message late, after its repetition")
    trial.wait_for_end()
    row.times = len(changed)
    trial.finish()


COLUMNS, BATCH = 3, 2  # candidates and sequences of a unit
FITTING = packed([0.5] * COLUMNS * BATCH, [128] * BATCH)
LIES = {
    "is not finite": packed([math.nan] * COLUMNS * BATCH, [128] * BATCH),
    "has the wrong size": packed([0.5] * (COLUMNS * BATCH + 1), [128] * BATCH),
    "is damaged": FITTING[:-8],
    "token count": packed([0.5] * COLUMNS * BATCH, [10**6] * BATCH),
    "score of row": packed([-1.0] * COLUMNS * BATCH, [128] * BATCH),
}
GARBAGE = [
    [b"", VERSION], [b"", b"BA9", b"result", b"", b"{}"], [b"", VERSION, b"result", b"", b"{"],
    [b"\xff" * 100], [b"", VERSION, b"result", b"", b"{}", b"x"], [b"", VERSION, b"sing", b"", b"{}"],
]


def test_lies(trial):
    """A worker that knows no model says everything but a result. Each lie is refused by name."""
    endpoint = trial.service.endpoint("worker")
    row = trial.row("lying worker: NaN, wrong shape, no such unit, garbage")
    for number, (reason, blob) in enumerate(LIES.items()):
        liar = RawWorker(endpoint, f"liar-{number}")
        lease = liar.take_unit()
        with trial.fault(row):
            liar.send("result", [blob], seconds=0.1, **lease)
            error = liar.receive("error")
        assert error["code"] == "invalid_argument" and reason in error["message"], error
        liar.send("result", [blob], **{**lease, "fence": lease["fence"] + 1000})
        liar.receive("error", "revoke")
        liar.close()

    liar = RawWorker(endpoint, "liar")
    lease = liar.take_unit()
    for elsewhere in ({"unit": "score/999/0-1"}, {"search": "nobody"}):
        liar.send("result", [FITTING], **{**lease, **elsewhere})
        assert liar.receive("revoke", "error")
    liar.send("result", [FITTING], **{**lease, "unit": "no unit at all"})
    assert liar.receive("error")["code"] == "invalid_argument"
    for frames in GARBAGE:
        liar.send_frames(frames)
        assert liar.receive("error")["code"] in ("invalid_argument", "unsupported")
    row.times += 3 + len(GARBAGE)
    liar.close()
    trial.finish("refused by name; same scores")
