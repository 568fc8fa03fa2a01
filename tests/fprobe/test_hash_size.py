"""The size of a Hash is the maximum number of keys, whichever they are."""

import pytest
from sampled import in_stress

import fprobe
import sandbox
from sandbox.native import i32, u64


@pytest.fixture(scope="module")
def program():
    module = sandbox.load("define i64 @hs_id(i64 %x) noinline { ret i64 %x }", name="hsprog")
    yield module
    module.unload()


@pytest.mark.parametrize("shared", [False, True], ids=["per thread", "shared"])
@pytest.mark.parametrize(
    "keys",
    [
        in_stress(((1, 2, 3, 4),)),
        (0, 1, 2, 3),
        in_stress(((1, 2, 0, 3),)),
        (1, 2, 3, 0),
        in_stress(((2**64 - 1, 0, 7, 8),)),
    ],
)
def test_the_key_0_counts_as_any_other(program, shared, keys):
    seen = fprobe.Hash(u64, u64, 3, shared=shared)

    @fprobe.native
    def entry(fp, ip, ret_ip, regs, data) -> i32:
        seen[regs.di] += 1
        return 0

    with fprobe.attach("hsprog:hs_id", entry=entry):
        for key in (*keys, *keys):
            program["hs_id"](key)
        assert dict(seen.items()) == dict.fromkeys(keys[:3], 2) and seen.dropped == 2
        seen.clear()
        program["hs_id"](0)
        assert dict(seen.items()) == {0: 1}
