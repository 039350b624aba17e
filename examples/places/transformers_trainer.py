"""transformers' Trainer over shared memory: `torchrun --nproc-per-node 2 examples/places/transformers_trainer.py`."""

import sys

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import paceline.shm  # noqa: F401  makes "shm" a backend that torch knows

dist.init_process_group("shm")  # before the TrainingArguments, which take the group that they find

torch.manual_seed(1)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
)


class Counting(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Sequences that count on from some token."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (torch.arange(16) + index) % config.vocab_size
        return {"input_ids": tokens, "labels": tokens}


arguments = TrainingArguments(
    output_dir="transformers-out",
    use_cpu=True,
    per_device_train_batch_size=8,
    num_train_epochs=2,
    learning_rate=1e-2,
    save_strategy="no",
    report_to=[],
    ddp_find_unused_parameters=False,
    disable_tqdm=True,
)
trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Counting())
result = trainer.train()
if trainer.is_world_process_zero():
    sys.stdout.write(
        f"{arguments.world_size} processes, {dist.get_backend()}: loss {result.training_loss:.4f}\n"
    )
dist.destroy_process_group()
