"""A trace knows which module an operator belongs to and when each gradient is ready."""

import subprocess
import sys

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from paceline.costs.trace.trace import trace
from small_models import cnn, images, words

QUIET = """
import sys
from paceline.costs.trace.trace import trace
from paceline.jobs.build import traceable_of
for name in ("resnet18", "resnet50", "alexnet", "inception-v3", "gpt2-small"):
    trace(traceable_of(name, optimizer="adamw"), 4)
    print(name, *(one for one in ("torch._dynamo", "sympy") if one in sys.modules))
"""


def test_neither_the_compiler_nor_sympy_is_imported() -> None:
    """They take seconds to import, more than all the rest of a prediction."""
    done = subprocess.run(
        [sys.executable, "-c", QUIET], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["resnet18", "resnet50", "alexnet", "inception-v3", "gpt2-small"]


def test_operators_belong_to_the_module_that_called_them_in_both_directions() -> None:
    """A table by layer would show backward elsewhere than forward."""
    traced = trace(words(), 2)
    forward = {(one.name, one.module) for one in traced.forward}
    backward = {(one.name, one.module) for one in traced.backward}
    assert ("addmm", "blocks.1.qkv") in forward
    assert ("mm", "blocks.1.qkv") in backward
    assert ("gelu", "blocks.0.feed.2") in forward
    assert ("gelu_backward", "blocks.0.feed.2") in backward
    assert ("_log_softmax", "loss") in forward
    assert ("_log_softmax_backward_data", "loss") in backward
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    assert (attention, "blocks.0") in forward
    assert (f"{attention}_backward", "blocks.0") in backward
    assert ("add_", "blocks.1.qkv") in backward  # its gradient, added to what is there


def test_gradients_are_ready_from_the_last_layer_to_the_first() -> None:
    """Buckets fill in this order while backward goes on."""
    traced = trace(images(cnn), 2)
    ready = {one.name: one.ready for one in traced.parameters}
    layers = [
        max(ready[name] for name in ready if name.startswith(f"{layer}.")) for layer in (12, 7, 5, 4, 1, 0)
    ]
    assert layers == sorted(set(layers))
    assert layers[-1] == len(traced.backward)
    assert layers[0] < 10


def test_a_shared_parameter_is_ready_after_its_last_use() -> None:
    """The embedding is used first and last; half its gradient would be reduced."""
    traced = trace(words(), 2)
    names = [one.name for one in traced.parameters]
    assert "words.weight" in names
    assert "head.weight" not in names
    assert traced.parameters[0].ready == len(traced.backward)


def test_a_parameter_that_backward_never_reaches_is_ready_at_the_end() -> None:
    """The live runtime waits for it until backward is over."""

    class Unused(nn.Sequential):
        def forward(self, pictures: Tensor) -> Tensor:
            result: Tensor = self[1](self[0](pictures))
            return result

    traced = trace(images(lambda: Unused(nn.Flatten(), nn.Linear(432, 10), nn.Linear(5, 5))), 1)
    assert [one.ready == len(traced.backward) for one in traced.parameters] == [True, False, True, True]


def test_a_checkpointed_module_runs_its_forward_again_in_backward() -> None:
    """Checkpoints trade time for memory, and the time must be counted."""

    def inner() -> tuple[nn.Module, ...]:
        return nn.Linear(432, 20), nn.Tanh(), nn.Linear(20, 20)

    class Again(nn.Sequential):
        def forward(self, pictures: Tensor) -> Tensor:
            result: Tensor = self[2](checkpoint(self[1], self[0](pictures), use_reentrant=False))
            return result

    traced = trace(images(lambda: Again(nn.Flatten(), nn.Sequential(*inner()), nn.Linear(20, 10))), 1)
    again = [(one.name, one.module) for one in traced.backward if one.name in ("addmm", "tanh")]
    assert again == [("addmm", "1.0"), ("tanh", "1.1")]
    assert ("mm", "1.0") in {(one.name, one.module) for one in traced.backward}
