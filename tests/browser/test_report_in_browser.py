"""The report in a real browser: drawn from a file, without a network and without a complaint, in light and dark."""

import json
import shutil
import time
from pathlib import Path

import pytest

from paceline.reports.page.build import write_report

GOLDEN = Path(__file__).parents[1] / "golden"

DRAWN = """
const charts = [...document.querySelectorAll(".chart")].filter((one) => !one.closest("[hidden]"));
return {
  done: document.body.dataset.drawn === "all",
  charts: charts.length,
  empty: charts.filter((one) => !one.querySelector("svg .role-mark *")).map((one) => one.id),
  marks: Object.fromEntries(charts.map((one) => [one.id, one.querySelectorAll("svg .role-mark path").length])),
  wide: document.documentElement.scrollWidth > innerWidth,
  theme: document.documentElement.dataset.theme,
  ink: getComputedStyle(document.body).color,
  requests: performance.getEntriesByType("resource").map((one) => one.name),
};
"""
DOMAIN = "return [...document.querySelectorAll('#timeline .role-axis-label text')].map((one) => one.textContent).sort()"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name in ("all-reduce", "served"):
        shutil.copytree(GOLDEN / name, folder / name)
        write_report([folder / name], None, lambda _: "paceline train --seed 1")
    shutil.copytree(GOLDEN / "scaling", folder / "scaling")
    write_report([folder / "scaling"], None, lambda _: "")
    write_report([folder / "served", folder / "all-reduce"], folder / "both.html", lambda _: "")
    return folder


def drawn(browser):
    until = time.monotonic() + 20
    while not (found := browser.run(DRAWN))["done"] and time.monotonic() < until:
        time.sleep(0.05)
    assert found["done"]
    return found


@pytest.mark.parametrize(
    "page", ["all-reduce/report.html", "served/report.html", "scaling/report.html", "both.html"]
)
def test_every_chart_is_drawn_and_nothing_is_loaded(browser, pages, page):
    for scheme, width in (("light", 1200), ("dark", 390)):
        browser.show(width, scheme=scheme)
        browser.visit(pages / page)
        found = drawn(browser)
        assert found["charts"] >= 2
        assert found["empty"] == []
        assert found["theme"] == scheme
        assert not found["wide"], f"the page is wider than {width} pixels"
        assert found["requests"] == []
        assert browser.errors() == []


def test_tabs_theme_and_zoom_do_what_they_say(browser, pages):
    browser.show(1200)
    browser.visit(pages / "all-reduce" / "report.html")
    assert "loss-time" in drawn(browser)["marks"]
    for place, name in ((1, "samples"), (2, "bytes")):
        browser.click(f"input[value=learning-{place}]")
        marks = drawn(browser)["marks"]
        assert marks[f"loss-{name}"] > 0
        assert "loss-time" not in marks
    light = browser.run(DRAWN)["ink"]
    browser.click(".theme input[value=dark]")
    assert browser.run(DRAWN)["theme"] == "dark"
    assert browser.run(DRAWN)["ink"] != light
    whole = browser.run(DOMAIN)
    browser.click("[data-zoom=in]")
    time.sleep(0.2)
    assert browser.run(DOMAIN) != whole, "a shorter stretch of time is shown"
    browser.click("[data-zoom=all]")
    time.sleep(0.2)
    assert browser.run(DOMAIN) == whole
    assert browser.errors() == []


def test_the_page_can_be_read_without_eyes(browser, pages):
    browser.visit(pages / "served" / "report.html")
    drawn(browser)
    headings = browser.run(
        "return [...document.querySelectorAll('h1, h2, h3')].map((one) => one.tagName).join(' ')"
    )
    assert headings.startswith("H1 H2 H3")
    unnamed = (
        "[...document.querySelectorAll('.chart')].filter((one) => !one.getAttribute('aria-label')).length"
    )
    assert browser.run(f"return {unnamed}") == 0
    tables = browser.run(
        "return [...document.querySelectorAll('figure')].every((one) => one.querySelector('table th'))"
    )
    assert tables, "every chart has its data as a table"


def test_a_hostile_name_runs_nothing(browser, tmp_path):
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    shutil.copytree(GOLDEN / "served", folder)
    env = json.loads((folder / "env.json").read_text())
    (folder / "env.json").write_text(json.dumps({**env, "cpu": "</script><script>alert(1)</script>"}))
    write_report([folder], tmp_path / "page.html", lambda _: "<script>alert(1)</script>")
    browser.visit(tmp_path / "page.html")
    drawn(browser)
    assert browser.run("return document.querySelectorAll('img, main script').length") == 0
    assert browser.run("return document.querySelector('h1').textContent") == folder.name
    assert browser.errors() == []
