import json
import os
import subprocess
import sys
import threading
import time

from paceline.records.load import SystemSampler


def busy(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_even_the_shortest_run_has_a_sample(tmp_path):
    with SystemSampler(tmp_path / "system.jsonl", [os.getpid()]) as sampler:
        busy(0.05)
    (line,) = lines(tmp_path / "system.jsonl")
    assert line["workers"][0]["pid"] == os.getpid()
    assert line["workers"][0]["memory_bytes"] > 2**20
    assert sampler.memory_bytes >= line["workers"][0]["memory_bytes"]
    assert 5 < sampler.cpu_percent < 150
    assert line["cpu_percent"] > 0, "the first line covers the time since the block began"
    assert {"time", "cpu_percent", "sent_per_second", "received_per_second"} <= line.keys()


def test_samples_come_at_the_interval_and_the_thread_ends(tmp_path):
    with SystemSampler(tmp_path / "system.jsonl", [os.getpid()], interval=0.05):
        time.sleep(0.5)
    times = [line["time"] for line in lines(tmp_path / "system.jsonl")]
    assert 2 <= len(times) <= 12
    assert times == sorted(times)
    assert not [thread for thread in threading.enumerate() if thread.name == "system-sampler"]


def test_a_worker_that_dies_and_one_that_never_was_do_not_stop_the_sampling(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with SystemSampler(
        tmp_path / "system.jsonl", [child.pid, 2**22 + 1, os.getpid()], interval=0.05
    ) as sampler:
        time.sleep(0.2)
        child.kill()
        child.wait()
        time.sleep(0.2)
    pids = [[worker["pid"] for worker in line["workers"]] for line in lines(tmp_path / "system.jsonl")]
    assert pids[0] == [child.pid, os.getpid()]
    assert pids[-1] == [os.getpid()]
    assert sampler.cpu_percent is not None


def test_with_nobody_to_watch_nothing_is_claimed(tmp_path):
    with SystemSampler(tmp_path / "system.jsonl", []) as sampler:
        pass
    assert sampler.cpu_percent is None
    assert sampler.memory_bytes is None


def test_a_disk_that_cannot_be_written_does_not_end_the_run(tmp_path):
    (tmp_path / "file").touch()
    with SystemSampler(tmp_path / "file" / "system.jsonl", [os.getpid()], interval=0.02) as sampler:
        time.sleep(0.05)
    assert sampler.memory_bytes > 0
