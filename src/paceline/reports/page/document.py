"""A page of the report: the answer, its key figures, findings, and sections of charts, tables and texts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import takewhile
from math import isfinite
from typing import Any

from paceline.reports.page.markup import Markup, element, joined, json_script
from paceline.reports.page.palette import colour_rules

MOST_TABLE_ROWS = 200
"""Of a chart's data that stand beside it as a table; the chart itself holds all of them."""
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """Texts in columns; the first column names the row."""

    caption: str
    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1
    """How many columns, from the first on, are words and no numbers."""

    def html(self) -> Markup:
        head = element(
            "tr",
            [
                element("th", title, scope="col", class_=self._kind(place))
                for place, title in enumerate(self.titles)
            ],
        )
        body = [
            element("tr", [self._cell(place, cell) for place, cell in enumerate(row)]) for row in self.rows
        ]
        whole = element(
            "table", element("caption", self.caption), element("thead", head), element("tbody", body)
        )
        return element("div", whole, class_="scrolls", role="region", aria_label=self.caption, tabindex="0")

    def _kind(self, place: int) -> str | None:
        return None if place < self.texts else "number"

    def _cell(self, place: int, cell: str) -> Markup:
        if place == 0:
            return element("th", cell, scope="row")
        return element("td", cell, class_=self._kind(place))


@dataclass(frozen=True, kw_only=True)
class LegendEntry:
    name: str
    colour: str
    line: str = ""
    """Empty for an area, else the dashes of a line as SVG writes them."""

    def html(self) -> Markup:
        if not self.line:
            return element("li", element("i", style=f"background: {self.colour}"), self.name)
        stroke = element(
            "line",
            x1="0",
            y1="5",
            x2="26",
            y2="5",
            stroke=self.colour,
            stroke_width="3",
            stroke_dasharray=self.line,
        )
        return element("li", element("svg", stroke, width="26", height="10", aria_hidden="true"), self.name)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart with its title, what it shows in a sentence, its legend, and its data as a table."""

    name: str
    """Of the element on the page; unique there."""
    title: str
    sentence: str
    spec: Mapping[str, Any] = field(repr=False)
    """Vega-Lite, without its data."""
    rows: tuple[Row, ...] = field(repr=False)
    """What is plotted."""
    columns: Mapping[str, str]
    """Fields of the rows that the table shows, to their titles with units."""
    legend: tuple[LegendEntry, ...] = ()
    zooms: str = ""
    """The field that wheel, drag and keys zoom; empty for none."""

    def html(self) -> Markup:
        legend = element("ul", [one.html() for one in self.legend], class_="legend", aria_label="Colours")
        return element(
            "figure",
            element("h3", self.title),
            element("p", self.sentence, class_="about"),
            legend if self.legend else None,
            element(
                "div", class_="chart", id=self.name, role="img", aria_label=f"{self.title}. {self.sentence}"
            ),
            self._zoom() if self.zooms else None,
            element("details", element("summary", "The data as a table"), self.table().html()),
        )

    def _zoom(self) -> Markup:
        moves = {"in": "zoom in", "out": "zoom out", "left": "earlier", "right": "later", "all": "show all"}
        buttons = [
            element("button", words, type="button", data_zoom=move, data_of=self.name, data_field=self.zooms)
            for move, words in moves.items()
        ]
        return element("div", buttons, class_="zoom", role="group", aria_label="Zoom")

    def table(self) -> PageTable:
        shown = self.rows[:MOST_TABLE_ROWS]
        cut = len(self.rows) - len(shown)
        left = f" (the first {len(shown)} of {len(self.rows):,} rows)" if cut else ""
        return PageTable(
            caption=f"{self.title}{left}",
            titles=tuple(self.columns.values()),
            rows=tuple(tuple(table_cell(row.get(name)) for name in self.columns) for row in shown),
            texts=self._texts(),
        )

    def _texts(self) -> int:
        """How many columns, from the first on, are words in the first row."""
        first = self.rows[0] if self.rows else {}
        return len(list(takewhile(lambda name: isinstance(first.get(name), str), self.columns)))


def table_cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@dataclass(frozen=True, kw_only=True)
class FigureTabs:
    """Figures of which one group is shown at a time."""

    name: str
    label: str
    tabs: Mapping[str, tuple[Figure, ...]]

    def html(self) -> Markup:
        first = next(iter(self.tabs))
        choices = [
            element(
                "label",
                element(
                    "input",
                    type="radio",
                    name=self.name,
                    value=f"{self.name}-{place}",
                    checked=title == first,
                ),
                element("span", title),
            )
            for place, title in enumerate(self.tabs)
        ]
        groups = [
            element(
                "div",
                [one.html() for one in figures],
                class_="pair",
                id=f"{self.name}-{place}",
                hidden=bool(place),
            )
            for place, figures in enumerate(self.tabs.values())
        ]
        switch = element("fieldset", element("legend", self.label), choices, class_="tabs")
        return joined(switch, groups)

    def figures(self) -> tuple[Figure, ...]:
        return tuple(one for figures in self.tabs.values() for one in figures)


@dataclass(frozen=True, kw_only=True)
class FigureGrid:
    """Small figures side by side."""

    members: tuple[Figure, ...]

    def html(self) -> Markup:
        return element("div", [one.html() for one in self.members], class_="pair small")

    def figures(self) -> tuple[Figure, ...]:
        return self.members


@dataclass(frozen=True)
class Paragraph:
    text: str

    def html(self) -> Markup:
        return element("p", self.text)


@dataclass(frozen=True)
class CommandLine:
    """Something to type, with a button that copies it."""

    text: str

    def html(self) -> Markup:
        return element(
            "div",
            element("code", self.text, tabindex="0"),
            element("button", "copy", type="button", data_copy=True),
            class_="command",
        )


PageBlock = PageTable | Figure | FigureTabs | FigureGrid | Paragraph | CommandLine


@dataclass(frozen=True, kw_only=True)
class PageSection:
    title: str
    blocks: tuple[PageBlock, ...]

    def html(self, number: int) -> Markup:
        heading = element("h2", self.title, id=f"section-{number}")
        blocks = [block.html() for block in self.blocks]
        return element("section", heading, blocks, aria_labelledby=f"section-{number}")


@dataclass(frozen=True, kw_only=True)
class ReportPage:
    kind: str
    """What is reported, in two or three words above the title."""
    title: str
    about: str
    """Of what, in one line."""
    answer: str
    """In one sentence."""
    numbers: tuple[tuple[str, str], ...] = ()
    """Key figures: what, and how much."""
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader must know of the measurement itself."""
    sections: tuple[PageSection, ...] = ()

    def figures(self) -> Iterator[Figure]:
        for block in (block for section in self.sections for block in section.blocks):
            match block:
                case Figure():
                    yield block
                case FigureTabs() | FigureGrid():
                    yield from block.figures()


