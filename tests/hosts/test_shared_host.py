"""Two runs at once that share their second host."""

import json
from pathlib import Path

from command import start_python


def test_two_runs_of_one_second_do_not_share_a_folder_on_their_second_host(
    two_hosts: tuple, tmp_path: Path
) -> None:
    """If this failed, the second host would hold a mixture of both that neither can resume, with exit code 0."""
    words = ["-i", "20", "-b", "8", "--checkpoint-every", "10 steps", "--evaluate-every", "never"]
    secret = tmp_path / "secret"
    secret.write_text("a secret of both hosts")
    secret.chmod(0o600)
    launchers = []
    for port, run in (("29517", "one"), ("29518", "two")):
        for rank, host in enumerate(two_hosts):
            runs = tmp_path / ("shared" if rank else run)
            place = ["-n", "2", "-np", "1", "-a", two_hosts[0].address, "-p", port, "-nr", str(rank)]
            place += ["--secret-file", str(secret)]
            process = start_python(
                *("-m", "paceline", "train", *place, "--runs", str(runs), *words),
                cwd=tmp_path,
                env={"OMP_NUM_THREADS": "1"},
                first=host._enter,
            )
            host.started.append(process)
            launchers.append(process)
    told = [process.communicate(timeout=100)[1] for process in launchers]
    assert [process.returncode for process in launchers] == [0] * 4, told
    ids = {}
    for parent in ("one", "two", "shared"):
        for folder in (tmp_path / parent).iterdir():
            ids[parent, folder.name] = json.loads((folder / "config.json").read_text())["identity"]["run"]
    shared = {name: run for (parent, name), run in ids.items() if parent == "shared"}
    own = {name: run for (parent, name), run in ids.items() if parent != "shared"}
    assert len(shared) == 2
    assert shared == own, "the same names and ids on both hosts"
