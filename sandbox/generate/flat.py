"""Programs of very many small functions: written in about a second for 50,000, with a result that is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_MASK = (1 << 64) - 1
_TEXTS = (
    "%a = mul i64 %x, {k}\n  %r = add i64 %a, {i}",
    "%a = xor i64 %x, {k}\n  %b = lshr i64 %a, 7\n  %r = add i64 %b, {i}",
    "%a = add i64 %x, {k}\n  %b = shl i64 %a, 3\n  %r = xor i64 %b, {i}",
    "%c = icmp ugt i64 %x, {k}\n  %a = select i1 %c, i64 {i}, i64 {k}\n  %r = sub i64 %x, %a",
)
_MEANINGS: tuple[Callable[[int, int, int], int], ...] = (
    lambda x, k, i: x * k + i,
    lambda x, k, i: ((x ^ k) >> 7) + i,
    lambda x, k, i: (x + k << 3 & _MASK) ^ i,
    lambda x, k, i: x - (i if x > k else k),
)

_SWEEP = """
@functions = constant [{n} x ptr] [{table}]

; Calls every function once, through the table; the sum of what they return.
define i64 @sweep(i64 %x) #0 {{
entry:
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %sum = phi i64 [ 0, %entry ], [ %sum.next, %body ]
  %slot = getelementptr ptr, ptr @functions, i64 %i
  %function = load ptr, ptr %slot
  %value = call i64 %function(i64 %x)
  %sum.next = add i64 %sum, %value
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, {n}
  br i1 %more, label %body, label %done
done:
  ret i64 %sum.next
}}

attributes #0 = {{ noinline nounwind "no-builtins" }}
"""


@dataclass(frozen=True)
class FlatProgram:
    """`size` functions `f00000`, `f00001`, ... i64 (i64), and `entry`, i64 (i64), which calls each of them once."""

    ir: str
    size: int
    entry: str = "sweep"

    def expected(self, x: int) -> int:
        """What `entry(x)` returns, as an unsigned number of 64 bits."""
        x &= _MASK
        return sum(_MEANINGS[i % len(_MEANINGS)](x, _constant(i), i) for i in range(self.size)) & _MASK


def _constant(i: int) -> int:
    return i * 2654435761 % 1000003 + 1


def generate_flat(size: int) -> FlatProgram:
    """A program of `size` small leaf functions. Raises ValueError if there is to be none."""
    if size < 1:
        raise ValueError(f"a program needs at least one function, not {size}")
    texts = [
        f"define i64 @f{i:05}(i64 %x) #0 {{\n  {_TEXTS[i % len(_TEXTS)].format(k=_constant(i), i=i)}\n  ret i64 %r\n}}"
        for i in range(size)
    ]
    table = ", ".join(f"ptr @f{i:05}" for i in range(size))
    return FlatProgram("\n".join(texts) + _SWEEP.format(n=size, table=table), size)
