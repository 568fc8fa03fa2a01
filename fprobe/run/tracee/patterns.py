"""Patterns of functions, such as `libz:inflate*`, matched again as the program loads more code."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from fprobe.run.tracee import brought
from ftrace.core.filters.image_functions import ImageFunction, find_functions, images_meant, is_compiled
from sandbox.images import other_forms
from sandbox.images.image import Image
from sandbox.images.process_text import symbol_at
from sandbox.loading.module import modules
from sandbox.symbols.file_names import in_events
from sandbox.symbols.libraries import Library, elsewhere, libraries
from sandbox.symbols.names import is_glob, name_of_python, names_owner, split_owner


class Pattern:
    """A pattern and the functions that match it. Owner and name may both be globs; without an owner it matches modules only.

    In a program that is not Python it then matches the program's own functions.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        program = host_program()
        if program is not None and not split_owner(text)[1]:
            text = f"{in_events(program.name)}:{text}"  # its name may have a colon, or signs of globs
        self.meant = text
        """The same with the program's name before it, where it has none."""
        self.reason = ""
        """Why nothing matches, as a sentence."""
        self.remark = ""
        """What to say though functions match."""
        self._is_found = False
        self._searched: list[tuple[Image, int]] | None = None
        self._elsewhere = 0
        self._functions: list[ImageFunction] = []
        owner, colon, _ = split_owner(text)
        self._names_one = bool(colon) and not is_glob(owner) and not is_compiled(text)

    @property
    def is_settled(self) -> bool:
        """Whether no further function can match: the pattern names one library, which is loaded."""
        return self._is_found and self._names_one

    def found(self) -> list[ImageFunction]:
        """The functions that match now. They are looked up again only if the images that the pattern names have changed."""
        images = [(image, image.edition) for image in self._images()]
        if images == self._searched and elsewhere() == self._elsewhere:
            return self._functions
        self._searched, self._elsewhere = images, elsewhere()
        self._functions = self._search()
        return self._functions

    def _images(self) -> list[Image]:
        owner, colon, _ = split_owner(self.meant)
        return list(images_meant(owner if colon else None))

    def _search(self) -> list[ImageFunction]:
        if not self._searched and not names_owner(self.meant):  # searching for similar names takes seconds
            advice = name_of_python(self.text) or other_forms.advice(self.text)
            advice = advice or f"a function of a library is written {_with_library(self.text)}"
            self.reason = f"the program has loaded no module; {advice}"
            return []
        try:
            functions = self._of_program(find_functions(self.meant))
        except LookupError as error:
            self.reason = str(error.args[0]) + self._if_stripped()
            return []
        self._is_found, self.reason = True, ""
        self._notice_ours(functions)
        return functions

    def _notice_ours(self, functions: list[ImageFunction]) -> None:
        """The library may be there only since this interpreter has come: nothing in the program calls it then."""
        images = {each.image for each in functions}
        if host_program() is not None and images and all(map(_has_come_with_us, images)):
            names = ", ".join(sorted(image.name for image in images))
            self.remark = f"[{names}] is here since fprobe came: the program itself had not loaded it"

    def _of_program(self, functions: list[ImageFunction]) -> list[ImageFunction]:
        """Those that are not of a library that has come with us: no glob means one. Raises LookupError if none is left."""
        owner = split_owner(self.meant)[0]
        if host_program() is None or not is_glob(owner):
            return functions
        found = [each for each in functions if not _has_come_with_us(each.image)]
        if not found:
            raise LookupError(f"no library of the program that {owner!r} means has such a function")
        return found

    def _if_stripped(self) -> str:
        """What explains that the program has no function of that name."""
        program = host_program()
        if (
            program is None
            or not program.is_stripped
            or [image.name for image, _ in self._searched or ()] != [program.name]
        ):
            return ""
        return f"; {program.name} is stripped: functions that it does not export are called {program.name}+0xOFFSET"


def _with_library(text: str) -> str:
    """The pattern with a colon after the library, which other tools write with other signs."""
    found = re.fullmatch(r"(lib[\w+-]+)(?:\.so[.\d]*)?[.!`](\w+)", text)
    return f"{found[1]}:{found[2]}" if found else f"libNAME:{text}"


class FileLine(Pattern):
    """A line of a source file, `app.c:42`: the function that its code is in."""

    def _images(self) -> list[Image]:
        return list(images_meant("*"))

    def _search(self) -> list[ImageFunction]:
        from sandbox.images.source_places import address_of_line, split_line

        written = split_line(self.text)
        assert written is not None
        try:
            symbol = symbol_at(address_of_line(*written))
        except LookupError as error:
            self.reason = str(error.args[0])
            return []
        assert symbol is not None
        self.meant = f"{in_events(symbol.module)}:{symbol.name}"
        return super()._search()


@cache
def host_program() -> Library | None:
    """The program that this interpreter was brought into; None if the program is Python."""
    if not brought.is_here():
        return None
    return next((library for library in libraries() if library.is_program), None)


@cache
def _brought_along() -> list[int]:
    """Where the code begins of the interpreter in such a program, and of each library that has come with it."""
    found = libraries()
    begun = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value
    first = next((index for index, library in enumerate(found) if begun in library), len(found))
    return [start for library in found[first:] for start, _ in library.text[:1]]


def _has_come_with_us(image: Image) -> bool:
    library = getattr(image, "library", None)
    if library is not None and Path(os.__file__).parent in library.path.parents:  # a module that is imported later
        return True
    return any(start in image for start in _brought_along())


def new_functions(functions: Iterable[ImageFunction], known: dict[int, ImageFunction]) -> Iterator[ImageFunction]:
    """The functions that are not in `known`, or whose address was in an image that has been unloaded since."""
    is_live: dict[Image, bool] = {}
    for each in functions:
        before = known.get(each.function.address)
        if before is None:
            yield each
        elif before.image is not each.image:
            if before.image not in is_live:
                is_live[before.image] = before.image.is_live
            if not is_live[before.image]:
                yield each


def plain_values(functions: Iterable[ImageFunction]) -> list[tuple[int, str, str, str]]:
    """The functions as plain values, for the launcher: address, name, image, and types of arguments that distinguish it."""
    return [
        (each.function.address, each.function.name, each.image.name, each.image.argument_types(each.function))
        for each in functions
    ]


def described(library: Library, *, is_gone: bool) -> list[Any]:
    """A library as a list of plain values, for another process: name, path, file, load address, text ranges, marks, symbols.

    `is_gone`: its file is not there any more, or is another one: then its symbols are told, by name, offset and size.
    """
    marks = [(at, mark.hex()) for at, mark in library.marks]
    symbols = [(each.name, each.address - library.base, each.size) for each in library.symbols] if is_gone else []
    file = re.sub("^/proc/(?:self|thread-self)(?=/)", f"/proc/{os.getpid()}", str(library.file))
    return [library.name, str(library.path), file, library.base, library.text, marks, symbols]


def compiled_code() -> Iterator[tuple[str, str, int, int]]:
    """The functions of JIT compilers and of the sandbox's modules: name, image, first address, and the one after the last."""
    from sandbox.images import compiled

    for image in compiled.source.images():
        names = {function.address: function.name for function in image.functions}
        for symbol in image.object.functions:
            yield names.get(symbol.address, symbol.name), image.name, symbol.address, symbol.end
    for module in modules():
        yield from ((symbol.name, module.name, symbol.address, symbol.end) for symbol in module.functions)
