from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="module")
def machine():
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("the stand-in kernel is in C")
    # pytest imports this file before its faulthandler's handlers are installed, which have to be below ours.
    from tests.golden.machine import Machine

    made = Machine()
    yield made
    made.close()
