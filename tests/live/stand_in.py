"""A worker that stands in for training: it sums a tensor again and again, and fails as it is told to.

stand_in.py launch PLAN-AS-JSON BEHAVIOUR   the launcher; exit codes and messages as the command line has
stand_in.py work BEHAVIOUR                  one worker

A behaviour is "steps=3", "kill=1@5" (rank 1 kills itself after step 5), "raise=1@5", "mistake=1@5",
"stuck=1@5" (hears no request to stop), or several of them with commas.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # one call, so that lines of two workers never mix


def launch(plan: str, behaviour: str) -> int:
    from paceline.errors import RunFailed, UsageError
    from paceline.runtimes.live.launcher.forking import ForkServer
    from paceline.runtimes.live.launcher.launch import launch as start
    from paceline.runtimes.live.launcher.processes import LaunchPlan

    asked = json.loads(plan)
    if "secret_file" in asked:
        asked["secret_file"] = Path(asked["secret_file"])
    try:
        with ForkServer(forked, lambda: None) as forks:
            return start(
                [sys.executable, __file__, "work", behaviour], LaunchPlan(**asked), start=forks.start
            )
    except UsageError as mistake:
        sys.stderr.write(f"paceline: {mistake}\n")
        return 2
    except RunFailed as failure:
        sys.stderr.write(f"paceline: {failure}\n")
        return 1


def forked(command: Sequence[str]) -> int:
    """What a fork of a process that has torch already does in place of the command, without importing it again."""
    return work(command[-1])


def work(behaviour: str) -> int:
    import torch
    import torch.distributed as dist

    from paceline.errors import UsageError
    from paceline.records.summary import Summary
    from paceline.runtimes.live.process_info import ProcessInfo
    from paceline.runtimes.live.run_store import MemberStore
    from paceline.runtimes.live.worker.guard import run_guarded

    place = ProcessInfo.from_environment()
    wishes = dict(part.split("=") for part in behaviour.split(","))

    def due(name, step):
        rank, _, when = wishes.get(name, "-1@-1").partition("@")
        return int(rank) == place.rank and int(when) == step

    def train(heartbeat, stopping):
        torch.set_num_threads(1)
        documents = MemberStore(place, timedelta(seconds=60))
        store = dist.PrefixStore("torch", documents)
        dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.workers)
        if "run" in wishes:
            heartbeat.show(Path(wishes["run"]))
        value = torch.ones(2)
        step, ending = 0, "budget"
        while step < int(wishes.get("steps", 1_000_000)):
            value[0], value[1] = 1.0, float(stopping())
            dist.all_reduce(value)
            assert value[0] == place.workers
            step += 1
            heartbeat.beat(step)
            if step == 5:
                say(f"ready {place.rank} {os.getpid()} of {place.workers} on {place.host}")
            if due("kill", step):
                os.kill(os.getpid(), signal.SIGKILL)
            if due("raise", step):
                raise ValueError("a bad label, 11")
            if due("mistake", step):
                raise UsageError("'spp' is no strategy; choose another")
            if due("stuck", step):
                time.sleep(60)
            if value[1] > 0:
                ending = "interrupted"
                break
            time.sleep(0.01)
        say(f"{ending} {place.rank}")
        dist.destroy_process_group()
        zeros = {"epochs": 0.0, "seconds": 0.0, "samples": 0, "parameters": 0}
        return Summary(name="x", runtime="live", ending=ending, workers=place.workers, steps=step, **zeros)

    return run_guarded(place, train)


if __name__ == "__main__":
    sys.exit(launch(*sys.argv[2:]) if sys.argv[1] == "launch" else work(sys.argv[2]))
