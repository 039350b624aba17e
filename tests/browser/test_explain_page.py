"""The page of ``paceline explain`` in a real browser: what it shows is what happened, whichever way one steps."""

import json
import time
from itertools import pairwise

import pytest

from paceline.reports.explain.explanation import explain
from paceline.reports.explain.render import page, write_page
from paceline.reports.explain.request import DRAWN, ExplainRequest
from paceline.reports.explain.sentences import cell

MATRIX = "5 2 9 1; 3 8 4 7; 6 1 2 9; 4 7 3 8"

SHOWN = """
const read = (selector) => [...document.querySelectorAll("tbody tr")].map(
  (row) => [...row.querySelectorAll(".cell")].map((cell) => cell.querySelector(selector).textContent));
const marked = (name) => [...document.querySelectorAll(`.cell.${name}`)].map(
  (cell) => [Number(cell.dataset.rank), Number(cell.dataset.chunk)]);
return {
  now: read(".now"), old: read(".old"), sent: marked("sent"), changed: marked("changed"), done: marked("done"),
  arrows: document.querySelectorAll("#drawn path").length,
  title: document.getElementById("title").textContent,
  counter: document.getElementById("counter").textContent,
  slider: Number(document.getElementById("slider").value),
  received: [...document.querySelectorAll("#received li")].map((line) => line.textContent),
};
"""


@pytest.fixture
def ring():
    return explain(ExplainRequest(schedule="ring", op="max", values=MATRIX), DRAWN)


def texts(moment):
    return [[str(int(value)) for value in row] for row in moment.values]


def check(shown, story, position):
    """All that is on the page, against the story."""
    if position == 0:
        assert shown["now"] == texts(story.stages[0].start)
        assert (shown["arrows"], shown["sent"], shown["changed"]) == (0, [], [])
        return
    before, step = story.stages[0].states[position - 1 : position + 1]
    assert shown["now"] == texts(step)
    assert shown["old"] == texts(before)
    assert shown["arrows"] == len(step.messages)
    finished = [[rank, chunk] for rank in range(4) for chunk in range(4) if step.finished(rank, chunk)]
    assert shown["sent"] == sorted([m.source, m.start] for m in step.messages)
    assert shown["changed"] == sorted([m.target, m.start] for m in step.messages)
    assert shown["done"] == finished
    assert shown["title"] == f"{step.phase}, round {(position - 1) % 3 + 1} of 3"
    assert shown["counter"] == f"round {position} of 6"
    assert shown["slider"] == position
    assert len(shown["received"]) == 4


def test_every_way_of_stepping_shows_what_happened(browser, ring, tmp_path):
    write_page(ring, tmp_path / "ring.html")
    browser.visit(tmp_path / "ring.html")
    check(browser.run(SHOWN), ring, 0)
    for position in range(1, 7):
        browser.click("#forward")
        check(browser.run(SHOWN), ring, position)
    assert browser.run(SHOWN)["now"] == [["6", "8", "9", "9"]] * 4, "the column maxima"
    for move, position in (("#forward", 6), ("#back", 5), ("#first", 0), ("#back", 0), ("#last", 6)):
        browser.click(move)
        check(browser.run(SHOWN), ring, position)
    for key, position in (("home", 0), ("right", 1), ("right", 2), ("left", 1), ("end", 6), ("left", 5)):
        browser.press(key)
        check(browser.run(SHOWN), ring, position)
    browser.run("document.getElementById('slider').focus()")
    browser.press("left")
    check(browser.run(SHOWN), ring, 4)
    plays_to_the_end(browser)
    check(browser.run(SHOWN), ring, 6)
    assert browser.errors() == []


def plays_to_the_end(browser):
    """From two rounds before the end it takes one pause, and stops by itself."""
    browser.run("document.activeElement.blur()")
    browser.press("space")
    until = time.monotonic() + 10
    while browser.run("return document.body.dataset.position") != "6" and time.monotonic() < until:
        time.sleep(0.1)
    assert browser.run("return document.getElementById('play').getAttribute('aria-pressed')") == "false"


