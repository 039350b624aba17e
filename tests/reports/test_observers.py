import io
import json
import re
import time
from dataclasses import replace

import pytest

from paceline.records.events import MetricsRow
from paceline.records.files import from_document
from paceline.records.spans import StepBreakdown, Totals
from paceline.records.summary import SCHEMA, Observer, Started, Summary
from paceline.reports import progress
from paceline.reports.progress import ConsoleObserver, JsonObserver, Screen, Tee, header

RUN = Started(
    name="digits",
    job="digits, cnn",
    parameters=20522,
    strategy="all-reduce",
    batch_sizes=(32, 32),
    transport="gloo",
    last_step=90,
    steps_per_epoch=45,
    folder="runs/x",
)
ROWS = [
    MetricsRow(45, 1.0, 1.7421, 0.901, {"accuracy": 0.8194}, 0.1, 0.4),
    MetricsRow(90, 2.0, float("nan"), 0.1288, {"accuracy": 0.9639}, 0.1, 11.9),
]
SUMMARY = Summary(
    name="digits",
    runtime="live",
    ending="budget",
    workers=2,
    steps=90,
    epochs=2.0,
    seconds=12.0,
    samples=5760,
    parameters=20522,
    final={"accuracy": 0.9639},
    totals=[Totals(steps=90)],
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _a_plain_terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")


def play(observer, monkeypatch, interval: float = 0.0) -> None:
    monkeypatch.setattr(progress, "BAR_EVERY", interval)
    monkeypatch.setattr(progress, "LINE_EVERY", interval)
    observer.started(RUN)
    for row in ROWS:
        observer.stepped(row.step, 64, 0.25, row.seconds)
        observer.evaluated(row)
    observer.noted("checkpoint step 3 is not used")
    observer.finished(SUMMARY)


def test_in_a_pipe_results_are_on_stdout_and_progress_on_stderr(monkeypatch):
    out, err = io.StringIO(), io.StringIO()
    play(ConsoleObserver(out, err), monkeypatch)
    assert out.getvalue().startswith(
        "digits, cnn (20,522 parameters), 2 workers x batch 32, all-reduce over gloo\n"
        "recorded in runs/x\n"
        "\n"
        "   epoch   train loss   test loss   accuracy       lr   wall s\n"
        "       1       1.7421      0.9010     0.8194   0.1000      0.4\n"
        "       2          nan      0.1288     0.9639   0.1000     11.9\n"
        "\n"
        "ended at 0.9639 after 12 s; runs/x\n"
    )
    assert re.sub(r"\d+ s left", "N s left", err.getvalue()) == (
        "50 %  1.0/2 epochs  160 samples/s  loss 0.2500  N s left\n"
        "100 %  2/2 epochs  6 samples/s  loss 0.2500\n"
        "checkpoint step 3 is not used\n"
    )
    assert "\x1b" not in out.getvalue() + err.getvalue()


def test_a_short_run_in_a_pipe_says_nothing_on_stderr_but_its_notes(monkeypatch):
    err = io.StringIO()
    play(ConsoleObserver(io.StringIO(), err), monkeypatch, interval=10)
    assert err.getvalue() == "checkpoint step 3 is not used\n"


def screen(text: str) -> list[str]:
    """What a terminal shows, as far as a one-line bar goes: an erased line is written anew."""
    lines = [line.split("\x1b[2K")[-1] for line in text.split("\n")]
    return [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", line).rstrip() for line in lines]


def test_on_a_terminal_rows_stand_above_one_bar(monkeypatch):
    terminal = Terminal()
    play(ConsoleObserver(terminal, terminal), monkeypatch)
    shown = screen(terminal.getvalue())
    assert shown[3:8] == [
        "   epoch   train loss   test loss   accuracy       lr   wall s",
        "       1       1.7421      0.9010     0.8194   0.1000      0.4",
        "       2          nan      0.1288     0.9639   0.1000     11.9",
        "checkpoint step 3 is not used",
        " 100 % ━━━━━━━━━━━━━━ 2/2 epochs  6 samples/s  loss 0.2500",
    ]
    assert shown[8:10] == ["", "ended at 0.9639 after 12 s; runs/x"]
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l"), (
        "the cursor is back"
    )


def test_with_stdout_in_a_file_the_bar_stays_on_the_terminal(monkeypatch):
    out, err = io.StringIO(), Terminal()
    play(ConsoleObserver(out, err), monkeypatch)
    assert "0.8194" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    assert "━" in err.getvalue()
    assert "0.8194" not in err.getvalue()


def test_colours_are_left_out_where_people_ask_for_that(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    play(ConsoleObserver(terminal, terminal), monkeypatch)
    assert not re.search(r"\x1b\[[0-9;]*m", terminal.getvalue().replace("\x1b[0m", ""))


def test_a_dumb_terminal_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    play(ConsoleObserver(terminal, terminal), monkeypatch)
    assert "\x1b" not in terminal.getvalue()
    assert "50 %  1.0/2 epochs" in terminal.getvalue()


def test_an_encoding_without_blocks_gets_ascii_bars(monkeypatch):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    observer = ConsoleObserver(out, io.StringIO())
    observer.started(RUN)
    totals = Totals(steps=90)
    totals.typical = StepBreakdown(forward=0.1)
    observer.finished(replace(SUMMARY, totals=[totals]))
    assert b"forward            100.0  100 %  ########################" in raw.getvalue()


def test_a_run_that_never_finishes_leaves_the_terminal_tidy(monkeypatch):
    monkeypatch.setattr(progress, "BAR_EVERY", 0.0)
    terminal = Terminal()
    observer = ConsoleObserver(terminal, terminal)
    observer.started(RUN)
    observer.stepped(1, 64, 0.5, 0.1)
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")
    observer.close()
    observer.close()
    assert terminal.getvalue().rstrip("\x1b[?25h").endswith("\n")


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_telling_of_a_step_takes_about_a_microsecond(stream):
    observer = ConsoleObserver(stream(), stream())
    observer.started(RUN)
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(2000):
            observer.stepped(1, 64, 0.5, 0.1)
        best = min(best, (time.perf_counter() - begun) / 2000)
    assert best < 5e-6
    observer.close()


def test_json_is_one_strict_document_with_settings_rows_and_summary(monkeypatch):
    out, err = io.StringIO(), io.StringIO()
    play(JsonObserver({"strategy": "all-reduce", "seed": 1}, out, err), monkeypatch)
    document = json.loads(out.getvalue(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert list(document) == ["schema", "settings", "run", "prediction", "rows", "summary", "findings"]
    assert document["schema"] == 2
    assert document["prediction"] is None, "nothing was measured before the first step"
    assert document["settings"] == {"strategy": "all-reduce", "seed": 1}
    assert document["run"]["batch_sizes"] == [32, 32]
    assert [row["accuracy"] for row in document["rows"]] == [0.8194, 0.9639]
    assert [row["train_loss"] for row in document["rows"]] == [1.7421, None]
    assert document["summary"]["schema"] == SCHEMA
    assert from_document(document["summary"], Summary) == SUMMARY
    assert "50 %  1.0/2 epochs" in err.getvalue()


def test_nothing_is_printed_before_the_json_document():
    out = io.StringIO()
    observer = JsonObserver({}, out, io.StringIO())
    observer.started(RUN)
    observer.stepped(45, 64, 0.25, 0.4)
    observer.evaluated(ROWS[0])
    assert out.getvalue() == ""


def test_everybody_is_told():
    streams = [io.StringIO(), io.StringIO()]
    tee = Tee(
        [ConsoleObserver(streams[0], io.StringIO()), Observer(), JsonObserver({}, streams[1], io.StringIO())]
    )
    tee.started(RUN)
    tee.stepped(45, 64, 0.25, 0.4)
    tee.evaluated(ROWS[0])
    tee.noted("a sentence")
    tee.finished(SUMMARY)
    assert "0.8194" in streams[0].getvalue()
    assert "0.8194" in streams[1].getvalue()


def test_one_parameter_is_one():
    assert "(1 parameter), " in header(replace(RUN, parameters=1))[0]


def test_the_header_tells_batches_where_they_differ_and_where_a_run_goes_on():
    lines = header(replace(RUN, batch_sizes=(48, 16), first_step=40, folder=None))
    assert lines == [
        "digits, cnn (20,522 parameters), 2 workers with batches 48,16, all-reduce over gloo",
        "resumed at step 40 of 90",
    ]
    assert header(replace(RUN, first_step=40, last_step=0, folder=None))[-1] == "resumed at step 40", (
        "a script"
    )
    assert (
        "10 workers with batches 1,2,3,4,5,6,7,...,10,"
        in header(replace(RUN, batch_sizes=tuple(range(1, 11))))[0]
    )
    assert "1 worker x batch 8" in header(replace(RUN, batch_sizes=(8,)))[0]
    assert header(replace(RUN, transport=""))[0].endswith(", all-reduce"), "one worker talks over nothing"


def test_a_run_of_steps_counts_steps_and_simulated_seconds_are_called_so(monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    out, err = io.StringIO(), io.StringIO()
    observer = ConsoleObserver(out, err, clock="simulated")
    observer.started(replace(RUN, last_step=14500))
    observer.stepped(1450, 64, 0.25, 0.4)
    observer.evaluated(replace(ROWS[0], epoch=32.2222222))
    assert err.getvalue().startswith("10 %  1,450/14,500 steps  160 samples/s")
    assert out.getvalue().endswith(
        "   epoch   train loss   test loss   accuracy       lr   simulated s\n"
        "   32.22       1.7421      0.9010     0.8194   0.1000         0.400\n"
    )


def test_a_reader_who_leaves_does_not_end_the_run():
    """As `paceline train | head` does."""

    class Left(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    observer = ConsoleObserver(Left(), io.StringIO())
    observer.started(RUN)
    observer.stepped(1, 64, 0.25, 0.4)
    observer.evaluated(ROWS[0])
    observer.close()


def test_the_header_tells_the_threads_of_a_worker_and_the_cores():
    """If this failed, nobody would see that one worker is compared with two on other terms."""
    assert header(replace(RUN, threads=1, cores=2))[1] == "1 thread each of 2 cores"
    assert header(replace(RUN, threads=2, cores=2, batch_sizes=(8,)))[1] == "2 threads of 2 cores"
    assert not [line for line in header(RUN) if "thread" in line]


@pytest.mark.parametrize(
    ("transport", "shown"),
    [
        ("shm", "shared memory"),
        ("shm, by ring", "shared memory, by ring"),
        ("gloo, by tree", "gloo, by tree"),
    ],
)
def test_shared_memory_has_one_name(transport, shown):
    assert header(replace(RUN, transport=transport))[0].endswith(f"all-reduce over {shown}")


def test_time_left_is_told_when_enough_is_done_to_tell(monkeypatch):
    """If this failed, a task that has just begun would be said to take a year."""
    err = io.StringIO()
    screen = Screen(io.StringIO(), err)
    now = screen.begun + 70.0
    monkeypatch.setattr("paceline.reports.progress.time.monotonic", lambda: now)
    screen.count_down(1e-6, "1 network")
    assert err.getvalue() == "0 %  1 network\n"
    now += 20.0
    screen.count_down(0.25, "2 networks")
    assert err.getvalue().endswith("25 %  2 networks  about 4 min left\n")
