"""Write docs/conformance.md."""

from __future__ import annotations

from tests.conformance.page import FILE, page

FILE.write_text(page())
print(f"wrote {FILE}")
