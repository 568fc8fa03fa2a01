"""Putting assembly text together from blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping


def with_blocks(text: str, blocks: Mapping[str, str]) -> str:
    """Put blocks in, leaving `$$` and the names of constants, which are capitals, for the last step."""
    for name, block in blocks.items():
        text = re.sub(rf"\${name}\b", block.replace("\\", r"\\"), text)
    return text
