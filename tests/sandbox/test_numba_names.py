"""Numba's symbols and the names that users gave."""

from __future__ import annotations

import pytest

from sandbox.images.numba.mangling import nested_name, user_name

TAGS = "B2v1B38c8tJTIeFIjxB2IKSgI4CrvQClQZ6FczSBAA_3d"


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        (f"_ZN8__main__5sumsq{TAGS}Ed", "__main__.sumsq"),
        (
            f"_ZN5numba2np8arrayobj11ol_np_empty12_3clocals_3e4impl{TAGS}E",
            "numba.np.arrayobj.ol_np_empty.<locals>.impl",
        ),
        (f"_ZN1m12_3clambda_3e{TAGS}Ex", "m.<lambda>"),
        (f"_ZN1m9caf_c3_a9{TAGS}Ex", "m.café"),
        (f"_ZN1m6sum_20{TAGS}Ex", "m.sum_20"),
        (f"_ZN1m2JC4next{TAGS}Ex", "m.JC.next"),
        ("_ZN8__main__3gen4nextE125int64_20generator", "__main__.gen.next"),
        (f"__ufunc__._ZN1m2vz{TAGS}Edd", "m.vz.__ufunc__"),
        (f"__gufunc__._ZN1m2gu{TAGS}E", "m.gu.__gufunc__"),
        (f".kernel.140225346459648___gufunc__._ZN1m2gu{TAGS}E", "m.gu.kernel"),
        ("_Z4leafB2v1d", "leaf"),
    ],
)
def test_a_symbol_is_what_its_author_called_it(symbol, name):
    assert str(user_name(symbol)) == name


@pytest.mark.parametrize(
    "symbol",
    [
        f"_ZN7cpython8__main__5sumsq{TAGS}Ed",
        f"cfunc._ZN8__main__5sumsq{TAGS}Ed",
        "NRT_incref",
        "f",
        "",
        "_Z",
        "_ZN",
        "__ufunc__.",
        f"_ZN08NumbaEnv8__main__5sumsq{TAGS}Ed",
    ],
)
def test_what_numba_adds_and_what_is_not_numbas_has_no_name(symbol):
    assert user_name(symbol) is None


def test_a_length_beyond_the_end_takes_what_there_is():
    assert nested_name("_ZN999ab") == (["ab"], "")
