"""Pieces of SVG files that need no script and follow the reader's choice of a light or a dark page."""

from collections.abc import Sequence
from html import escape

LIGHT = ("#0b62a4", "#c2410c", "#15803d", "#7e22ce", "#b91c1c", "#0f766e", "#a16207", "#4b5563")
DARK = ("#60a5fa", "#fb923c", "#4ade80", "#c084fc", "#f87171", "#2dd4bf", "#facc15", "#9ca3af")
DASHES = ("none", "6 3", "2 3", "8 3 2 3")
"""Tell apart what overlaps, or what has the same colour."""


def svg_page(width: float, height: float, body: Sequence[str]) -> str:
    """A whole file; elements of class c0, c1, ... have the colours, "grid" and "reference" the greys."""
    newline = "\n"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="13">\n<style>\n'
        f"{_rules('#ffffff', '#1f2937', '#6b7280', '#e5e7eb', LIGHT)}\n@media (prefers-color-scheme: dark) {{\n"
        f"{_rules('#0f172a', '#e5e7eb', '#9ca3af', '#334155', DARK)}\n}}\n</style>\n"
        f'<rect class="paper" width="{width}" height="{height}"/>\n{newline.join(body)}\n</svg>\n'
    )


def _rules(paper: str, ink: str, grey: str, grid: str, colours: Sequence[str]) -> str:
    fixed = (
        f".paper {{ fill: {paper} }} text {{ fill: {ink} }} text.grey {{ fill: {grey} }} "
        f".grid {{ stroke: {grid} }} .reference {{ stroke: {grey} }}"
    )
    curves = [f".c{place} {{ fill: {one}; stroke: {one} }}" for place, one in enumerate(colours)]
    return "\n".join([fixed, *curves])


def colour_class(place: int) -> str:
    return f"c{place % len(LIGHT)}"


def svg_points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)


def svg_line(x1: float, y1: float, x2: float, y2: float, kind: str, dashes: str = "none") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke-dasharray="{dashes}"/>'


def svg_circle(x: float, y: float, kind: str, radius: float = 3.5) -> str:
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'


def svg_text(x: float, y: float, words: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(words)}</text>'
