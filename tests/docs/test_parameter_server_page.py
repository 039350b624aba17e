"""What the page on the parameter server shows must be what the program does."""

import re
from pathlib import Path

import pytest

from paceline import specs
from paceline.records.files import encode_line
from paceline.records.servers import read_server_log
from paceline.strategies import STRATEGIES

PAGE = (Path(__file__).parents[2] / "docs" / "parameter-server.md").read_text()
SPECS = sorted(set(re.findall(r"(?:--strategy |`)((?:ps|ssp|async)(?::[\w=.,]+)?)\b", PAGE)))


@pytest.mark.parametrize("spec", SPECS)
def test_every_strategy_on_the_page_can_be_built(spec):
    specs.build(spec, STRATEGIES, "strategy")


def test_the_page_names_every_dial():
    assert {"ps", "ps:backup=1", "ssp:staleness=3", "async", "async:every=0.05"} <= set(SPECS)
    for dial in re.findall(r"`(\w+)=(?:true|false)`", PAGE):
        specs.build(f"async:{dial}=true", STRATEGIES, "strategy")


def test_the_lines_of_a_log_on_the_page_are_read_and_written_so(tmp_path):
    (block,) = re.findall(r"```json\n(.*?)```", PAGE, re.S)
    (tmp_path / "server-0.jsonl").write_text(block)
    assert (
        "".join(encode_line(entry).decode() for entry in read_server_log(tmp_path / "server-0.jsonl"))
        == block
    )
