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

# Tables of bounded size: LLVM needs quadratic time to read one table of functions that are defined after it.
_CHUNK = 64

_SWEEP = """
{tables}
@functions = constant [{chunks} x ptr] [{chunk_list}]

; Calls every function once, through the tables; the sum of what they return.
define i64 @sweep(i64 %x) #0 {{
entry:
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %sum = phi i64 [ 0, %entry ], [ %sum.next, %body ]
  %chunk = lshr i64 %i, 6
  %chunk.at = getelementptr ptr, ptr @functions, i64 %chunk
  %table = load ptr, ptr %chunk.at
  %place = and i64 %i, 63
  %slot = getelementptr ptr, ptr %table, i64 %place
  %function = load ptr, ptr %slot
  %value = call i64 %function(i64 %x)
  %sum.next = add i64 %sum, %value
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, {size}
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
    return FlatProgram("\n".join(texts) + _sweep(size), size)


def _sweep(size: int) -> str:
    starts = range(0, size, _CHUNK)
    tables = "\n".join(_table(start, min(_CHUNK, size - start)) for start in starts)
    chunk_list = ", ".join(f"ptr @table{start:05}" for start in starts)
    return _SWEEP.format(size=size, tables=tables, chunks=len(starts), chunk_list=chunk_list)


def _table(start: int, count: int) -> str:
    entries = ", ".join(f"ptr @f{i:05}" for i in range(start, start + count))
    return f"@table{start:05} = constant [{count} x ptr] [{entries}]"
