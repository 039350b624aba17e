"""A script of one's own on two hosts: its workers are one run, and the hosts have one record each."""

from pathlib import Path

from paceline.runtimes.live.secret import Secret

SCRIPT = """
import sys, torch, torch.distributed as dist, paceline
if sys.argv[1] == "own":
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    sys.exit(total.item() - 2)
torch.manual_seed(5)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
worker = paceline.distribute(model, optimizer)
for step in range(5):
    model(torch.full((2, 4), 1.0 + worker.rank)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"rank {worker.rank} of {worker.workers}: {model.weight.tolist()}")
"""


def test_a_script_runs_on_two_hosts(two_hosts: tuple, tmp_path: Path) -> None:
    """If this failed, hosts would train apart, or a script's own group could not meet across hosts."""
    Secret.new().write(tmp_path / "secret")
    (tmp_path / "script.py").write_text(SCRIPT)
    for strategy, how in (("all-reduce", "ours"), ("none", "own")):
        started = []
        for rank, host in enumerate(two_hosts):
            place = f"-n 2 -np 1 -a {two_hosts[0].address} -p 29519 -nr {rank} --secret-file {tmp_path / 'secret'}"
            words = ["run", *place.split(), "--strategy", strategy, str(tmp_path / "script.py"), how]
            started.append(host.start("-m", "paceline", *words, cwd=tmp_path / host.name))
        ended = [launcher.communicate(timeout=60) for launcher in started]
        assert [launcher.returncode for launcher in started] == [0, 0], ended
        if how == "ours":
            lines = [line for out, _ in ended for line in out.splitlines() if " of 2: " in line]
            assert [line.split(" of ")[0] for line in lines] == ["rank 0", "rank 1"]
            assert len({line.split(": ")[1] for line in lines}) == 1
    for host, rank in zip(two_hosts, "01", strict=True):
        (events,) = (tmp_path / host.name).glob("runs/*/events/*")
        assert events.name == f"rank-{rank}.jsonl"
