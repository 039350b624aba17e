"""accelerate and transformers with the shared-memory backend."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from places.processes import run_ranks


@pytest.mark.skipif(
    find_spec("accelerate") is None, reason="accelerate is not installed: pip install '.[places]'"
)
def test_accelerate_trains_over_shared_memory(tmp_path: Path) -> None:
    import accelerate  # noqa: F401  once here, and not in every fork

    shown = run_ranks("accelerate_loop.py", tmp_path)
    assert "2 processes, shm: loss " in shown
    assert float(shown.split("loss ")[1]) < 1.0


@pytest.mark.skipif(
    not (find_spec("accelerate") and find_spec("transformers")),
    reason="accelerate or transformers is not installed: pip install '.[places]'",
)
def test_the_trainer_of_transformers_trains_over_shared_memory(tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM, Trainer  # noqa: F401  once here, and not in every fork

    shown = run_ranks("transformers_trainer.py", tmp_path)
    assert "2 processes, shm: loss " in shown
    assert float(shown.split("shm: loss ")[1]) < 3.0  # of 64 tokens: 4.2 at first
