"""``paceline bench collectives`` as a user runs it: real workers, tiny sizes."""

import shlex
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from command import run_json, start_python
from paceline.cli.main import main
from paceline.collectives import SCHEDULES
from ports import free_ports

SIDES = ["gloo", "shm", "shm-elsewhere", *SCHEDULES]
QUICK = ("--cell-seconds", "0.02")


def test_every_way_is_measured_checked_and_predicted_before(tmp_path):
    found = run_json("bench", "collectives", "--sizes", "1kB,2.5MB", *QUICK, cwd=tmp_path)
    assert found["schema"] == 3
    assert found["ending"] == "done"
    assert found["settings"]["workers"] == 2
    assert found["settings"]["hosts"] == [2]
    assert found["settings"]["threads"] == 1
    assert [(cell["size"], cell["what"]) for cell in found["cells"]] == [
        (size, what) for size in (1_000, 2_500_000) for what in SIDES
    ]
    made = found["prediction"]
    for cell in found["cells"]:
        assert cell["right"]
        assert cell["repeats"] >= 3
        assert 0 < cell["low"] <= cell["median"] <= cell["high"]
        assert cell["algbw"] == pytest.approx(cell["size"] / cell["median"])
        assert cell["busbw"] == pytest.approx(cell["algbw"])  # 2 (n - 1) / n of two workers
        assert cell["predicted"] == made["seconds"][cell["what"]][str(cell["size"])]
        assert cell["error"] == pytest.approx(cell["predicted"] / cell["median"] - 1)
        assert cell["measured_at"] > made["made_at"]
    assert [one["size"] for one in found["fastest"]] == [1_000, 2_500_000]
    for one in found["fastest"]:
        assert one["seconds"] == min(cell["median"] for cell in found["cells"] if cell["size"] == one["size"])
    assert {probe["probe"] for probe in made["probes"]} == {"inside", "reduce", "shm", "shm-elsewhere"}
    assert made["figures"]["inside"]["byte_seconds"] > 0
    assert list(tmp_path.iterdir()) == []


ASKED = ["--sizes", "4kB", "--only", "ring,tree,shm", "--op", "mean", "--dtype", "float64", "--repeats", "4"]
BROKEN = str(Path(__file__).with_name("broken_bench.py"))


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Its exit code, and what it printed on each stream."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_a_broken_collective_is_told_in_the_table_and_by_exit_code_3(tmp_path):
    words = ["bench", "collectives", *ASKED, *QUICK]
    code, out, err = finish(start_python(BROKEN, "launch", *words, cwd=tmp_path))
    assert code == 3, err
    lines = out.splitlines()
    assert lines[0].startswith("all-reduce (mean) of float64, 2 workers on one host; torch ")
    assert lines[1].startswith("4 timed calls per cell")
    rows = [line.split() for line in lines if line.startswith("    4 kB")]
    assert [(row[2], row[-1]) for row in rows] == [("shm", "ok"), ("ring", "ok"), ("tree", "WRONG")]
    assert lines[-1] == "WRONG results: tree at 4 kB"


def test_under_another_launcher_every_worker_says_that_a_result_is_wrong(tmp_path):
    words = ["bench", "collectives", "--sizes", "4kB", "--only", "tree", *QUICK]
    meet = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    meet |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    workers = [
        start_python(BROKEN, *words, cwd=tmp_path, env=meet | {"RANK": rank, "LOCAL_RANK": rank})
        for rank in "01"
    ]
    told = [finish(worker) for worker in workers]
    assert [code for code, _, _ in told] == [3, 3], told
    assert "WRONG" in told[0][1]
    assert told[1][1] == ""


def test_a_schedule_of_ones_own_comes_by_import_path(tmp_path):
    text = "from paceline.collectives.algorithms import ring\n\n\ndef mine(hosts):\n    return ring(hosts)\n"
    (tmp_path / "own.py").write_text(text)
    words = ("--only", "own.py:mine,gloo", "--sizes", "4kB", *QUICK)
    found = run_json("bench", "collectives", *words, cwd=tmp_path)
    assert [(cell["what"], cell["right"]) for cell in found["cells"]] == [
        ("gloo", True),
        ("own.py:mine", True),
    ]
    assert found["fastest"][0]["schedule"] == "own.py:mine"
    assert all(cell["predicted"] > 0 for cell in found["cells"])


def test_an_interrupted_benchmark_keeps_its_rows_and_leaves_nothing_behind(tmp_path):
    words = ["bench", "collectives", "--only", "shm,shm-elsewhere", "--sizes", "1kB,2kB,4kB,8kB,10MB"]
    words += ["--cell-seconds", "0.2"]
    process = start_python("-m", "paceline", *words, cwd=tmp_path)
    assert process.stdout
    for line in iter(process.stdout.readline, ""):
        if line.startswith("    1 kB"):
            break
    workers = sharing(process.pid)
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert code == 130, err
    assert out.splitlines()[-1].startswith("interrupted after ")
    assert not any(worker.is_running() for worker in workers)


def test_a_killed_worker_is_told_in_words_of_a_benchmark(tmp_path):
    words = ["bench", "collectives", "--only", "ring", "--sizes", "1kB,2kB,4kB,8kB", "--cell-seconds", "0.5"]
    process = start_python("-m", "paceline", *words, cwd=tmp_path)
    assert process.stdout
    for line in iter(process.stdout.readline, ""):
        if line.startswith("    1 kB"):
            break
    psutil.Process(process.pid).children()[0].kill()
    code, _, err = finish(process)
    assert code == 1, err
    assert "died while it measured (killed by signal 9, SIGKILL)" in err
    assert err.splitlines()[-1] == "Start again with the same command."


def sharing(launcher: int) -> list[psutil.Process]:
    """A launcher's workers, which share memory that has no name to be left behind."""
    workers = psutil.Process(launcher).children()
    for worker in workers:
        names = Path(f"/proc/{worker.pid}/maps").read_text()
        assert "/memfd:paceline-" in names
        assert "/dev/shm/paceline-" not in names
    return workers


MISTAKES = {
    "--only rings": "unknown schedule or backend 'rings'; did you mean 'ring'?",
    "--workers 0": "an all-reduce needs at least 2 workers in all, got 0",
    "--workers 1": "an all-reduce needs at least 2 workers in all, got 1",
    "--sizes 1parsec": "'1parsec' is not a size",
    "--sizes -1kB": "'-1kB' is not a size: it must be finite and not negative",
    "--repeat 2": "(see 'paceline bench collectives --help')",
    "--sizes 1": "one element takes 4 B",
    "--only nowhere.py:mine": "there is no file",
    "--sizes 1kB,,2kB": "'' is not a size",
    "--op summ": "unknown operation 'summ'; did you mean 'sum'?",
    "--dtype float3": "unknown dtype 'float3'; did you mean 'float32'?",
    "--op mean --dtype int32": "'mean' does not work on torch.int32",
    "--repeats 0": "0 repeats are too few: a cell needs at least 1",
    "--cell-seconds 0": "a cell cannot take 0 seconds",
    "--cell-seconds inf": "a cell cannot take inf seconds: give a number above 0",
    "--nodes 2": "needs an address",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_sentence_with_exit_code_2(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "collectives", *shlex.split(words)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("paceline: ")
    assert printed.err.count("\n") == 1
    assert MISTAKES[words] in printed.err
