"""accelerate over shared memory: `torchrun --nproc-per-node 2 examples/places/accelerate_loop.py`."""

import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline.shm  # noqa: F401  makes "shm" a backend that torch knows

dist.init_process_group("shm")  # before the Accelerator, which takes the group that it finds
accelerator = Accelerator(cpu=True)

torch.manual_seed(1)
inputs = torch.randn(1024, 16)
data = TensorDataset(inputs, nn.Linear(16, 4)(inputs).argmax(1))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(data, batch_size=16, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(2):
    for batch, targets in loader:
        loss = nn.functional.cross_entropy(model(batch), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
found = accelerator.gather(loss.detach()).mean().item()
if accelerator.is_main_process:
    sys.stdout.write(f"{accelerator.num_processes} processes, {dist.get_backend()}: loss {found:.4f}\n")
accelerator.end_training()
