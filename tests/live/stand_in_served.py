"""Workers and servers that stand in for a run with servers; nobody talks to anybody.

They import no torch, which would cost seconds, so they leave their notes by hand.

A worker counts steps until its budget or a request to stop; a server counts updates until every worker's process has
ended. A behaviour is "worker-1=kill@5", "server-0=kill@5", "worker-0=raise@3", "worker-0=mistake@0" or
"worker-0=lost@5", several with commas; "steps=40" is the budget, "run=PATH" the run folder, and with
"waits=1" nobody begins.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.process_info import ProcessInfo, file_stem
from paceline.runtimes.live.secret import Secret


def main(behaviour: str) -> int:
    place = ProcessInfo.from_environment()
    wishes = dict(part.split("=", 1) for part in behaviour.split(","))
    what, _, when = wishes.get(f"{place.role}-{place.rank}", "@-1").partition("@")
    Secret.read(place.secret_file)
    asked = []
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda signum, frame: asked.append(signum))
    heartbeat = Heartbeat(place)
    pids = gathered(place)
    if "run" in wishes:
        heartbeat.show(Path(wishes["run"]))
    step = 0
    while step != int(when):
        if place.role == "worker" and asked and asked[0] == signal.SIGINT:
            heartbeat.enter("done")
            return note(place, "interrupted", step, 0)
        if signal.SIGTERM in asked:
            return note(place, "stopped", step, 1)
        if not any(map(alive, pids)) if place.role == "server" else step == int(wishes.get("steps", -2)):
            heartbeat.enter("done")
            return 0
        time.sleep(0.01)
        if "waits" not in wishes:
            step += 1
            heartbeat.beat(step)
    return fail(place, what, step)


def fail(place: ProcessInfo, what: str, step: int) -> int:
    match what:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            return note(place, "error", step, 1, "ValueError: a bad label, 11")
        case "mistake":
            return note(place, "mistake", step, 2, "'spp' is no strategy; choose another")
    return note(place, "lost-peer", step, 1, "ServerLost: server 0 is lost")


def note(place: ProcessInfo, kind: str, step: int, code: int, message: str = "") -> int:
    """Leave a note for the launcher as the guard does."""
    words = {"rank": place.rank, "role": place.role, "host": place.host, "kind": kind, "step": step}
    path = place.launch / f"{file_stem(place.rank, place.role)}.failure.json"
    path.write_text(json.dumps(words | {"message": message, "at": time.time()}))
    return code


def gathered(place: ProcessInfo) -> list[int]:
    """Wait until all processes of the host are here, and return the workers' ids."""
    me = place.launch / f"here-{place.role}-{place.rank}"
    me.with_suffix(".draft").write_text(str(os.getpid()))
    me.with_suffix(".draft").rename(me)
    names = [f"here-worker-{rank}" for rank in range(place.workers)]
    names += [f"here-server-{rank}" for rank in range(place.servers)]
    while not all((place.launch / name).exists() for name in names):
        time.sleep(0.01)
    return [int((place.launch / name).read_text()) for name in names[: place.workers]]


def alive(pid: int) -> bool:
    """A process that its launcher has not cleared away would still count as there."""
    return Path(f"/proc/{pid}").exists()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
