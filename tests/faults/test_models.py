"""Workers whose model is not the one that was submitted."""

import shutil
import subprocess

import pytest

from conftest import SMALL_MODEL
from harness import WORKERS, Trial, bare, oracle, trial, wait_until

WEIGHTS = "model.safetensors"


def other_model(folder):
    """The same shapes, one weight changed."""
    shutil.copytree(SMALL_MODEL, folder)
    spoil(folder)
    return folder


def spoil(folder):
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-2] ^= 1
    (folder / WEIGHTS).write_bytes(content)  # in place: the same file for who has it open


def with_mounted(folder, at):
    """A prefix: the command sees `folder` at `at`, as on a host with another disk."""
    prefix = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"',
              str(folder), str(at)]
    probe = subprocess.run([*prefix, "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"no mount namespaces here: {probe.stderr.strip()}")
    return prefix


def joins(trial, row, prefix):
    """One more worker, which says that its model is another and gets nothing to do any more."""
    service = trial.service
    service.define_worker(WORKERS, prefix=prefix)
    with trial.fault(row):
        service.start(f"worker-{WORKERS}", keep=False)
        wait_until(lambda: "failed:" in service.said(f"worker-{WORKERS}"), "the worker refuses")
    trial.finish("left out; same scores")
    assert not service.runs_of(f"worker-{WORKERS}")


def test_other_weights_at_the_same_path(trial, tmp_path):
    prefix = with_mounted(other_model(tmp_path / "other"), SMALL_MODEL)
    joins(trial, trial.row("worker with other weights at the same path"), prefix)
    assert "holds another model" in trial.service.said(f"worker-{WORKERS}")


def test_no_model_at_the_path(trial, tmp_path):
    (tmp_path / "empty").mkdir()
    prefix = with_mounted(tmp_path / "empty", SMALL_MODEL)
    joins(trial, trial.row("worker that does not see the model"), prefix)


def test_model_changes_on_disk(bare, oracle, tmp_path):
    """Those who have loaded it go on; who starts now is left out; when nobody has it, a clear stop."""
    model = tmp_path / "model"
    shutil.copytree(SMALL_MODEL, model)
    trial = Trial(bare.start_all(), oracle, model)
    trial.run_on(3)
    for worker in ("worker-0", "worker-1"):
        wait_until(lambda: "units take" in bare.said(worker), f"{worker} has loaded the model")
    row = trial.row("model changes on disk during the search")
    with trial.fault(row):
        spoil(model)
        bare.kill("worker-0")
        wait_until(lambda: "holds another model" in bare.said("worker-0"), "worker-0 refuses")
    bare.kill("worker-1")
    said = wait_until(lambda: stop_of(bare.status()), "the search says why it stands still")
    assert "holds another model" in said and str(model) in said
    row.times += 1
    spoil(model)  # the bit is back
    bare.kill("worker-0", "worker-1")
    bare.submit(model)
    trial.finish("left out; clear stop when nobody has it; submitted again: same scores")


def stop_of(status):
    """Why nothing goes on: it failed, or (a dead worker is still counted on) it waits for another."""
    if status and status["state"] == "failed":
        return status["error"]["message"]
    reason = status and status["why_pending"]
    return reason if reason and "sees another model" in reason else None
