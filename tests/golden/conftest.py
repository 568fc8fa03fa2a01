from __future__ import annotations

import shutil

import pytest

from tests.golden.machine import Machine


@pytest.fixture(scope="module")
def machine():
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("the stand-in kernel is in C")
    made = Machine()
    yield made
    made.close()
