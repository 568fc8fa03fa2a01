"""Statements of generated functions: steps, calls, and control flow around more of them."""

from __future__ import annotations

from collections.abc import Callable

from .body import condition, convert, operand, step
from .draft import FunctionBody, call, load_entry
from .features import Feature

_DEEPEST = 2
_Statement = Callable[[FunctionBody], None]


def statements(body: FunctionBody, count: int) -> None:
    """Write that many statements; control flow is nested at most two deep."""
    for _ in range(count):
        body.random.choice(_offered(body))(body)


def _offered(body: FunctionBody) -> list[_Statement]:
    features = body.draft.features
    offered: list[_Statement] = [_step, _step, _step, _convert, _call, _call]
    offered += [_indirect_call] * (Feature.INDIRECT in features)
    offered += [_load_constant] * (Feature.GLOBALS in features)
    if body.depth < _DEEPEST:
        nested = {Feature.BRANCHES: _branch, Feature.SWITCH: _switch, Feature.LOOPS: _loop}
        offered += [statement for feature, statement in nested.items() if feature in features]
    return offered


def _step(body: FunctionBody) -> None:
    step(body, body.random.choice(body.draft.types))


def _convert(body: FunctionBody) -> None:
    convert(body, body.random.choice(body.draft.types), body.random.choice(body.draft.types))


def _call(body: FunctionBody) -> None:
    callee = body.draft.affordable(body.budget)
    if callee:
        body.spend(callee.cost)
        call(body, f"@{callee.name}", callee.shape)


def _indirect_call(body: FunctionBody) -> None:
    first = body.draft.affordable(body.budget)
    if first is None or first.shape.variable:
        return
    peers = [peer for peer in body.draft.by_shape[first.shape] if peer.cost <= body.budget]
    chosen = body.random.sample(peers, min(len(peers), 4))
    body.spend(max(peer.cost for peer in chosen))
    table = body.draft.table([peer.name for peer in chosen])
    call(body, load_entry(body, table), first.shape)


def _load_constant(body: FunctionBody) -> None:
    words = ", ".join(f"i64 {body.random.getrandbits(63)}" for _ in range(8))
    data = body.draft.data(f"[8 x i64] [{words}]")
    index = body.emit(f"and i64 {operand(body, 'i64')}, 7")
    body.new("i64", f"load i64, ptr {body.emit(f'getelementptr i64, ptr {data}, i64 {index}')}")


def _branch(body: FunctionBody) -> None:
    arms = [body.fresh("yes"), body.fresh("no")]
    body.line(f"br i1 {condition(body)}, label %{arms[0]}, label %{arms[1]}")
    _join(body, arms)


def _switch(body: FunctionBody) -> None:
    kind = body.random.choice(("i8", "i32", "i64"))
    arms = [body.fresh("case") for _ in range(body.random.randint(2, 6))]
    value = body.emit(f"urem {kind} {operand(body, kind)}, {len(arms) + 1}")
    cases = " ".join(f"{kind} {i}, label %{arm}" for i, arm in enumerate(arms))
    body.line(f"switch {kind} {value}, label %{arms[0]} [ {cases} ]")
    _join(body, arms)


def _join(body: FunctionBody, arms: list[str]) -> None:
    """Write the arms, and a phi of what they compute."""
    kind = _joinable(body)
    end = body.fresh("join")
    incoming = []
    for arm in arms:
        body.start(arm)
        with body.scope():
            statements(body, body.random.randint(0, 2))
            incoming.append(f"[ {step(body, kind)}, %{body.block} ]")
        body.line(f"br label %{end}")
    body.start(end)
    body.new(kind, f"phi {kind} {', '.join(incoming)}")


def _joinable(body: FunctionBody) -> str:
    """A type for a phi. A pointer would do too, but says less about registers."""
    return body.random.choice([kind for kind in body.draft.types if kind != "ptr"])


def _loop(body: FunctionBody) -> None:
    """One to four rounds, their number constant or computed, with a value carried around."""
    kind = _joinable(body)
    head, latch, end = body.fresh("head"), body.fresh("latch"), body.fresh("end")
    count, carried = f"%{body.fresh('count')}", f"%{body.fresh('carried')}"
    first, limit, before = operand(body, kind), _rounds(body), body.block
    body.line(f"br label %{head}")
    body.start(head)
    index = body.emit(f"phi i32 [ 0, %{before} ], [ {count}, %{latch} ]")
    value = body.emit(f"phi {kind} [ {first}, %{before} ], [ {carried}, %{latch} ]")
    with body.scope():
        body.keep("i32", index)
        body.keep(kind, value)
        body.weight *= 4
        statements(body, body.random.randint(1, 3))
        body.weight //= 4
        last = step(body, kind)
    body.line(f"br label %{latch}")
    body.start(latch)
    body.line(f"{carried} = freeze {kind} {last}")
    body.line(f"{count} = add i32 {index}, 1")
    body.line(f"br i1 {body.emit(f'icmp ult i32 {count}, {limit}')}, label %{head}, label %{end}")
    body.start(end)
    body.keep(kind, carried)


def _rounds(body: FunctionBody) -> str:
    if body.random.random() < 0.5:
        return str(body.random.randint(1, 4))
    few = body.emit(f"and i32 {operand(body, 'i32')}, 3")
    return body.emit(f"add i32 {few}, 1")
