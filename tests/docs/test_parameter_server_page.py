"""What the page on the parameter server shows must be what the program does."""

import json
import re
from pathlib import Path

import pytest

from paceline import specs
from paceline.records.servers import entry_from_json, entry_to_json
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


def test_the_lines_of_a_log_on_the_page_are_read_and_written_so():
    (block,) = re.findall(r"```json\n(.*?)```", PAGE, re.S)
    lines = [json.loads(line) for line in block.splitlines()]
    assert [entry_to_json(entry_from_json(line)) for line in lines] == lines
