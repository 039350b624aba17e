"""Ranks that die, leave, never come or ask for different things: ``shm_faults.py OUT`` writes what the others saw."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from crew import RUN, Crew, crew_of, free_port, in_dev_shm, mapped_memory, world, write_facts
from torch.distributed import ReduceOp

import paceline.shm
from paceline.shm import segment

SMALL, BIG = 100, 1_000_000
ODD = torch.float8_e5m2fnuz
"""A type that does not travel."""


def for_ever(rank: int, size: int, port: int, ready: int, length: int, shared: bool) -> None:
    """Reduce until somebody dies."""
    world(rank, size, port)
    tensor = paceline.shm.zeros(length) if shared else torch.zeros(length)
    dist.barrier()
    os.write(ready, b".")
    while True:
        dist.all_reduce(tensor)


def receiving(rank: int, size: int, port: int, ready: int) -> None:
    """Rank 1 is to be killed while rank 0 receives from it, rank 2 from anybody, and rank 3 sends to it."""
    world(rank, size, port)
    dist.barrier()
    os.write(ready, b".")
    if rank == 0:
        dist.recv(torch.empty(3), 1)
    if rank == 2:
        dist.recv(torch.empty(3))
    if rank == 3:
        dist.send(torch.zeros(BIG), 1)
    time.sleep(30)


def leaving(rank: int, size: int, port: int, leave: Callable[[], None]) -> None:
    """Rank 1 leaves in some way while the others reduce."""
    world(rank, size, port)
    dist.barrier()
    if rank == 1:
        time.sleep(0.3)
        leave()
        time.sleep(1)  # what it does afterwards is no matter
    else:
        dist.all_reduce(torch.zeros(SMALL))


def anew(rank: int, port: int) -> list[Any]:
    """One store, and a group that forms again and again; the second time rank 1 dies, the third is without it."""
    store = dist.TCPStore("127.0.0.1", port, 3, rank == 0)
    found: list[Any] = []
    for size in (3, 3, 2):
        place = rank if size == 3 else rank // 2
        dist.init_process_group("shm", store=store, rank=place, world_size=size, timeout=timedelta(seconds=5))
        dist.all_reduce(tensor := torch.full((SMALL,), rank + 1.0))
        found.append(tensor.max().item())
        if len(found) == 2:
            try:
                os._exit(3) if rank == 1 else dist.all_reduce(tensor)
            except paceline.shm.PeerLost as error:
                found.append(str(error))
        dist.destroy_process_group()
    return found


def interrupted(rank: int, size: int, port: int, ready: int) -> str:
    """Rank 1 catches Ctrl-C in the middle of a collective, clears up for long, and tries to go on."""
    world(rank, size, port)
    dist.barrier()
    os.write(ready, b".")
    if rank == 0:
        time.sleep(1)
    try:
        dist.all_reduce(torch.zeros(SMALL))
        if rank == 2:
            dist.all_reduce(torch.zeros(SMALL))
    except KeyboardInterrupt:
        time.sleep(0.5)
        try:
            dist.barrier()
        except paceline.shm.PeerLost as error:
            return str(error)
    return "went on"


def suicide(_: float) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop(_: float) -> None:
    raise KeyboardInterrupt


def forming(
    rank: int, size: int, port: int, victim: int, moment: str, end: Callable[[float], None] = suicide
) -> str | None:
    """The victim ends at some moment of the start; rank 2 keeps the store."""
    if rank == victim:
        real = getattr(segment, moment)

        def die(*words: Any) -> Any:
            made = real(*words)
            end(9.0)
            return made

        setattr(segment, moment, die)
    store = dist.TCPStore("127.0.0.1", port, size, rank == 2, wait_for_workers=False)
    options = paceline.shm.Options(run=RUN)
    try:
        dist.init_process_group("shm", store=store, rank=rank, world_size=size, pg_options=options)
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        assert not watching(), "whoever could not join watches nobody any more"
    return None


def watching() -> list[str]:
    """Descriptors of this process by which it watches others."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found.append(str(path.readlink()))
    return [link for link in found if "pidfd" in link]


def watched(rank: int, port: int) -> dict[str, Any]:
    """What a rank sees of the memory that it maps, and what becomes of somebody who cuts it off."""
    seen: dict[str, Any] = {"rights": [], "cut": []}
    handles: list[segment.Handle] = []
    real = segment.attach

    def look(handle: segment.Handle, size: int) -> Any:
        handles.append(handle)
        path = f"/proc/{handle.process}/fd/{handle.descriptor}"
        seen["rights"].append(oct(Path(path).stat().st_mode & 0o777))
        for length in (0, 2 * size):
            with Path(path).open("r+b") as file, suppress(PermissionError):
                seen["cut"].append(f"cut to {os.ftruncate(file.fileno(), length)}")
        return real(handle, size)

    segment.attach = look
    options = paceline.shm.Options(run=f"my run/7 {RUN}")
    dist.init_process_group(
        "shm", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, pg_options=options
    )
    dist.all_reduce(tensor := paceline.shm.zeros(BIG).add_(1))
    dist.barrier()
    seen["sum"] = [tensor.min().item(), tensor.max().item()]
    seen["mapped"] = mapped_memory()
    segment.attach = real
    seen["later"] = [refusal(handle) for handle in handles]
    dist.barrier()
    return seen


