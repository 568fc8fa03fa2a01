"""Changes of what is done to a probed instruction (`emulate`, `relocate`, `safety`), and of patterns (`glob`)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, Part

EMULATE_ALONE = "tests/kprobes/test_emulate.py"
HITS = "tests/kprobes/test_kprobe_hits.py"
EVERY = "tests/kprobes/test_every_probed_instruction.py::test_the_demo_program"
RELOCATE = "tests/kprobes/test_relocate.py"
SAFETY = "tests/kprobes/test_safety.py"
GLOB = "tests/ftrace/core/test_glob.py"
FAULTS = "tests/kprobes/test_kprobe_faults.py"

_emulate = Part("kprobes/hit/emulate.py", (EMULATE_ALONE, HITS, FAULTS))

EMULATE: tuple[Mutant, ...] = (
    _emulate.changed("push-nowhere", "        return False\n    regs.sp -= 8", "        pass\n    regs.sp -= 8"),
    _emulate.without("push-sp", "    regs.sp -= 8\n"),
    _emulate.changed(
        "call-nowhere", "    if not push(regs, following):\n        return False\n", "    push(regs, following)\n"
    ),
    _emulate.changed("ret-imm", "    regs.sp += 8 + this.immediate", "    regs.sp += 8"),
    _emulate.changed(
        "far-32",
        "        if this.width == 4:\n            regs.ip &= 0xFFFF_FFFF",
        "        if False:\n            regs.ip &= 0xFFFF_FFFF",
    ),
    _emulate.changed("popf-all", "regs.flags & ~cast(u64, POPF_FLAGS) | found[0] & POPF_FLAGS", "found[0]"),
    _emulate.changed("index-scale", "words[operand.index] * cast(u64, operand.scale)", "words[operand.index]"),
    _emulate.changed("base", "    if operand.base != NO_REGISTER:", "    if False:"),
    _emulate.changed("address-32", "    if operand.width == 4:\n        address", "    if False:\n        address"),
    _emulate.changed("memory-call", "    if this.operation == Operation.CALL_MEMORY:", "    if False:"),
    *(
        _emulate.changed(f"condition-{kind}", f"    if kind == {kind}:", f"    if kind == {kind + 100}:")
        for kind in range(7)
    ),
    _emulate.changed("condition-less", "(flags & SF != 0) != (flags & OF != 0)", "flags & SF != 0"),
    _emulate.changed("condition-inverted", " != (condition & 1 != 0)", ""),
    _emulate.changed("loop-32", "    if width == 4:\n        left", "    if False:\n        left"),
    _emulate.without("loop-counts", "    regs.cx = left\n"),
    _emulate.changed("jecxz", "        if this.width == 4:\n            count", "        if False:\n            count"),
    _emulate.changed("loope", " == (this.condition == LOOP_EQUAL)", ""),
    _emulate.changed("pushf-hidden", "regs.flags & ~cast(u64, _HIDDEN)", "regs.flags"),
    _emulate.changed("not-taken", "and takes_branch(this, regs):", "and True:"),
)

_relocate = Part("sandbox/x86_64/relocate.py", (RELOCATE,))

MOVED: tuple[Mutant, ...] = (
    _relocate.changed("rip-end", "    after = to + insn.length\n", "    after = to\n"),
    _relocate.changed("rip-32", "    if insn.has(ADDRESS_SIZE):", "    if False:"),
    _relocate.changed(
        "short-reach",
        "        if not -128 <= distance < 128:",
        "        if not -128 <= distance <= 128:",
        harmless="128 does not fit the signed byte of to_bytes, which raises OverflowError too",
    ),
    _relocate.changed(
        "near-end",
        "displacement(insn.target, to + insn.length)\n\n\ndef _is_short",
        "displacement(insn.target, to)\n\n\ndef _is_short",
    ),
    _relocate.changed(
        "traps-move",
        "(Flow.TRAP, Flow.FAR, Flow.TRANSACTION, Flow.FAR_RETURN)",
        "(Flow.FAR, Flow.TRANSACTION, Flow.FAR_RETURN)",
    ),
    _relocate.changed(
        "far-moves",
        "(Flow.TRAP, Flow.FAR, Flow.TRANSACTION, Flow.FAR_RETURN)",
        "(Flow.TRAP, Flow.TRANSACTION, Flow.FAR_RETURN)",
    ),
    _relocate.changed(
        "transaction-moves",
        "(Flow.TRAP, Flow.FAR, Flow.TRANSACTION, Flow.FAR_RETURN)",
        "(Flow.TRAP, Flow.FAR, Flow.FAR_RETURN)",
    ),
    _relocate.changed("word-branch-moves", "insn.has(OPERAND_SIZE) and not insn.wide:", "False:"),
    _relocate.changed("call-rsp-moves", "insn.in_register and insn.register == 4:", "False:"),
    _relocate.changed("condition-lost", "0x80 | insn.opcode & 15", "0x80"),
    _relocate.changed("loop-over", 'b"\\x02\\xeb\\x05"', 'b"\\x02\\xeb\\x04"'),
    _relocate.changed("call-returns-here", 'insn.end.to_bytes(8, "little")', '(insn.end + 1).to_bytes(8, "little")'),
    _relocate.changed("group-5", "& ~0x38 | operation << 3", "| operation << 3"),
    _relocate.changed(
        "syscall-rcx", "displacement(insn.end, to + insn.length + 7)", "displacement(insn.end, to + insn.length)"
    ),
)

_safety = Part("kprobes/jump/safety.py", (SAFETY,))

MAY_JUMP: tuple[Mutant, ...] = (
    _safety.changed(
        "own-unsupported",
        '    error, reason = refusal(insn)\n    if error:\n        return Refusal("unsupported", reason)\n    try',
        "    try",
    ),
    _safety.changed(
        "own-undecodable",
        "    if function.stopped != function.end:\n        return Refusal(\n",
        "    if False:\n        return Refusal(\n",
    ),
    _safety.changed(
        "own-target-first-byte",
        "_within(function.targets, insn.address + 1, insn.end)",
        "_within(function.targets, insn.address, insn.end)",
    ),
    _safety.changed(
        "own-calls", "        target = _within(function.calls, insn.address + 1, insn.end)\n", "        target = None\n"
    ),
    _safety.changed(
        "absorbs-targets", "(function.targets, function.calls, function.pads)", "(function.calls, function.pads)"
    ),
    _safety.changed(
        "absorbs-calls", "(function.targets, function.calls, function.pads)", "(function.targets, function.pads)"
    ),
    _safety.changed(
        "absorbs-pads", "(function.targets, function.calls, function.pads)", "(function.targets, function.calls)"
    ),
    _safety.changed(
        "copies-beyond",
        "    if at >= function.end:",
        "    if False:",
        harmless="behind the function there is no code to decode, and what cannot be decoded is refused too",
    ),
    _safety.changed("absorbs-early-calls", "and insn.end < address + JMP32_SIZE:", "and False:"),
    _safety.changed("kernel-short", "    if function.end - address < JMP32_SIZE:", "    if False:"),
    _safety.changed("kernel-indirect", "    if function.indirect is not None:", "    if False:"),
    _safety.changed(
        "kernel-target-end",
        "_within(function.targets, address + 1, address + JMP32_SIZE + 1)",
        "_within(function.targets, address + 1, address + JMP32_SIZE)",
    ),
    _safety.changed("kernel-pads", "    if pad is not None:", "    if False:"),
    _safety.changed("kernel-boost", "        if not can_boost(insn):", "        if False:"),
    _safety.changed("kernel-reserved", " if what else None", " if False else None"),
    _safety.changed("direction", 'frozenset({"std", "popf", "popfq", "popfd"})', 'frozenset({"std"})'),
)

_glob = Part("ftrace/core/glob.py", (GLOB,))

PATTERNS: tuple[Mutant, ...] = (
    _glob.changed(
        "empty-pattern",
        "    if not names or not self.text or self.kind is PatternKind.INDEX:",
        "    if not names or self.kind is PatternKind.INDEX:",
    ),
    _glob.changed("index-selects", " or self.kind is PatternKind.INDEX:", ":"),
    _glob.changed(
        "star-alone",
        "(PatternKind.END, PatternKind.MIDDLE, PatternKind.FRONT):\n            return (1 << len(names)) - 1",
        "(PatternKind.END, PatternKind.MIDDLE, PatternKind.FRONT):\n            return 0",
    ),
    _glob.changed("front-anywhere", "name.startswith(search)", "search in name"),
    _glob.changed("end-anywhere", "name.endswith(search)", "search in name"),
    _glob.changed("middle-at-end", "return [search in name for", "return [name.endswith(search) for"),
    _glob.changed("negation", 'text.startswith("!")', "False"),
    _glob.changed("digits", "    if body[:1].isdigit() and body[:1].isascii():", "    if False:"),
    _glob.changed("digits-of-others", " and body[:1].isascii():", ":"),
    _glob.changed("octal", "    base = 8 if digits is not text else 0", "    base = 0"),
    _glob.changed("underscores", '    if "_" in text:', "    if False:"),
    _glob.changed("index-from-zero", "int(digits, base) - 1", "int(digits, base)"),
    _glob.changed("class-inverted", "'^' if inverted else ''", "''"),
    _glob.changed("class-first-bracket", "    while first or glob", "    while glob"),
    _glob.changed("class-unclosed", '            return re.escape("["), start', '            return "", start'),
    _glob.changed("class-range", 'and glob[position + 1 : position + 2] != "]":', "and True:"),
    _glob.changed("class-descending", "        if low <= high:", "        if True:"),
    _glob.changed("empty-class", '"." if inverted else "(?!)"', '"(?!)"'),
    _glob.changed("backtracking", "(?=(?P<_{number}>.*?{piece}))(?P=_{number})", "(.*{piece})"),
    _glob.changed("group-numbers", "(?=(?P<_{number}>.*?{piece}))(?P=_{number})", "(?=(.*?{piece}))\\\\{number + 1}"),
    _glob.changed("backslash", '        elif char == "\\\\":\n', "        elif False:\n"),
)
