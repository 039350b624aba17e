"""What a learner reads: plain when piped, the same words in colour on a terminal, never wider than the page."""

import io
import re

import pytest
from rich.console import Console

from paceline.collectives import SCHEDULES
from paceline.reports.explain.explanation import explain
from paceline.reports.explain.render import explanation_lines, print_explanation
from paceline.reports.explain.request import DRAWN, ExplainRequest

MATRIX = "5 2 9 1; 3 8 4 7; 6 1 2 9; 4 7 3 8"

FIRST_ROUND = """\
share-reduce, round 1 of 3
Every process sends one chunk to its right neighbour; the receiver keeps the larger of it and what it holds.
      chunk 0   chunk 1   chunk 2   chunk 3
  p0  [5]        2         9         1 -> 8   sends chunk 0 -> p1,  receives chunk 3 from p3: max(1, 8) = 8
  p1   3 -> 5   [8]        4         7        sends chunk 1 -> p2,  receives chunk 0 from p0: max(3, 5) = 5
  p2   6         1 -> 8   [2]        9        sends chunk 2 -> p3,  receives chunk 1 from p1: max(1, 8) = 8
  p3   4         7         3 -> 3   [8]       sends chunk 3 -> p0,  receives chunk 2 from p2: max(3, 2) = 3
  afterwards 0 of 16 chunks are finished
"""

ENDING = """
result (max): 6 8 9 9, held by all 4 processes
6 rounds, 24 messages
each process sends 6 values (24 B as float32), the least possible for the busiest: ceil(2 x 3/4 x 4) = 6
"""


def printed(request: ExplainRequest, width: int = 120, terminal: bool = False) -> str:
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=terminal,
        color_system="standard" if terminal else None,
        highlight=False,
    )
    print_explanation(explain(request, DRAWN), console)
    return out.getvalue()


def test_the_worked_case_reads_as_the_sketch():
    text = printed(ExplainRequest(schedule="ring", op="max", values=MATRIX))
    assert text.startswith("4 processes, 4 values each in 4 chunks.\nThe ring: ")
    assert FIRST_ROUND in text
    assert text.endswith(ENDING)
    assert text.count("round 1 of 3") == 2


def test_piped_text_is_plain_ascii_without_trailing_blanks():
    for name in SCHEDULES:
        text = printed(ExplainRequest(schedule=name, op="mean", workers=5))
        assert text.isascii()
        assert "\x1b" not in text
        assert not re.search(r" $", text, re.M)


def test_a_terminal_shows_the_same_words_in_colours():
    request = ExplainRequest(schedule="ring", op="max", values=MATRIX)
    coloured = printed(request, terminal=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == printed(request)
    assert "\x1b[1;36m[5]" in coloured, "what travels"
    assert "\x1b[1;33m5" in coloured, "what just changed"
    assert "\x1b[32m9*" in coloured, "what is finished"


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", ["ring", "halving-doubling", "hierarchical"])
def test_tables_are_cut_where_the_terminal_ends(name, width):
    story = explain(ExplainRequest(schedule=name, op="sum", workers=8), DRAWN)
    tables = [line.plain for line in explanation_lines(story, width) if re.match(r"  p\d  ", line.plain)]
    assert tables
    assert max(map(len, tables)) <= width


def test_columns_keep_their_place_in_all_rounds():
    text = printed(ExplainRequest(schedule="ring", op="product", workers=6))
    heads = [line for line in text.splitlines() if line.lstrip().startswith("chunk 0")]
    assert len(heads) == 10
    assert len(set(heads)) == 1


def test_one_process_is_told_so():
    text = printed(ExplainRequest(schedule="tree", workers=1, values="4 2"))
    assert "4 2, held from the start: 1 process has nothing to send" in text


def test_hosts_are_named():
    text = printed(ExplainRequest(schedule="hierarchical", hosts="2,1"))
    assert "host 0: p0, p1; host 1: p2\n" in text
    assert "4 of them between hosts" in text


def test_one_is_told_as_one_and_several_as_several():
    text = printed(ExplainRequest(schedule="halving-doubling", workers=4, length=2))
    assert "swaps 2 chunks with a partner; the receiver adds them to what it holds." in text
    assert "swaps one chunk with a partner; the receiver adds it to what it holds." in text
    assert "- is a chunk without values" in text
    assert printed(ExplainRequest(schedule="ring", workers=1, length=1)).startswith("1 process, 1 value.\n")
    assert "without values" not in printed(ExplainRequest(schedule="ring", workers=2))
