"""The page on Python: every block runs, in order, as typed; no page imports from inside the package."""

import re
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.loop.process import check_script, script_settings
from paceline.specs import ObjectSpec

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "api.md"
INSIDE = re.compile(r"^(?:from|import) paceline\.(?!shm(?:\s|$))(\S+)", re.M)


def test_every_block_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) > 5
    for number, block in enumerate(blocks):
        exec(compile(block, f"api.md, block {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert "batch_size 0 is out of range: it must be 1 to 10,000,000" in printed
    assert "where a step went" in printed
    assert names["page"].exists()
    assert {row["strategy"] for row in names["compared"].rows} == {"all-reduce", "Baton(period=8)"}
    baton = ObjectSpec.of(names["Baton"](period=8))
    # docs/your-script.md gives it to distribute()
    check_script(script_settings("script.py", baton, "identity", (8, 8)), servers=False)


def test_the_page_names_every_function():
    table = PAGE.read_text().partition("## All functions")[2]
    functions = {
        name
        for name in paceline.__all__
        if name.islower()
        and name != "__version__"
        and getattr(paceline, name).__module__.startswith("paceline.api")
    }
    assert [name for name in sorted(functions) if f"`{name}" not in table] == []


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.py")],
    ids=lambda page: page.name,
)
def test_no_page_needs_more_than_the_public_names(page):
    """Whatever a user's code imports from deeper inside would be a bug of the API."""
    assert INSIDE.findall(page.read_text()) == []
