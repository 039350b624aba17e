"""Lightning over shared memory: `python examples/places/lightning_ddp.py`; Lightning starts the second process."""

import sys

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import paceline.shm  # noqa: F401  makes "shm" a backend that torch knows


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


torch.manual_seed(1)
inputs = torch.randn(1024, 16)
loader = DataLoader(TensorDataset(inputs, nn.Linear(16, 4)(inputs).argmax(1)), batch_size=16, shuffle=True)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(process_group_backend="shm"),
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Classifier(), loader)
if trainer.is_global_zero:
    sys.stdout.write(f"{trainer.world_size} processes, {torch.distributed.get_backend()}: ")
    sys.stdout.write(f"loss {trainer.callback_metrics['loss']:.4f}\n")
