"""The kinds of generated functions: plain ones, recursive ones, chains of tail calls, variadic ones."""

from __future__ import annotations

from .body import from_i64, mixed, operand
from .draft import (
    CALL_COUNTS,
    MEMORY,
    Draft,
    Function,
    FunctionBody,
    Shape,
    call,
    load_entry,
    load_fields,
    store_fields,
)
from .features import Feature
from .statements import statements

_VARIABLE_TYPES = ("i32", "i64", "i64")


def plain(draft: Draft) -> None:
    """A function that computes, calls, and returns or ends in a tail call."""
    shape = _shape(draft)
    (name,) = _names(draft, "func", 1)
    body = _begin(draft, name, shape)
    statements(body, draft.random.randint(2, 7))
    if not (draft.has(Feature.TAIL_CALLS, 0.25) and _tail_call(body, shape)):
        _return(body, shape)
    _finish([body], [name], shape)


def recursive(draft: Draft) -> None:
    """One function, or two in turn, that call themselves until the first argument is used up."""
    twice = draft.random.random() < 0.3
    levels = 3 if twice else 7
    shape = _counting_shape(draft)
    names = _names(draft, "recursive", draft.random.randint(1, 2))
    bodies = [_begin(draft, name, shape, 2 ** (levels + 1) if twice else levels + 1) for name in names]
    for body, partner in zip(bodies, _rotated(names), strict=True):
        _recurse(body, shape, partner, levels, twice)
    _finish(bodies, names, shape)


def _recurse(body: FunctionBody, shape: Shape, partner: str, levels: int, twice: bool) -> None:
    left = body.emit(f"and i32 %p0, {levels}")
    base, more = body.fresh("base"), body.fresh("more")
    body.line(f"br i1 {body.emit(f'icmp eq i32 {left}, 0')}, label %{base}, label %{more}")
    body.start(base)
    with body.scope():
        _return(body, shape)
    body.start(more)
    statements(body, 1)
    less = body.emit(f"sub i32 {left}, 1")
    for _ in range(1 + twice):
        _call_with(body, f"@{partner}", shape, less)
    statements(body, 1)
    _return(body, shape)


def _call_with(body: FunctionBody, target: str, shape: Shape, first: str, tail: str = "") -> str:
    """Call with a given first argument; the others are in scope, pointers among them those of the caller."""
    rest = [f"{kind} {_passed_on(body, shape, kind)}" for kind in shape.parameters[1:]]
    arguments = ", ".join([f"{shape.parameters[0]} {first}", *rest])
    return body.new(shape.result, f"{tail}call {shape.returns} {target}({arguments})")


def _passed_on(body: FunctionBody, shape: Shape, kind: str) -> str:
    """A value that outlives the frame: a pointer must be one that the caller gave."""
    if kind != "ptr":
        return operand(body, kind)
    return body.random.choice([f"%p{i}" for i, known in enumerate(shape.parameters) if known == "ptr"])


def tail_chain(draft: Draft) -> None:
    """One to three functions that hand over to each other in tail calls until the first argument is used up."""
    shape = _counting_shape(draft)
    names = _names(draft, "tail", draft.random.randint(1, 3))
    bodies = [_begin(draft, name, shape, weight=16) for name in names]
    for body, successor in zip(bodies, _rotated(names), strict=True):
        _hand_over(body, shape, successor, names)
    _finish(bodies, names, shape)


def _hand_over(body: FunctionBody, shape: Shape, successor: str, names: list[str]) -> None:
    left = body.emit("and i32 %p0, 15")
    last, more = body.fresh("last"), body.fresh("more")
    body.line(f"br i1 {body.emit(f'icmp eq i32 {left}, 0')}, label %{last}, label %{more}")
    body.start(last)
    with body.scope():
        _return(body, shape)
    body.start(more)
    if body.random.random() < 0.3:
        statements(body, 1)
    target = f"@{successor}"
    if body.draft.has(Feature.INDIRECT, 0.4):
        target = load_entry(body, body.draft.table(names))
    result = _call_with(body, target, shape, body.emit(f"sub i32 {left}, 1"), tail="musttail ")
    body.line(f"ret {shape.result} {result}")


def variadic(draft: Draft) -> None:
    """A function that reads three to fourteen variable arguments of fixed types."""
    offered = [*_VARIABLE_TYPES, *["double"] * (2 * (Feature.FLOATS in draft.features))]
    variable = tuple(draft.random.choices(offered, k=draft.random.randint(3, 14)))
    shape = Shape("i64", ("i32",), variable=variable)
    (name,) = _names(draft, "variadic", 1)
    body = _begin(draft, name, shape)
    arguments = body.allocate("[24 x i8]")
    body.line(f"call void @llvm.va_start.p0(ptr {arguments})")
    read = [(kind, body.emit(f"va_arg ptr {arguments}, {kind}")) for kind in variable]
    body.line(f"call void @llvm.va_end.p0(ptr {arguments})")
    body.line(f"ret i64 {mixed(body, [('i32', '%p0'), *read])}")
    _finish([body], [name], shape)


