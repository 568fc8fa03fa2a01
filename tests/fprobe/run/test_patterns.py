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


def test_code_that_a_jit_compiler_makes_while_the_program_runs_is_probed(launch):
    source = """
    import ctypes
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(codemodel="small", reloc="pic")
    module = binding.parse_assembly("define i64 @triple(i64 %a) { %r = mul i64 %a, 3  ret i64 %r }")
    engine = binding.create_mcjit_compiler(module, machine)
    triple = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(engine.get_function_address("triple"))
    print(triple(14), triple(2))
    """
    done = launch("--stat", "jit:triple", source=source)
    assert (done.out, done.functions()["triple"]["hits"]) == ("42 6\n", 2)