def test_stepping_through_the_stages_of_a_codec_shows_each(browser, tmp_path):
    story = explain(ExplainRequest(schedule="ring", codec="int8:memory=error"), DRAWN)
    write_page(story, tmp_path / "int8.html")
    browser.visit(tmp_path / "int8.html")
    there = []
    for stage in story.stages:
        for before, step in pairwise(stage.states):
            browser.press("right")
            shown = browser.run(SHOWN)
            assert shown["old"] == [[cell(one) for one in row] for row in before.cells]
            assert shown["now"] == [[cell(one) for one in row] for row in step.cells]
            assert shown["title"].endswith(step.title)
            assert shown["arrows"] == len(step.messages)
            assert shown["received"] == [one.text for one in step.received]
            there.append(shown)
    for shown in reversed(there):
        assert browser.run(SHOWN) == shown, "the way back shows the same"
        browser.press("left")
    assert browser.run("return document.getElementById('title').textContent") == "At the start"
    assert browser.errors() == []


CASES = {
    "one process": ExplainRequest(schedule="ring", workers=1),
    "nine in a tree": ExplainRequest(schedule="tree", workers=9, op="mean"),
    "hosts": ExplainRequest(schedule="hierarchical", hosts="3,2,1", op="mean"),
    "swaps": ExplainRequest(schedule="halving-doubling", workers=5),
    "empty chunks": ExplainRequest(schedule="ring", values="1; 2; 3"),
    "a pipeline": ExplainRequest(schedule="ring", workers=3, segments=2),
    "entries": ExplainRequest(schedule="ring", codec="top-k:memory=none"),
    "merged entries": ExplainRequest(schedule="ring", codec="top-k:ratio=0.5,memory=none"),
    "levels": ExplainRequest(schedule="ring", codec="int8", op="mean"),
    "rounded": ExplainRequest(schedule="hierarchical", codec="half", hosts="2,1"),
    "long numbers": ExplainRequest(schedule="one-to-all", values="1234567.25 -2e7 3.14159; 5 -6.5 1e12"),
}


def test_every_kind_of_story_ends_with_its_result(browser, tmp_path):
    for name, request in CASES.items():
        story = explain(request, DRAWN)
        write_page(story, tmp_path / "page.html")
        browser.visit(tmp_path / "page.html")
        browser.press("end")
        shown = browser.run(SHOWN)
        assert len(shown["done"]) == story.workers * len(story.stages[-1].columns), name
        assert all(row == shown["now"][0] for row in shown["now"]), name
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), (
            f"{name}: wider than the window"
        )
        assert browser.errors() == [], name


LAYOUT = """
const board = document.getElementById("board"), more = document.getElementById("more");
const last = [...document.querySelectorAll("tbody .cell")].at(-1);
const scrolls = board.scrollWidth > board.clientWidth;
const hinted = Boolean(more && !more.hidden && more.offsetHeight > 0 && more.textContent.includes("scroll"));
board.scrollLeft = board.scrollWidth;
const seen = last.getBoundingClientRect(), frame = board.getBoundingClientRect();
const names = document.querySelector("th.process").getBoundingClientRect();
return {
  scrolls, hinted, page: document.documentElement.scrollWidth <= innerWidth,
  reached: seen.right <= frame.right + 1 && seen.left >= frame.left,
  named: names.left >= frame.left - 1 && names.right <= frame.right,
};
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_column_is_in_view_or_is_said_to_be_elsewhere(browser, tmp_path, scheme):
    """If this failed, a reader would take the columns on the screen for all that there are."""
    for workers in (2, 4, 8, 16):
        write_page(explain(ExplainRequest(schedule="ring", workers=workers), DRAWN), tmp_path / "page.html")
        for width in (390, 800, 1200, 1600):
            browser.show(width, scheme=scheme)
            browser.visit(tmp_path / "page.html")
            found, case = browser.run(LAYOUT), f"{workers} workers at {width} px"
            assert found["page"], f"{case}: the page is wider than the window"
            assert found["hinted"] == found["scrolls"], f"{case}: {found}"
            assert found["reached"], f"{case}: the last column cannot be reached"
            assert found["named"], f"{case}: whose row it is cannot be seen"
            if (workers, width) in ((4, 390), (8, 800), (16, 1200), (16, 1600)):
                assert not found["scrolls"], f"{case}: there is room for all columns"
        assert browser.errors() == []


def test_no_text_can_end_the_data(monkeypatch):
    hostile = "</script><script>alert(1)</script><!-- $style"
    monkeypatch.setattr("paceline.reports.explain.sentences.about", lambda name: (hostile, "how"))
    text = page(explain(ExplainRequest(schedule="ring"), DRAWN))
    assert hostile not in text
    data = text.split('id="story">')[1].split("</script>")[0]
    assert json.loads(data)["about"] == hostile
