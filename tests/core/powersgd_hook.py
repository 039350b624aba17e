"""One rank of torch's own PowerSGD hook on given gradients, over Gloo: ``powersgd_hook.py FOLDER RANK``."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook


class Bucket:
    """What the hook asks of a bucket; each step has one."""

    def __init__(self, flat, shapes):
        self._flat, self._shapes = flat, shapes

    def index(self):
        return 0

    def is_last(self):
        return True

    def buffer(self):
        return self._flat

    def gradients(self):
        sizes = [torch.Size(shape).numel() for shape in self._shapes]
        return [part.view(shape) for part, shape in zip(self._flat.split(sizes), self._shapes, strict=True)]


def main(folder, rank):
    torch.set_num_threads(1)
    given = torch.load(folder / "given.pt")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    state = PowerSGDState(
        None, matrix_approximation_rank=given["rank"], start_powerSGD_iter=2, min_compression_rate=1
    )
    state.iter = 2
    state.p_memory_dict[0], state.q_memory_dict[0] = given["p"], given["q"]
    results = []
    for gradients in given["gradients"]:
        found = powerSGD_hook(state, Bucket(gradients[rank].clone(), given["shapes"])).wait()
        results.append((found.clone(), state.error_dict[0].clone()))
    torch.save(results, folder / f"rank{rank}.pt")
    dist.barrier()
    os._exit(0)  # Gloo's threads, which run the hook's futures, may abort a process that ends in order


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
