"""One more worker for a run that is under way."""

import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch

from paceline.errors import Mistake
from paceline.records.folder import RunFolder
from paceline.records.observer import Silent
from paceline.records.summary import Summary
from paceline.runtimes.live.checked import run_name
from paceline.runtimes.live.launch import say_on_stderr
from paceline.runtimes.live.options import LiveOptions
from paceline.runtimes.live.served.control import Hello, Welcome
from paceline.runtimes.live.served.dealer import WorkerSockets
from paceline.runtimes.live.served.group import ServedGroup, connect
from paceline.runtimes.live.served.keys import Secret
from paceline.runtimes.live.served.line import ByServers, Line
from paceline.runtimes.live.served.memory import SharedFlat
from paceline.runtimes.live.served.server import Heart
from paceline.runtimes.live.served.way import ServedLife
from paceline.runtimes.live.timeouts import KNOCK
from paceline.runtimes.prepare import prepare
from paceline.runtimes.settings import Settings


def join_run(
    endpoint: str,
    secret: Secret,
    options: LiveOptions,
    runs: Path,
    *,
    heartbeat: Heart,
    stop_requested: Callable[[], bool],
    say: Callable[[str], None] = say_on_stderr,
) -> Summary:
    """Train with the others until the run ends, or until this worker is asked to stop: then it leaves alone."""
    asked = perf_counter()
    welcome = _knock(endpoint, secret)
    run = json.loads(welcome.document)
    settings = Settings.from_json(run["settings"])
    prepared = prepare(settings)
    torch.set_num_threads(options.threads or 1)
    group = ServedGroup(welcome.rank, settings.workers, SharedFlat(run["name"]))
    device = torch.device(options.device)
    life = JoinedLife(prepared, group, device, Silent(), heartbeat)
    line, _ = connect(secret, run["endpoints"], group.memory, welcome.rank, options.timeout, _never)
    group.connect(line)
    folder = RunFolder(runs / run_name(run["name"]))
    folder.path.mkdir(parents=True, exist_ok=True)
    heartbeat.show(folder.path)
    life.folder, life.leaving = folder, stop_requested
    life.begun = run["now"] + perf_counter() - asked
    say(f"joined {run['name']} as rank {welcome.rank}; Ctrl-C leaves it")
    try:
        summary = life.live(ByServers(line, say), lambda _: None, [])
    except BaseException:
        group.abandon()
        raise
    say(f"rank {welcome.rank} {_ended(summary)} {run['name']} after {life.me.clock:,} steps")
    return summary


class JoinedLife(ServedLife):
    """A worker that was not there when the others lined up."""

    def line_up(self) -> None:
        """Its clock starts where the run's stands."""
        self.me.now = self.begun


def _knock(endpoint: str, secret: Secret) -> Welcome:
    """Ask server 0 for a rank, and what is run."""
    with WorkerSockets(secret, [endpoint], SharedFlat("join")) as sockets:
        line = Line(sockets, 1, KNOCK, _never)
        line.send(0, Hello(-1))
        try:
            _, welcome = line.wait_for(Welcome)
        except (TimeoutError, ConnectionError):
            raise Mistake(
                f"no run answers at {endpoint.removeprefix('tcp://')} to this secret; "
                "see that it is under way and that --secret-file is the run's own"
            ) from None
    assert isinstance(welcome, Welcome)
    return welcome


def _ended(summary: Summary) -> str:
    return "left" if summary.ending == "left" else "ended with"


def _never() -> bool:
    return False
