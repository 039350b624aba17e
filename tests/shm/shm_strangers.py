"""Another user writes to a plain script's store: ``shm_strangers.py OUT`` writes what became of ranks and files."""

import fcntl
import json
import os
import signal
import sys
import time
import warnings
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from crew import RUN, crew_of, write_facts

import paceline.shm
from paceline.shm import segment
from paceline.shm.arena import ArenaLayout
from paceline.shm.group_store import GroupStore

NOBODY = 65534
PREFIX = "0//cpu//1"
"""Torch's name of the first group's keys, and ours of its first forming."""
HIDDEN = "\x1b[2J\x1b]0;owned\x07"
"""What clears a terminal and renames its window."""
SIZE = ArenaLayout(2).end + segment.PAGE
TOKEN = "ab" * segment.TOKEN


class Bystander:
    """A process of the user that has things open, and files that nobody may touch: here it is this script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file, self.big = folder / "thesis.tex", folder / "big"
        self.file.write_bytes(b"years of work")
        self.big.write_bytes(bytes.fromhex(TOKEN).ljust(SIZE, b"x"))  # as a segment looks like, but a file
        (folder / "link").symlink_to(self.file)
        self._opened = [self.file.open("r+b"), self.big.open("r+b")]

    def state(self) -> dict[str, Any]:
        """What there is to see of the files."""
        return {
            path.name: [path.read_bytes().hex()[:100], path.stat().st_size, path.stat().st_mtime_ns]
            for path in sorted(self.folder.iterdir())
            if path.exists()  # not a link to what is gone
        }

    def handles(self) -> dict[str, Any]:
        """Handles of the right form that lead to something else."""
        null, (pipe, _) = os.open("/dev/null", os.O_RDWR), os.pipe()
        found = {
            "a file": self._opened[0].fileno(),
            "a file like a segment": self._opened[1].fileno(),
            "a device": null,
            "a pipe": pipe,
            "a strange memfd": memory("somebody-else"),
            "one that can be cut off": memory("paceline-run_0", seals=0),
            "another group's": memory("paceline-run_0"),
            "a small one": memory("paceline-run_0", size=4096),
            "nothing": 2**20,
        }
        return {
            name: {
                "process": os.getpid(),
                "descriptor": number,
                "token": b64encode(bytes.fromhex(TOKEN)).decode(),
            }
            for name, number in found.items()
        }


def memory(name: str, seals: int = 7, size: int = SIZE) -> int:
    made = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    os.ftruncate(made, size)
    os.pwrite(made, b"another token", 0)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, seals)
    return made


@contextmanager
def stranger(port: int, scene: str, values: dict[str, Any]) -> Iterator[None]:
    """Another user on this host, who connects to the store and sets keys before any rank does."""
    inward, outward = os.pipe()
    if (process := os.fork()) == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        store = dist.PrefixStore(f"{scene}/{PREFIX}", dist.TCPStore("127.0.0.1", port))
        for key, value in values.items():
            store.set(key, value if isinstance(value, bytes) else json.dumps(value))
        os.write(outward, b".")
        time.sleep(60)
    os.read(inward, 1)
    try:
        yield
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(inward)
        os.close(outward)


def rank_of(rank: int, port: int, scene: str, forged: str) -> dict[str, Any]:
    """A rank of a plain script; the one whose word is forged says its own once another has read the forgery."""
    store = dist.PrefixStore(scene, dist.TCPStore("127.0.0.1", port))
    real = GroupStore.write

    def tell(group_store: GroupStore, name: str, value: Any) -> None:
        if f"{name}/{rank}" == forged:
            until_read(store, {"loss", "mapped/1"} - {forged})
        real(group_store, name, value)

    GroupStore.write = tell
    time.sleep(0.5 if (forged, rank) == ("loss", 1) else 0.0)  # whoever waits for it looks for a loss
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", FutureWarning)
        options = paceline.shm.Options(run=RUN)
        limit = timedelta(seconds=5)
        dist.init_process_group(
            "shm", store=store, rank=rank, world_size=2, timeout=limit, pg_options=options
        )
        dist.all_reduce(tensor := torch.ones(10))
    return {"sum": tensor.sum().item(), "heard": [str(warning.message) for warning in heard]}


def until_read(store: dist.Store, answers: set[str]) -> None:
    """Until another rank has said what it makes of the forgery; not for ever."""
    end = time.monotonic() + 5
    while time.monotonic() < end and not any(store.check([f"{PREFIX}/{key}"]) for key in answers):
        time.sleep(0.01)


def scenes(bystander: Bystander) -> dict[str, dict[str, Any]]:
    """What the stranger sets, by what it is."""
    offers = {
        "an old name": {"name": str(bystander.file)},
        "an old name of a link": {"name": str(bystander.folder / "link")},
        **bystander.handles(),
        "huge": "x" * 5_000_000,
        "no JSON": HIDDEN.encode(),
        "deep": b"[" * 4000,
        "escapes": HIDDEN + "no room",
    }
    others = {
        "a member": {"member/1": {"name": str(bystander.file)}},
        "an answer": {"mapped/1": [HIDDEN]},
        "loss": {"loss": f"over{HIDDEN}".encode()},
    }
    return {name: {"table/0": offer} for name, offer in offers.items()} | others


def main() -> None:
    folder = Path(sys.argv[1]) / "home"
    folder.mkdir()
    bystander = Bystander(folder)
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    facts: dict[str, Any] = {"before": bystander.state(), "scenes": {}}
    for scene, values in scenes(bystander).items():
        with stranger(store.port, scene, values):
            (forged,) = values
            work = partial(rank_of, port=store.port, scene=scene, forged=forged)
            facts["scenes"][scene] = {"ranks": crew_of(work, 2, 20), "files": bystander.state()}
    write_facts(facts)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
