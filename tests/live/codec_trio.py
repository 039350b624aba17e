"""One of three workers that train with codecs that are summed in chunks: ``codec_trio.py RANK OUT PORTS``."""

import sys
from dataclasses import replace
from pathlib import Path

import torch
from codec_pair import training
from engine_pair import Process

from paceline.runtimes.live.worker.guard import leave

BACKENDS = ("shm", "gloo")
CODECS = {"int8": "int8", "sign": "sign", "dense": "top-k:ratio=0.45"}
"""The messages of the last are longer than the vector, so that its sums are sent as they are."""
SETTINGS = {
    name: replace(training(name, codec), batch_sizes=(7, 5, 4), iterations=6)
    for name, codec in CODECS.items()
}


def main(rank: int, out: Path, ports: list[int]) -> None:
    torch.set_num_threads(1)
    process = Process(rank, out, ports, workers=3)
    for backend in BACKENDS:
        for name, chosen in SETTINGS.items():
            process.run(f"{name}-{backend}", settings=chosen, backend=backend)
    leave(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), [int(port) for port in sys.argv[3].split(",")])
