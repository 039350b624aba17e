"""A stranger on another host, while two hosts train and before: no effect but a count."""

import re
import signal
import time
from pathlib import Path

from paceline.runtimes.live.secret import Secret

STRANGER = str(Path(__file__).parents[1] / "live" / "stranger.py")
TRAIN = ["-i", "1000000", "--batch-size", "4", "--evaluate-every", "never", "--checkpoint-every", "100 steps"]


def saved_step(home: Path) -> int:
    """The newest step that rank 0 has saved."""
    saved = home.glob("runs/*/checkpoints/step-*/rank-0.safetensors")
    return max((int(path.parent.name.removeprefix("step-")) for path in saved), default=0)


def test_another_host_takes_no_seat_and_has_no_effect(two_hosts: tuple, tmp_path: Path) -> None:
    """If this failed, any host that reaches the port could train as a rank, end the run or place its files."""
    one, other = two_hosts
    files = [tmp_path / "secret", tmp_path / "guess"]
    for file in files:
        Secret.new().write(file)

    def start(host, rank: int, secret: Path, home: str):
        place = f"-n 2 -np 1 -a {one.address} -p 29519 -nr {rank} --secret-file {secret}".split()
        return host.start("-m", "paceline", "train", *place, *TRAIN, cwd=tmp_path / home)

    launchers = [start(one, 0, files[0], "a")]
    stranger = start(other, 1, files[1], "stranger")
    _, told = stranger.communicate(timeout=60)
    assert stranger.returncode == 2
    assert f"the run's store at {one.address}, port 29519, does not take this process's secret" in told
    launchers.append(start(other, 1, files[0], "b"))
    end = time.monotonic() + 100
    while saved_step(tmp_path / "a") == 0:
        assert all(launcher.poll() is None for launcher in launchers), [
            each.communicate() for each in launchers
        ]
        assert time.monotonic() < end
        time.sleep(0.05)
    other.start(STRANGER, "knock", one.address, "29519").communicate(timeout=60)
    before = saved_step(tmp_path / "a")
    while saved_step(tmp_path / "a") == before:
        assert all(launcher.poll() is None for launcher in launchers), [
            each.communicate() for each in launchers
        ]
        time.sleep(0.05)
    launchers[0].send_signal(signal.SIGINT)
    printed = [launcher.communicate(timeout=60) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [130, 130], printed
    *_, refused = re.findall(r"refused: ([\d,]+) connections without the run's secret", printed[0][1])
    assert int(refused) >= 1 + 5, "the seat, and every other attempt"
    assert not any("stranger was here" in text for pair in printed for text in pair)
    assert [len(list(tmp_path.glob(f"{home}/runs/*"))) for home in ("a", "b", "stranger")] == [1, 1, 0]
