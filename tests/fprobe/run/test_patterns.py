"""Patterns that are matched again as a program loads more code."""

from __future__ import annotations

import ctypes

from fprobe.run.inside.patterns import Pattern, new_functions
from sandbox.images.library_images import LibraryImage

ctypes.CDLL("libz.so.1")


class _Gone(LibraryImage):
    asked = 0

    @property
    def is_live(self):
        _Gone.asked += 1
        return False


def test_functions_that_are_known_are_not_new():
    functions = Pattern("libz:*").found()
    assert list(new_functions(functions, {each.function.address: each for each in functions})) == []


def test_what_has_been_unloaded_is_looked_up_once_for_all_of_its_functions():
    """Looking it up lists the libraries of the process: a hundred thousand times that is minutes."""
    functions = Pattern("libz:*").found()
    before = _Gone(functions[0].image.library)
    known = {each.function.address: each._replace(image=before) for each in functions}
    assert list(new_functions(functions, known)) == functions
    assert _Gone.asked == 1
