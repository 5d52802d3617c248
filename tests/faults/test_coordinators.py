"""A second coordinator is started on the same Redis by mistake: one of the two writes."""

from harness import bare, oracle, repeat, trial

EXIT_CANNOT_START = 1


def prepare_take_over(service):
    """The second coordinator, "second", is only to be started. The process of the first one, which
    nobody starts again when it ends."""
    service.keep.discard("coordinator")
    service.define_coordinator("--take-over", name="second")
    return service.parts["coordinator"]


def test_second_one_is_refused(trial):
    service = trial.service
    row = trial.row("second coordinator by mistake")
    service.define_coordinator(name="second")
    for _ in range(repeat(1, 5)):
        with trial.fault(row):
            process = service.start("second", keep=False)
            assert process.wait(60) == EXIT_CANNOT_START
    assert "another coordinator serves this Redis: process" in service.said("second")
    assert "--take-over" in service.said("second")
    assert service.exits["coordinator"] == []
    trial.finish("the second one ends; same scores")


def test_second_one_takes_over(trial):
    """With --take-over the first one ends, and nobody starts it again."""
    service = trial.service
    row = trial.row("second coordinator with --take-over")
    first = prepare_take_over(service)
    with trial.fault(row):
        service.start("second", keep=False)
    assert first.wait(60) == EXIT_CANNOT_START
    assert "a newer coordinator has taken over" in service.said("coordinator")
    trial.finish("the first one ends; same scores")
    assert service.parts["second"].poll() is None


def test_first_one_was_frozen_while_the_second_took_over(trial):
    """It wakes up with changes in its hands: none of them may be written."""
    service = trial.service
    row = trial.row("take-over from a frozen coordinator, which then wakes up")
    first = prepare_take_over(service)
    with trial.fault(row), service.frozen("coordinator"):
        service.start("second", keep=False)
        service.wait_for_log("second", "serves")
        fence = service.redis.hget("bitalloc:coordinator", "fence")
    assert first.wait(60) == EXIT_CANNOT_START
    assert service.redis.hget("bitalloc:coordinator", "fence") == fence
    trial.finish("the first one ends; same scores")
