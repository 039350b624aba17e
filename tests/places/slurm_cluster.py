"""A Slurm cluster on this machine: munged with a key of its own, slurmctld, and two slurmd that are two nodes.

The nodes' names are addresses, so that they resolve everywhere; all daemons listen on 127.0.0.1 only.
"""

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from places.processes import end_all
from ports import free_ports

_BIN = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
NODES = ("127.0.0.1", "127.0.0.2")
_CONF = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0
SelectType=select/linear
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName={nodes[0]} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName={nodes[1]} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=5 State=UP
"""


def program(name: str) -> str | None:
    return shutil.which(name, path=_BIN)


def missing() -> list[str]:
    """The programs of slurm-wlm and munge that this machine has not."""
    return [
        name
        for name in ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo")
        if program(name) is None
    ]


@dataclass(frozen=True)
class SlurmCluster:
    folder: Path

    def run(self, name: str, *words: str, seconds: float = 100, **more: Any) -> str:
        """What a program of Slurm writes to stdout; it must end well within so many seconds."""
        done = subprocess.run(
            [str(program(name)), *words], text=True, capture_output=True, timeout=seconds, **more
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def run_batch(self, *words: str, seconds: float = 100, **more: Any) -> str:
        """Run a batch script to its end; how it ended, as ``COMPLETED 0:0``. sbatch's own --wait looks rarely."""
        job = self.run("sbatch", "--parsable", *words, **more).strip()
        shown: dict[str, str] = {}

        def ended() -> bool:
            fields = self.run("scontrol", "--oneliner", "show", "job", job).split()
            shown.update(field.split("=", 1) for field in fields if "=" in field)
            return shown["JobState"] not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")

        _until(ended, self.folder, seconds)
        return f"{shown['JobState']} {shown['ExitCode']}"

    def idle(self) -> bool:
        with suppress(AssertionError):
            return self.run("sinfo", "--noheader", "--format", "%T %D").split() == ["idle", "2"]
        return False


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Started and idle; afterwards everything that it has started has ended."""
    user = psutil.Process().username()
    (folder / "state").mkdir(parents=True)
    conf, key = folder / "slurm.conf", folder / "munge.key"
    conf.write_text(_CONF.format(folder=folder, user=user, ports=free_ports(3), nodes=NODES))
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(128))
    cluster = SlurmCluster(folder)
    files = {name: folder / f"munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")}
    options = [f"--{name}={path}" for name, path in files.items()]
    with ExitStack() as stack:
        # A slurmstepd is no child of its slurmd, and outlives it where a test has given up.
        stack.callback(end_all, "SLURM_CONF", str(conf))

        def start(name: str, *words: str) -> None:
            log = stack.enter_context((folder / f"{name}-{words[-1].rpartition('/')[2]}.log").open("w"))
            daemon = subprocess.Popen(
                [str(program(name)), *words],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(_end, daemon)

        start("munged", "--foreground", "--force", f"--key-file={key}", *options)
        _until(files["socket"].exists, folder)
        start("slurmctld", "-D", "-c")
        for node in NODES:
            start("slurmd", "-D", "-N", node)
        _until(cluster.idle, folder)
        yield cluster


def _until(ready: Callable[[], bool], folder: Path, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        logs = "\n".join(f"{path.name}:\n{path.read_text()[-1000:]}" for path in folder.glob("*.log"))
        assert time.monotonic() < deadline, f"not within {seconds} s:\n{logs}"
        time.sleep(0.05)


def _end(daemon: "subprocess.Popen[bytes]") -> None:
    daemon.terminate()
    try:
        daemon.wait(5)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
