"""A red and blue flame graph of two sets of stacks, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape

from fprobe.report.durations import duration

_WIDTH, _HEIGHT, _TOP, _LETTER = 1200, 18, 44, 6.6
_LEAST = 0.3
_STYLE = """<style>
  :root { color-scheme: light dark; }
  .back { fill: white; } text { fill: #222; }
  .longer { fill: hsl(0 85% 68%); } .shorter { fill: hsl(235 85% 72%); } .same { fill: #bbb; }
  @media (prefers-color-scheme: dark) {
    .back { fill: #1b1b1d; } text { fill: #e4e4e4; } .longer { fill: hsl(0 70% 42%); } .shorter { fill: hsl(235 65% 52%); }
    .same { fill: #777; }
  }
</style>"""
"""The strength of a colour is its opacity over what is behind: the same in light and dark."""
"""Frames that are narrower, in pixels, are not drawn."""


@dataclass
class _Frame:
    """`width`: the larger of both times, summed over stacks, so that nothing that is gone is hidden."""

    name: str
    before: float = 0.0
    after: float = 0.0
    width: float = 0.0
    inner: dict[str, _Frame] = field(default_factory=dict)

    def add(self, before: float, after: float) -> None:
        self.before += before
        self.after += after
        self.width += max(before, after)

    @property
    def paint(self) -> str:
        """Red where it grew, blue where it shrank, stronger with the share of the larger time."""
        share = (self.after - self.before) / max(self.after, self.before, 1e-9)
        kind = "longer" if share > 0 else "shorter" if share else "same"
        return f'class="{kind}" fill-opacity="{0.2 + 0.8 * abs(share):.2f}"'

    @property
    def title(self) -> str:
        change = self.after - self.before
        share = f", {100 * change / self.before:+.1f} %" if self.before else ", only in B"
        share = ", only in A" if self.before and not self.after else share
        return f"{self.name}: {duration(self.before)} -> {duration(self.after)}{share}"


def svg(before: Mapping[tuple[str, ...], float], after: Mapping[tuple[str, ...], float], title: str) -> str:
    """The graph. Both map frames, outermost first, to nanoseconds in the innermost of them."""
    root = _Frame("all")
    for frames in sorted({*before, *after}):
        one, other = before.get(frames, 0.0), after.get(frames, 0.0)
        root.add(one, other)
        at = root
        for name in frames:
            at = at.inner.setdefault(name, _Frame(name))
            at.add(one, other)
    depth = max(map(len, (*before, *after)), default=0) + 1
    height = _TOP + depth * _HEIGHT + 4
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="11">'
    )
    words = "width: the larger of both times; red: longer in B, blue: shorter"
    return "\n".join(
        [
            head,
            _STYLE,
            f'<rect class="back" width="{_WIDTH}" height="{height}"/>',
            f'<text x="4" y="16" font-size="14">{escape(title)}</text>',
            f'<text x="4" y="34">{escape(root.title)} ({words})</text>',
            *_drawn(root, 0.0, _WIDTH / root.width if root.width else 0.0, 0),
            "</svg>",
            "",
        ]
    )


def _drawn(root: _Frame, left: float, scale: float, depth: int) -> Iterator[str]:
    """The frame and those inside, each below the one that calls it. Without recursion: stacks may be deep."""
    waiting = [(root, left, depth)]
    while waiting:
        frame, left, depth = waiting.pop()
        width = frame.width * scale
        if width < _LEAST:
            continue
        top = _TOP + depth * _HEIGHT
        letters = int((width - 4) / _LETTER)
        name = frame.name if len(frame.name) <= letters else f"{frame.name[: max(letters - 1, 0)]}…"
        text = f'<text x="{left + 2:.1f}" y="{top + 12}">{escape(name)}</text>' if letters > 2 else ""
        box = f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_HEIGHT - 1}" rx="2" {frame.paint}/>'
        yield f"<g><title>{escape(frame.title)}</title>{box}{text}</g>"
        for inner in frame.inner.values():
            waiting.append((inner, left, depth + 1))
            left += inner.width * scale
