"""A callback of dl_iterate_phdr(3) that copies what the loader tells of each object.

It runs under a lock of the loader. Python must not run there: while it waits for the GIL, the thread that has it may wait for
the loader.
"""

from __future__ import annotations

ENTRY, HEADER = 1 << 14, 56
NAME_AT, HEADERS_AT, ELF_HEADER_AT, NOTES_AT = 64, 4160, 8192, 8256
MOST_HEADERS, LONGEST_NOTE = 72, 512

CODE = bytes.fromhex(
    "488b0248ff02483b42080f83c000000048c1e00e4c8d4402104989f94889fe4c89c7b940000000f3a4498b7108498d7840b9"
    "ff0f0000acaa84c0e0fa450fb751184183fa48760641ba48000000416bca38498b7110498db840100000f3a44d8b5910498d"
    "90402000004183ea017c61498b314903731041833b04742441833b01754841f6430404744149837b0800753a498db8002000"
    "00b940000000f3a4eb2a498b4b20493b4b2875204881f9000200007717498d80004000004829d04839c872084889d74801ca"
    "f3a44983c338eb9931c0c3"
)
"""callback(information, size, table). The table has the number of objects, the number of entries that it has space for, and
the entries: the information, the name, program headers, the ELF header if a readable segment begins with it, and the notes.

# rdi: information, rdx: the table: count, capacity, entries
    mov (%rdx), %rax
    incq (%rdx)
    cmp 8(%rdx), %rax
    jae end
    shl $14, %rax
    lea 16(%rdx,%rax), %r8
    mov %rdi, %r9
    mov %rdi, %rsi
    mov %r8, %rdi
    mov $64, %ecx
    rep movsb
    mov 8(%r9), %rsi
    lea 64(%r8), %rdi
    mov $4095, %ecx
name:
    lodsb
    stosb
    test %al, %al
    loopne name
    movzwl 24(%r9), %r10d
    cmp $72, %r10d
    jbe few
    mov $72, %r10d
few:
    imul $56, %r10d, %ecx
    mov 16(%r9), %rsi
    lea 4160(%r8), %rdi
    rep movsb
    mov 16(%r9), %r11
    lea 8256(%r8), %rdx
next:
    sub $1, %r10d
    jl end
    mov (%r9), %rsi
    add 16(%r11), %rsi
    cmpl $4, (%r11)
    je note
    cmpl $1, (%r11)
    jne skip
    testb $4, 4(%r11)
    je skip
    cmpq $0, 8(%r11)
    jne skip
    lea 8192(%r8), %rdi
    mov $64, %ecx
    rep movsb
    jmp skip
note:
    mov 32(%r11), %rcx
    cmp 40(%r11), %rcx
    jne skip
    cmp $512, %rcx
    ja skip
    lea 16384(%r8), %rax
    sub %rdx, %rax
    cmp %rcx, %rax
    jb skip
    mov %rdx, %rdi
    add %rcx, %rdx
    rep movsb
skip:
    add $56, %r11
    jmp next
end:
    xor %eax, %eax
    ret
"""
