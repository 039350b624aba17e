"""What the pages on compression show must be what the program does."""

import re
import shlex
from pathlib import Path

import pytest
from safetensors.torch import load_file
from test_docs import shown

from command import run_json, run_paceline
from paceline.cli.main import main, make_app
from paceline.codecs import CODECS, build_codec

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "codecs.md").read_text()
TABLE = PAGE[PAGE.index("## The codecs") : PAGE.index("**Chains.**")]
ROWS = {row[1]: row[0] for row in re.finditer(r"^\| `([\w-]+)[:\w=.]*` \|.*\|$", TABLE, re.M)}
COMMANDS = re.findall(r"^paceline (.*)$", PAGE, re.M)


@pytest.mark.parametrize("name", CODECS)
def test_the_table_says_what_each_codec_is(name):
    *_, exchange, memory, _ = (cell.strip() for cell in ROWS[name].split("|"))
    codec = build_codec(name)
    assert codec.sums == ("summed on the way" in exchange or exchange.startswith("P summed"))
    assert codec.requantises == ("encoded again" in exchange)
    assert codec.varies == exchange.startswith("lengths first")
    assert memory.endswith({"error": "on", "none": "off"}[codec.memory]) or name == "identity"


def test_every_codec_that_is_named_can_be_built():
    for spec in re.findall(r"--codec ([\w.:=,-]+)", PAGE):
        if "cyclic" not in spec:
            build_codec(spec)


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_is_understood(words):
    make_app().parse_args(shlex.split(words, comments=True), exit_on_error=False, print_error=False)


def test_the_codec_on_the_page_is_trained_simulated_predicted_and_explained(tmp_path):
    (tmp_path / "cyclic.py").write_text(shown("codecs.md", "class Cyclic"))
    options = ("--model", "mlp", "--workers", "2", "--iterations", "20", "--codec", "cyclic.py:Cyclic:n=4")
    models = []
    for command in ("train", "simulate"):
        run = run_json(command, *options, cwd=tmp_path)
        models.append(load_file(tmp_path / run["run"]["folder"] / "model.safetensors"))
    assert all(bool((models[0][name] == models[1][name]).all()) for name in models[0])
    asked = ("predict", "resnet18", "--device", "t4", "--network", "1gbit", "--workers", "8", "--codec")
    steps = [
        run_json(*asked, codec, cwd=tmp_path)["series"][0]["rows"][0]["step"]
        for codec in ("identity", "cyclic.py:Cyclic")
    ]
    assert steps[1] < steps[0]
    text = run_paceline("explain", "ring", "--codec", "cyclic.py:Cyclic:n=2", cwd=tmp_path).stdout
    assert "Send every n-th element, others in each round." in text


def test_the_explanation_on_the_page_is_what_is_printed(capsys):
    page = (DOCS / "explain.md").read_text()
    (block,) = re.findall(r"\$ paceline explain ring --codec top-k\n(.*?)```", page, re.S)
    assert main(["explain", "ring", "--codec", "top-k"]) == 0
    printed = capsys.readouterr().out
    for part in block.split("...\n"):
        assert part in printed
