"""Every test leaves the text as it was loaded."""

from __future__ import annotations

import pytest
from programs import assert_untouched


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    assert_untouched()
