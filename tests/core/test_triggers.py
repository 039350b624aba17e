"""A date that is missed loses a checkpoint; one that differs between workers hangs a run."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.jobs.spec import JobSpec
from paceline.runtimes.settings import Cadence, DueActions, Settings, Triggers


def triggers(steps_per_epoch=10, **options):
    return Triggers(Settings(job=JobSpec(), **options), steps_per_epoch)


def test_dates_of_a_short_run():
    dates = triggers(epochs=2, evaluate=Cadence(1), checkpoint=Cadence(15, "steps"))
    assert [dates.next(progress) for progress in (0, 9, 10, 15, 19)] == [10, 10, 15, 20, 20]
    assert dates.due(0, 10) == DueActions(evaluate=True, checkpoint=False, stop=False)
    assert dates.due(10, 15) == DueActions(evaluate=False, checkpoint=True, stop=False)
    assert dates.due(15, 20) == DueActions(evaluate=True, checkpoint=True, stop=True)


def test_never_is_never_even_at_the_end():
    assert triggers(iterations=7, evaluate=Cadence(0), checkpoint=Cadence(0)).due(0, 7) == DueActions(
        False, False, True
    )


@given(
    st.integers(1, 50),
    st.integers(1, 300),
    st.integers(0, 40),
    st.integers(0, 40),
    st.lists(st.integers(1, 30), min_size=1, max_size=60),
)
def test_whatever_the_jumps_each_date_is_kept_once(steps_per_epoch, last, evaluate, checkpoint, jumps):
    dates = triggers(
        steps_per_epoch,
        iterations=last,
        evaluate=Cadence(evaluate, "steps"),
        checkpoint=Cadence(checkpoint, "steps"),
    )
    progress = met = kept = 0
    for jump in jumps:
        progress += jump
        if progress >= dates.next(met):
            due = dates.due(met, progress)
            assert due.evaluate or due.checkpoint or due.stop
            kept += due.evaluate
            crossed = evaluate and met // evaluate != progress // evaluate
            assert due.evaluate == bool(evaluate and (crossed or due.stop))
            met = progress
            if due.stop:
                break
        else:
            assert not evaluate or met // evaluate == progress // evaluate
            assert progress < last
