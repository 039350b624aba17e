"""torchrun itself, with a script of one's own and with the command."""

import json
from pathlib import Path

from command import run_python
from places.processes import EXAMPLES

LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_torchrun_starts_a_script(tmp_path: Path) -> None:
    done = run_python(*LAUNCH, str(EXAMPLES.parent / "plain_loop.py"), "--epochs", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 workers x batch 16, all-reduce over shared memory" in done.stdout
    assert done.stdout.count("epoch 1: accuracy") == 1


def test_torchrun_starts_the_command(tmp_path: Path) -> None:
    done = run_python(*LAUNCH, "-m", "paceline", "train", "-i", "20", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]
    assert (summary["workers"], summary["steps"]) == (2, 20)