def render_page(page: ReportPage) -> str:
    """A whole HTML file that loads nothing."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        Markup('<link rel="icon" href="data:,">'),
        element("title", f"{page.title} - paceline"),
        Markup(f"<style>\n{_style()}</style>"),
    )
    sections = [section.html(number) for number, section in enumerate(page.sections, start=1)]
    body = element(
        "body",
        element(
            "main", _header(page), _summary(page), sections, element("footer", "Made by paceline report.")
        ),
        element(
            "noscript",
            element("p", "The charts of this page are drawn by JavaScript, which is switched off."),
        ),
        json_script("charts", _charts(list(page.figures()))),
        Markup(f"<script>{drawing_library()}</script>\n<script>\n{_asset('report.js')}</script>"),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _header(page: ReportPage) -> Markup:
    themes = [
        element(
            "label",
            element("input", type="radio", name="theme", value=value, checked=value == "auto"),
            element("span", value),
        )
        for value in ("auto", "light", "dark")
    ]
    switch = element("fieldset", element("legend", "Colours of the page"), themes, class_="tabs theme")
    names = element(
        "div", element("p", page.kind, class_="kind"), element("h1", page.title), element("p", page.about)
    )
    return element("header", names, switch)


def _summary(page: ReportPage) -> Markup:
    numbers = [element("div", element("dt", what), element("dd", value)) for what, value in page.numbers]
    findings = element("ul", [element("li", one) for one in page.findings], class_="findings")
    return element(
        "section",
        element("h2", "Summary", id="summary"),
        element("p", page.answer, class_="answer"),
        element("dl", numbers, class_="numbers") if numbers else None,
        joined(element("h3", "Findings"), findings) if page.findings else None,
        [element("p", note, class_="note") for note in page.notes],
        class_="summary",
        aria_labelledby="summary",
    )


def _charts(figures: Sequence[Figure]) -> dict[str, Any]:
    """Every chart by its name; charts of the same rows share them. Rows are written by column: fewer bytes."""
    names: dict[int, str] = {}
    data: dict[str, Any] = {}
    charts = {}
    for figure in figures:
        name = names.setdefault(id(figure.rows), f"rows-{len(names)}")
        data.setdefault(name, _columns(figure.rows))
        charts[figure.name] = {"rows": name, "spec": figure.spec}
    return {"rows": data, "charts": charts}


def _columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    fields = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [_number(row.get(name)) for row in rows] for name in fields}


def _number(value: Any) -> Any:
    """As JSON has it, with six figures: a screen shows no more, and a file of many charts stays small."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if isfinite(value) else None


def _style() -> str:
    light, dark = (f"{colour_rules(dark)}" for dark in (False, True))
    return _asset("report.css").replace("/* light colours */", light).replace("/* dark colours */", dark)


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text("utf-8")


@cache
def drawing_library() -> str:
    """Vega, Vega-Lite and vega-embed as one script, from the wheel of vl-convert: nothing is loaded."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace(
        "</script", "<\\/script"
    )
