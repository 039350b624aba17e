"""``paceline explain`` as it is typed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.collectives import SCHEDULES
from refusals import check_refused

MISTAKES = {
    "explain rign": "unknown schedule 'rign'; did you mean 'ring'?",
    "explain ring --op maxx": "unknown operation 'maxx'; did you mean 'max'?",
    "explain ring --workers 0": "workers 0 is out of range",
    "explain ring --workers -3": "workers -3 is out of range",
    "explain ring --workers 17": "17 workers are too many to draw: choose at most 16; as JSON, up to 32",
    "explain ring --workers 33 --json": "33 workers are too many for one JSON document: choose at most 32",
    "explain ring --workers 1000000000": "1000000000 workers are too many to draw",
    "explain ring --hosts 1000000000,2": "1000000002 workers are too many to draw",
    "explain ring --length 65": "65 values per worker are too many to draw",
    "explain ring --length 0": "length 0 is out of range",
    "explain ring -np 16 --segments 8": "128 values per worker are too many to draw",
    "explain ring --segments 9": "segments 9 is out of range",
    "explain ring --values '1 2; 3'": "rows of 2, 1 values",
    "explain ring --values '1 2; 3 4' --workers 3": "2 rows for 3 workers",
    "explain ring --values '1 two; 3 4'": "'two' is not a number",
    "explain ring --values '1 nan; 3 4'": "'nan' is not a number",
    "explain ring --values ''": "there is no value",
    "explain ring --values '1;2' --length 3": "length 3 cannot be used with values",
    "explain ring --values '1e308; 1e308'": "too large",
    "explain hierarchical --hosts 2,0": "hosts 2,0",
    "explain hierarchical --hosts two": "hosts two",
    "explain hierarchical --hosts 2,2 --workers 5": "hosts 2,2 have 4 workers and 5 workers were asked for",
    "explain ring --seed -1": "seed -1 is out of range",
    "explain ring --html nowhere/x.html": "nowhere/x.html cannot be written",
    "explain ring --html /dev/null": "/dev/null is no file that can be replaced",
    "explain --op max": "which schedule?",
    "explain --codec top-k": "which schedule?",
    "explain ring --codec topk": "unknown codec 'topk'; did you mean 'top-k'?",
    "explain ring --codec top-k:ratoi=1": "did you mean 'ratio'?",
    "explain ring --codec top-k --op max": "op max cannot be used with a codec",
    "explain tree --codec top-k": "schedule 'tree' cannot be used with codec 'top-k'",
    "explain ring --codec top-k --length 65": "65 values per worker are too many to draw",
    "explain ring --codec top-k --values '1e39 1; 1 1'": "too large for 32-bit numbers",
    "explain ring --codec half:memory=all": "memory=all",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_in_explain_is_one_sentence_with_exit_code_2(command, tmp_path, monkeypatch, capsys):
    check_refused(command, MISTAKES[command], tmp_path, monkeypatch, capsys)


def test_without_a_name_every_schedule_is_listed_with_a_sentence(capsys):
    assert main(["explain"]) == 0
    text = capsys.readouterr().out
    assert main(["explain", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["schema"] == 1
    assert list(listed["entries"]) == list(SCHEDULES)
    for name, entry in listed["entries"].items():
        assert name in text
        assert entry["help"].endswith(".")


def test_the_same_words_give_the_same_text(capsys):
    texts = []
    for words in (
        "explain ring --op max",
        "explain ring --op max --workers 4 --seed 1",
        "explain ring --op max --seed 2",
    ):
        assert main(words.split()) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_json_is_one_document_with_the_whole_story(capsys):
    assert main(["explain", "ring", "--op", "max", "--values", "-5 2; 3 -8.5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (stage,) = told["stages"]
    assert (told["schema"], told["workers"], told["codec"]) == (3, 2, "identity")
    assert stage["columns"] == ["chunk 0", "chunk 1"]
    assert stage["start"]["cells"] == [[[-5], [2]], [[3], [-8.5]]]
    assert stage["steps"][0]["messages"][0] == {
        "source": 0,
        "target": 1,
        "start": 0,
        "stop": 1,
        "on_receive": "reduce",
        "cells": [[-5]],
        "bytes": 4,
    }
    assert told["result"] == [3, 2]
    assert told["agreed"] is True


def test_a_schedule_of_ones_own_is_explained_by_import_path(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "collectives.md").read_text()
    (source,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "def line" in block]
    Path("my_schedules.py").write_text(source)
    assert main(["explain", "my_schedules.py:line", "--workers", "3"]) == 0
    assert "A line: sums run to the last rank" in capsys.readouterr().out


def test_the_page_is_one_file_that_loads_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["explain", "tree", "--html", "tree.html", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["schedule"] == "tree"
    assert "tree.html" in printed.err
    text = (tmp_path / "tree.html").read_text()
    for loader in ("src=", "@import", "url(http", "fetch(", "XMLHttpRequest", "import("):
        assert loader not in text
    assert [path.name for path in tmp_path.iterdir()] == ["tree.html"]


@pytest.mark.parametrize("words", [["-h"], ["ring"], ["ring", "--codec", "topk"]], ids=" ".join)
def test_explain_without_a_codec_does_not_import_torch(words):
    script = (
        "import sys; from paceline.cli.main import main; "
        f"main(['explain', *{words}]); print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "False"