def driver(draft: Draft, functions: list[Function]) -> str:
    """A function i64 (i64) that calls each of the functions once; its name."""
    shape = Shape("i64", ("i64",))
    (name,) = _names(draft, "driver", 1)
    body = _begin(draft, name, shape)
    results: list[tuple[str, str]] = [("i64", "%p0")]
    for function in functions:
        result = call(body, f"@{function.name}", function.shape)
        results.append(("i64" if function.shape.result == MEMORY else function.shape.result, result))
    body.line(f"ret i64 {mixed(body, results)}")
    _define(body, name, shape)
    return name


# What all kinds share


def _shape(draft: Draft) -> Shape:
    """A new shape, or, more often, one that there is already."""
    if draft.shapes and draft.random.random() < 0.6:
        return draft.random.choice(draft.shapes)
    results = [kind for kind in draft.types if kind != "ptr"]
    result = MEMORY if draft.has(Feature.SRET, 0.1) else draft.random.choice(results)
    shape = Shape(result, tuple(_parameters(draft)), _convention(draft))
    draft.shapes.append(shape)
    return shape


def _counting_shape(draft: Draft) -> Shape:
    """A shape whose first parameter is an i32, with nothing in memory."""
    kinds = [kind for kind in _parameters(draft) if kind != MEMORY]
    results = [kind for kind in draft.types if kind != "ptr"]
    return Shape(draft.random.choice(results), ("i32", *kinds), _convention(draft))


def _parameters(draft: Draft) -> list[str]:
    many = draft.has(Feature.MANY_ARGUMENTS, 0.25)
    kinds = draft.random.choices(draft.types, k=draft.random.randint(7, 12) if many else draft.random.randint(0, 6))
    return [MEMORY if draft.has(Feature.BYVAL, 0.04) else kind for kind in kinds]


def _convention(draft: Draft) -> str:
    return "fastcc" if draft.has(Feature.FASTCC, 0.2) else ""


def _names(draft: Draft, stem: str, count: int) -> list[str]:
    names = [f"{stem}_{len(draft.names) + i}" for i in range(count)]
    draft.names += names
    return names


def _begin(draft: Draft, name: str, shape: Shape, weight: int = 1) -> FunctionBody:
    """A body that counts the call and has the arguments in scope."""
    body = FunctionBody(draft, weight)
    counter = f"getelementptr (i64, ptr @{CALL_COUNTS}, i64 {draft.names.index(name)})"
    body.emit(f"atomicrmw add ptr {counter}, i64 1 monotonic")
    for i, kind in enumerate(shape.parameters):
        if kind == MEMORY:
            load_fields(body, f"%p{i}")
        else:
            body.keep(kind, f"%p{i}")
    return body


def _tail_call(body: FunctionBody, shape: Shape) -> bool:
    """End in a tail call of an earlier function of the same shape, if there is one."""
    callee = body.draft.of_shape(shape, body.budget) if shape.in_registers else None
    if callee is None:
        return False
    body.spend(callee.cost)
    arguments = ", ".join(f"{kind} {_passed_on(body, shape, kind)}" for kind in shape.parameters)
    result = body.emit(f"musttail call {shape.returns} @{callee.name}({arguments})")
    body.line(f"ret {shape.result} {result}")
    return True


def _return(body: FunctionBody, shape: Shape) -> None:
    """Return a value made of the arguments and of what was computed last."""
    arguments = [(kind, f"%p{i}") for i, kind in enumerate(shape.parameters) if kind != MEMORY]
    total = mixed(body, [*arguments, *body.recent(4)])
    if shape.result == MEMORY:
        store_fields(body, "%result", total)
        body.line("ret void")
    else:
        body.line(f"ret {shape.result} {from_i64(body, total, shape.result)}")


def _rotated(names: list[str]) -> list[str]:
    return [*names[1:], names[0]]


def _finish(bodies: list[FunctionBody], names: list[str], shape: Shape) -> None:
    """Define functions, and let them be called. Those that call each other cost what the dearest does."""
    cost = max(body.cost for body in bodies)
    for body, name in zip(bodies, names, strict=True):
        _define(body, name, shape)
        body.draft.add(Function(name, shape, cost))


def _define(body: FunctionBody, name: str, shape: Shape) -> None:
    draft = body.draft
    linkage = "internal " if draft.has(Feature.LOCAL, 0.15) else ""
    untraced = draft.has(Feature.NOTRACE, 0.05)
    if untraced:
        draft.untraced.add(name)
    head = f"define {linkage}{shape.returns} @{name}({shape.declared()})"
    draft.write(f"{head} #{int(untraced)} {{\n{body.text()}\n}}")