def refusal(handle: segment.Handle) -> str:
    """What becomes of somebody who comes after all have mapped it."""
    try:
        segment.attach(handle, 1)
    except segment.UntrustedSegment as error:
        return type(error).__name__
    return "mapped"


def late(rank: int, port: int, at_start: bool) -> None:
    """Rank 2 never comes: to the start, or to a collective."""
    if rank == 2 and at_start:
        time.sleep(1.3)
        return
    store = dist.TCPStore("127.0.0.1", port, 3, rank == 0, wait_for_workers=False)
    time.sleep(0.1 * rank)
    dist.init_process_group("shm", store=store, rank=rank, world_size=3, timeout=timedelta(seconds=1))
    if rank == 2:
        time.sleep(1.3)
    dist.all_reduce(torch.zeros(SMALL))


MISTAKES: dict[str, Callable[[int], Any]] = {
    "sizes": lambda rank: dist.all_reduce(torch.zeros(10 + rank)),
    "small and big": lambda rank: dist.all_reduce(torch.zeros(10 if rank else BIG)),
    "big and bigger": lambda rank: dist.all_reduce(torch.zeros(BIG + rank)),
    "types": lambda rank: dist.all_reduce(torch.zeros(10, dtype=torch.float64 if rank else torch.float32)),
    "operations": lambda rank: dist.all_reduce(torch.zeros(10), op=ReduceOp.MAX if rank else ReduceOp.SUM),
    "roots": lambda rank: dist.broadcast(torch.zeros(10), src=rank),
    "reduce roots": lambda rank: dist.reduce(torch.zeros(10), dst=rank),
    "collectives": lambda rank: dist.barrier() if rank else dist.all_reduce(torch.zeros(10)),
    "waiting or not": lambda rank: dist.all_reduce(torch.zeros(10 + rank), async_op=True).wait(),
    "futures": lambda rank: dist.all_reduce(torch.zeros(10 + rank), async_op=True).get_future().wait(),
    "mean of integers": lambda _: dist.all_reduce(torch.zeros(10, dtype=torch.int32), op=ReduceOp.AVG),
    "bits of floats": lambda _: dist.all_reduce(torch.zeros(BIG), op=ReduceOp.BAND),
    "stored only": lambda _: dist.all_reduce(torch.zeros(BIG, dtype=torch.uint16)),
    "gathered sizes": lambda rank: dist.all_gather([torch.zeros(3) for _ in range(3)], torch.zeros(3 + rank)),
    "one gathers wrongly": lambda rank: dist.all_gather([torch.zeros(4 - rank) for _ in range(3)], torch.zeros(4)),
    "single output": lambda rank: dist.all_gather_into_tensor(torch.zeros(12 + rank), torch.zeros(4)),
    "scattered sizes": lambda rank: dist.reduce_scatter(torch.zeros(4), [torch.zeros(4 + rank)] * 3),
    "root scatters wrongly": lambda rank: dist.scatter(torch.zeros(4), [torch.zeros(5)] * 3 if rank == 0 else None, 0),
    "exchange": lambda rank: dist.all_to_all([torch.zeros(2)] * 3, [torch.zeros(2 + rank)] * 3),
    "zeros": lambda rank: paceline.shm.zeros(10 + rank),
    "odd type": lambda rank: dist.all_reduce(torch.zeros(10, dtype=ODD if rank == 1 else torch.float32)),
    "odd type, big": lambda rank: dist.broadcast(torch.zeros(BIG, dtype=ODD if rank == 0 else torch.float32), 0),
    "odd type later": lambda rank: dist.all_reduce(
        torch.zeros(10, dtype=ODD if rank == 1 else torch.float32), async_op=True).wait(),
    "odd given": lambda rank: dist.all_gather_into_tensor(
        torch.zeros(9), torch.zeros(3, dtype=ODD if rank == 2 else torch.float32)),
    "odd everywhere": lambda _: dist.all_reduce(torch.zeros(10, dtype=ODD)),
    "sparse": lambda rank: dist.all_reduce(torch.eye(3).to_sparse() if rank == 1 else torch.eye(3)),
    "sparse rows": lambda rank: dist.all_reduce(torch.eye(3).to_sparse_csr() if rank == 1 else torch.eye(3)),
    "sparse in one": lambda rank: dist.reduce_scatter_tensor(
        torch.zeros(1, 3), torch.eye(3).to_sparse() if rank == 1 else torch.eye(3)),
    "odd operation": lambda rank: dist.all_reduce(
        torch.zeros(10), op=dist._make_nccl_premul_sum(2.0) if rank == 1 else ReduceOp.SUM),
    "odd zeros": lambda rank: paceline.shm.zeros(10, dtype=ODD if rank == 1 else torch.float32),
    "no length": lambda rank: paceline.shm.zeros(-1 if rank == 1 else 10),
    "half a length": lambda rank: paceline.shm.zeros(1.5 if rank == 1 else 10),
    "a shape": lambda _: paceline.shm.zeros((3, 4)),
    "a word": lambda rank: paceline.shm.zeros("a" if rank == 1 else 10),
    "a type's name": lambda _: paceline.shm.zeros(10, dtype="float32"),
    "odd message": lambda rank: dist.send(torch.zeros(3, dtype=ODD), (rank + 1) % 3),
    "odd answer": lambda rank: dist.recv(torch.zeros(3, dtype=ODD), (rank + 1) % 3),
}  # fmt: skip


