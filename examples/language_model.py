"""A small language model of characters: tied weights, warm-up and cosine with every step, the text of a licence."""

import argparse
import math
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--text", type=Path, default=Path(__file__).parents[1] / "LICENSE")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--context", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--strategy")
arguments = parser.parse_args()


class Windows(Dataset[Tensor]):
    """Pieces of a text, each with one character more than the context."""

    def __init__(self, text: Tensor, context: int) -> None:
        self.text, self.context = text, context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, place: int) -> Tensor:
        return self.text[place * self.context : (place + 1) * self.context + 1]


class LanguageModel(nn.Module):
    def __init__(self, characters: int, context: int, width: int = 32) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(context, width)
        self.block = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters, bias=False)
        self.head.weight = self.characters.weight
        nn.init.normal_(self.characters.weight, std=0.1)

    def forward(self, inputs: Tensor) -> Tensor:
        found = self.characters(inputs) + self.places(torch.arange(inputs.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1])
        return self.head(self.norm(self.block(found, src_mask=mask, is_causal=True)))


torch.manual_seed(1)
text = arguments.text.read_text()
known = sorted(set(text))
numbers = torch.tensor([known.index(one) for one in text])
cut = len(numbers) * 9 // 10
loader = DataLoader(Windows(numbers[:cut], arguments.context), arguments.batch_size, shuffle=True)
unseen = Windows(numbers[cut:], arguments.context)
test = torch.stack([unseen[place] for place in range(len(unseen))])
model = LanguageModel(len(known), arguments.context)
optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, weight_decay=0.01)

worker = paceline.distribute(model, optimizer, strategy=arguments.strategy)
shard = worker.shard(loader)
steps = arguments.epochs * len(shard)
warm_up = max(1, steps // 10)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min((step + 1) / warm_up, (1 + math.cos(math.pi * step / steps)) / 2)
)


def loss_of(batch: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


for epoch in range(arguments.epochs):
    for batch in shard:
        loss_of(batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
    with worker.central_model(), torch.no_grad():
        perplexity = loss_of(test).exp().item()
    if worker.rank == 0:
        sys.stdout.write(f"epoch {epoch + 1}: perplexity {perplexity:.2f}\n")
