"""Arguments, results and exceptions of functions that Numba has compiled, as Python handlers see them."""

from __future__ import annotations

import pytest
from isolation import NUMBA, isolated
from later import later

from sandbox.images.numba.layout import Word, places

later("numba", "numba is not installed: `pip install fprobe[targets]`; it has no wheels for some Pythons")


def test_words_are_where_the_calling_convention_puts_them():
    words = [Word(str(i), "i64", 64) for i in range(5)] + [Word("x", "double", 64), Word("flag", "i1", 1)]
    assert [place.register or place.vector for place in places(words)][:4] == ["dx", "cx", "r8", "r9"]
    assert [(p.vector, p.stack) for p in places(words)[4:]] == [(-1, 8), (0, 0), (-1, 16)]


@pytest.mark.stress
@isolated(modules=NUMBA, timeout=120)
def test_arguments_results_and_exceptions_are_what_the_program_has():
    import numpy as np
    from numba import njit

    import fprobe
    import fprobe.numba

    @njit
    def mixed(x, a, flag, n, s, t, z):
        if n < 0:
            raise ValueError("negative")
        return x * a.sum() + a.shape[1] + n + t[0] + t[1] + (1 if flag else 0) + z.imag + z.real + (s == "hey")

    @njit
    def rows(a, k):
        return a[k:]

    @njit
    def perhaps(n):
        return None if n > 3 else n

    @njit
    def same(s, unused):
        return s

    @njit
    def shaped(a, unused):
        return a.shape[0], a[0], True

    seen, ended = [], []

    def entry(fp, ip, ret_ip, regs, data):
        seen.append(fprobe.numba.arguments(ip, regs, data))

    def exit(fp, ip, ret_ip, regs, data):
        ended.append(fprobe.numba.outcome(ip, regs, data))

    def run():
        seen.clear(), ended.clear()
        mixed(2.5, table, True, 7, "hey", (1, 2.0), 3 + 4j)
        with pytest.raises(ValueError, match="negative"):
            mixed(2.5, table, True, -7, "hey", (1, 2.0), 3 + 4j)
        rows(table, 0), perhaps(1), perhaps(5), same("ab€", "u"), shaped(shorts, table)

    table, shorts = np.arange(6.0).reshape(2, 3), np.arange(3, 9, 2, dtype=np.int16)
    run()
    names = f"numba:{__name__}.test_arguments_results_and_exceptions_are_what_the_program_has.<locals>.*"
    with fprobe.attach(names, entry=entry, exit=exit, entry_data_size=fprobe.numba.DATA_SIZE) as probe:
        run()
    assert probe.fp.errors.first is None
    first = seen[0]
    array = first.pop("a")
    assert first == {"x": 2.5, "flag": True, "n": 7, "s": "hey", "t": (1, 2.0), "z": 3 + 4j}
    assert (array.shape, array.strides, array.data, str(array.dtype)) == ((2, 3), (24, 8), table.ctypes.data, "float64")
    assert array.asarray().tolist() == table.tolist()
    assert seen[1]["n"] == -7
    assert [one["n"] for one in seen if list(one) == ["n"]] == [1, 5]
    assert seen[5] == {"s": "ab€", "unused": fprobe.numba.NOT_PASSED}
    assert seen[6]["a"].asarray().tolist() == [3, 5, 7]
    assert seen[6]["unused"].data is None
    with pytest.raises(ValueError, match="do not pass them"):
        seen[6]["unused"].asarray()
    assert ended[0].result == 2.5 * 15 + 3 + 7 + 3 + 1 + 7 + 1
    assert repr(ended[1].exception) == "ValueError('negative')"
    assert (ended[2].result.shape, ended[3], ended[4]) == ((2, 3), (1, None), (None, None))
    assert (ended[5].result, ended[6].result) == ("ab€", (3, 3, True))


@isolated(modules=NUMBA, timeout=120)
def test_what_has_no_signature_is_said():
    import fprobe.numba

    with pytest.raises(LookupError, match="no function of Numba begins at 0x10"):
        fprobe.numba.signature(0x10)
