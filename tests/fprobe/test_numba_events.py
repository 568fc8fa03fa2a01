"""Events on functions of Numba, with arguments and results by name."""

from __future__ import annotations

import pytest
from isolation import NUMBA, isolated
from later import later

later("numba", "numba is not installed: `pip install fprobe[targets]`; it has no wheels for some Pythons")


@pytest.mark.stress
@isolated(modules=NUMBA, timeout=120)
def test_arguments_and_results_are_fields_by_name():
    import numpy as np
    from numba import njit

    import fprobe

    @njit
    def work(a, n, small, text, x, p, q, r):
        total = a[0] + a[a.shape[0] - 1] + n + small + len(text) + p + q + r
        if x > 100.0 or text == "stop":
            raise ValueError("too much")
        return total, a

    @njit
    def either(first, k):
        return k + 1 + int(first)

    array = np.arange(5)
    arguments = (array, -3, np.int8(-2), "hello", 0.5, 7, 8, 9)
    assert work(*arguments)[0] == 28
    name = f"numba:{__name__}.test_arguments_and_results_are_fields_by_name.<locals>"

    def recorded(definition, *calls):
        with fprobe.event(definition) as event:
            for call in calls:
                call()
            return event.records()

    fields = "n small count=a.shape.0 last=+32(a.data):s64 all=+0(a.data):s64[5] text=text.data:string r"
    (record,) = recorded(f"f:ev {name}.work {fields}", lambda: work(*arguments))
    assert {key: record[key] for key in ("n", "small", "count", "last", "text", "r")} == {
        "n": -3, "small": -2, "count": 5, "last": 4, "text": "hello", "r": 9,
    }  # fmt: skip
    assert list(record["all"]) == [0, 1, 2, 3, 4]

    result = "n sum=return.0 at=return.1.data status=$retval"
    (record,) = recorded(f"f:back {name}.work%return {result}", lambda: work(*arguments))
    assert (record["n"], record["sum"], record["at"], record["status"]) == (-3, 28, array.ctypes.data, 0)

    def fails():
        with pytest.raises(ValueError, match="too much"):
            work(array, 1, np.int8(1), "stop", 0.5, 7, 8, 9)

    (record,) = recorded(f"f:raised {name}.work%return $retval", fails)
    assert record["arg1"] != 0

    for refused in ("x", "a", "nobody", "a.nothing"):
        with pytest.raises(OSError, match=r"\^"):
            recorded(f"f:wrong {name}.work y={refused}")

    # In the second specialisation `first` is in a vector register and `k` is elsewhere: no name is left for both.
    either(1, 2)
    (record,) = recorded(f"f:one {name}.either%return k", lambda: either(4, 5))
    assert record["k"] == 5
    either(0.5, 2)
    with pytest.raises(OSError, match=r"\^"):
        recorded(f"f:both {name}.either k")
    calls = (lambda: either(4, 5), lambda: either(4.5, 5))
    assert [record["return"] for record in recorded(f"f:both {name}.either%return return", *calls)] == [10, 10]