def mistaken(rank: int, port: int) -> dict[str, list[str]]:
    """Each mistake's error, and whether the group is as good as new afterwards."""
    world(rank, 3, port)
    texts = {}
    for name, mistake in MISTAKES.items():
        try:
            mistake(rank)
            texts[name] = ["", "nothing was said"]
        except Exception as error:
            texts[name] = [type(error).__name__, str(error)]
        for length in (SMALL, BIG):
            dist.all_reduce(tensor := torch.full((length,), rank + 1.0))
            assert tensor.eq(6).all(), name
    return texts


class Theatre:
    """Plays scenes one after the other."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}

    def kill(
        self,
        name: str,
        work: Callable[..., Any],
        ranks: int,
        victims: tuple[int, ...] = (1,),
        by: int = signal.SIGKILL,
        **words: Any,
    ) -> None:
        """Each rank writes a byte when it is about to begin; a moment later the victims are ended."""
        port, (inward, outward) = free_port(), os.pipe()
        crew = Crew(lambda rank: work(rank, ranks, port, outward, **words), ranks)
        os.close(outward)
        begun = 0
        while begun < ranks and (chunk := os.read(inward, ranks)):
            begun += len(chunk)
        os.close(inward)
        time.sleep(0.3)
        crew.kill(*victims, by=by)
        at = time.monotonic()
        self.note(name, crew.results(8), at)

    def play(self, name: str, work: Callable[[int], Any], ranks: int) -> None:
        at = time.monotonic()
        self.note(name, crew_of(work, ranks, 8), at)

    def note(self, name: str, results: list[dict[str, Any]], at: float) -> None:
        for result in results:
            result["after"] = result.get("at", 0.0) - at
        self.facts[name] = {"ranks": results, "left": in_dev_shm()}

    def all_die(self) -> None:
        """Everybody is killed between making the memory and sharing it."""
        port, (inward, outward) = free_port(), os.pipe()

        def hang(seconds: float) -> None:
            os.write(outward, b".")
            time.sleep(seconds)

        crew = Crew(partial(forming, size=3, port=port, victim=0, moment="create", end=hang), 3)
        os.read(inward, 1)
        crew.kill(0, 1, 2)
        self.note("all die while forming", crew.results(), time.monotonic())


def fail() -> None:
    raise OSError("scripted")


def main() -> None:
    theatre = Theatre()
    theatre.kill("small", for_ever, 3, length=SMALL, shared=False)
    theatre.kill("big", for_ever, 3, length=BIG, shared=False)
    theatre.kill("in place", for_ever, 3, length=BIG, shared=True)
    theatre.kill("everybody", for_ever, 3, (0, 1, 2), length=BIG, shared=True)
    theatre.kill("receiving", receiving, 4)
    for name, leave in {
        "raises": fail,
        "destroys": dist.destroy_process_group,
    }.items():
        port = free_port()
        theatre.play(name, partial(leaving, size=3, port=port, leave=leave), 3)
    theatre.kill("interrupted", interrupted, 3, by=signal.SIGINT)
    for victim, moment in ((0, "create"), (1, "attach"), (0, "free_memory")):
        scene = partial(forming, size=3, port=free_port(), victim=victim, moment=moment)
        theatre.play(f"forming, {moment}", scene, 3)
    scene = partial(forming, size=3, port=free_port(), victim=0, moment="create", end=stop)
    theatre.play("forming, Ctrl-C", scene, 3)
    for at_start in (True, False):
        theatre.play(f"late, {at_start}", partial(late, port=free_port(), at_start=at_start), 3)
    theatre.play("anew", partial(anew, port=free_port()), 3)
    theatre.play("watched", partial(watched, port=free_port()), 2)
    theatre.play("mistaken", partial(mistaken, port=free_port()), 3)
    theatre.all_die()
    write_facts(theatre.facts)


if __name__ == "__main__":
    main()
