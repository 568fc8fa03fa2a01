"""What scripts do, as dash and the programs of coreutils do it (TE-10.2)."""

from __future__ import annotations

import pytest

from fprobe.tracefs import tracefs
from tests.busybox.commands import Commands
from tests.busybox.files import Files
from tests.busybox.shell import Shell, Sink


def ran(script: str) -> tuple[int, str]:
    """Exit status and output of a script."""
    output = Sink()
    status = Shell(Files(tracefs), Commands().run).run(script, output, Sink())
    return status, output.data.decode()


WORDS_AND_QUOTES = [
    ('echo a b  c', 0, 'a b c\n'),
    ('echo "x $foo y"', 0, 'x  y\n'),
    ("echo -n 'x'; echo y", 0, 'xy\n'),
    ('x=1; (x=2; echo $x); echo $x', 0, '2\n1\n'),
    ('x=abc.def; echo ${x%.*} ${x#*.} ${x:-d} ${y:-d} ${#x}', 0, 'abc def abc.def d 7\n'),
    ('echo a; exit 3; echo b', 3, 'a\n'),
    ('echo $(echo a; echo b)', 0, 'a b\n'),
    ('echo "$(echo a; echo b)"', 0, 'a\nb\n'),
    ('x=$(false); echo $?', 0, '1\n'),
    ('echo \'a"b\' "c\'d" e\\ f', 0, 'a"b c\'d e f\n'),
    ('echo a;echo b', 0, 'a\nb\n'),
    ("echo '#x' #comment", 0, '#x\n'),
    ('echo a\\\nb', 0, 'ab\n'),
    ('x=5; echo $((x*2)) $(($x*2))', 0, '10 10\n'),
    ('echo ${x=5}; echo $x', 0, '5\n5\n'),
    ('x=\'a b\'; echo $x "$x" \'$x\'', 0, 'a b a b $x\n'),
    ('echo abc | tr a-c A-C', 0, 'ABC\n'),
    ('> /tmp/qa; ls /tmp/qa', 0, '/tmp/qa\n'),
    ('echo "$?"', 0, '0\n'),
    ('break; echo a', 0, 'a\n'),
    ('x=$(exit 3); echo $?', 0, '3\n'),
    ('x=5 y=6; echo $x$y', 0, '56\n'),
    ('echo ${x:+set}${y:+set}; y=1; echo ${y:+set}', 0, '\nset\n'),
    ('x=/a/b/c.d; echo ${x##*/} ${x%%/*} ${x%/*}', 0, 'c.d /a/b\n'),
    ('echo "${x:-a  b}" ${x:-a  b}', 0, 'a  b a b\n'),
    ('i=5; i=$((i-1)); echo $((i += 2)) $i; echo $((i>5?1:2))', 0, '6 6\n1\n'),
    ('echo $((-7/2)) $((-7%3)) $((010)) $((1==1&&0)) $((!0))', 0, '-3 -1 8 0 1\n'),
    ('ls -d / >/dev/null; echo $?', 0, '0\n'),
    ('echo "a\nb"', 0, 'a\nb\n'),
    ('echo a; # comment\n# another\necho b', 0, 'a\nb\n'),
    ("echo 'it'\\''s'", 0, "it's\n"),
    ('echo "$(echo "in $(echo deep)")"', 0, 'in deep\n'),
    ('echo `echo \\`echo x\\``', 0, 'x\n'),
    ('x="a*b"; echo "$x"', 0, 'a*b\n'),
    ("echo 'echo from $1' > /tmp/qs; sh /tmp/qs file", 0, 'from file\n'),
    ("echo 'echo from stdin' | sh", 0, 'from stdin\n'),
    ('a=1; a=2 true; echo $a', 0, '1\n'),
    ('x=; echo ${x-unset}${x:-null}', 0, 'null\n'),
    (': ${z:=5}; echo $z', 0, '5\n'),
]  # fmt: skip


@pytest.mark.parametrize(("script", "status", "output"), WORDS_AND_QUOTES)
def test_te10_2_words_and_quotes(script: str, status: int, output: str) -> None:
    assert ran(script) == (status, output)


COMMANDS_AND_LISTS = [
    ('(echo a; echo b) | tail -1', 0, 'b\n'),
    ('(cd /; pwd); ', 0, '/\n'),
    ('! false; echo $?', 0, '0\n'),
    ('if ! false; then echo t; fi', 0, 't\n'),
    ('for i in 1 2 3; do echo $i; done | head -2', 0, '1\n2\n'),
    ('case abc in a*) echo A;; *) echo B;; esac', 0, 'A\n'),
    ("echo a b | awk '{print $2}'", 0, 'b\n'),
    ('echo a | { read x; echo "<$x>"; }', 0, '<a>\n'),
    ('echo a | while read x; do echo "<$x>"; done', 0, '<a>\n'),
    ('[ -n "$x" ] || echo unset', 0, 'unset\n'),
    ('echo a&&echo b', 0, 'a\nb\n'),
    ('for x; do echo $x; done', 0, ''),
    ('case x in (x) echo p;; esac', 0, 'p\n'),
    ('case "a b" in a\\ b) echo y;; esac; case ab in a|ab) echo z; esac', 0, 'y\nz\n'),
    ('read x </dev/null || echo eof', 0, 'eof\n'),
    ('if [ 1 -eq 1 ]\nthen\n  echo nl\nelse\n  echo no\nfi', 0, 'nl\n'),
    ('for i in 1 2\ndo\n  echo $i\ndone', 0, '1\n2\n'),
    ('! true; echo $?', 0, '1\n'),
    ('echo one two | { read a b; echo $b; }', 0, 'two\n'),
]  # fmt: skip


@pytest.mark.parametrize(("script", "status", "output"), COMMANDS_AND_LISTS)
def test_te10_2_commands_and_lists(script: str, status: int, output: str) -> None:
    assert ran(script) == (status, output)


FUNCTIONS_JOBS_AND_OPTIONS = [
    ('f() { echo "f $1 $#"; }; f x y', 0, 'f x 2\n'),
    ('f() { return 3; }; f; echo $?', 0, '3\n'),
    ('set -e; false; echo no', 1, ''),
    ('set -- a b c; echo $# $2 "$@"', 0, '3 b a b c\n'),
    ('sleep 0.05 & wait; echo done', 0, 'done\n'),
    ('touch /tmp/qa; [ -e /tmp/qa ] && echo there; [ -s /tmp/qa ] || echo empty', 0, 'there\nempty\n'),
    ('[ 1 = 1 -a 2 = 2 ] && echo y', 0, 'y\n'),
    ('test ! -e /tmp/none && echo y', 0, 'y\n'),
    ("export A=5; sh -c 'echo $A'", 0, '5\n'),
    ("sh -c 'echo $0 $1' a b", 0, 'a b\n'),
    ("A=7 sh -c 'echo $A'", 0, '7\n'),
    ("trap 'echo bye' EXIT; echo hi", 0, 'hi\nbye\n'),
    ('break 2>/dev/null; for i in 1 2 3; do [ $i = 2 ] && continue; echo $i; done', 0, '1\n3\n'),
    ('for i in 1 2 3; do [ $i = 2 ] && break; echo $i; done', 0, '1\n'),
    ('eval "echo a b"', 0, 'a b\n'),
    ('IFS=:; x=a:b:c; set -- $x; echo $2', 0, 'b\n'),
    ('for i in 1 2; do for j in 1 2; do [ $j = 2 ] && break 2; echo $i$j; done; done', 0, '11\n'),
    ('f() { local x=1; x=2; echo $x; }; x=9; f; echo $x', 0, '2\n9\n'),
    ('set -e; false || true; echo a; if false; then :; fi; echo b; (false); echo no', 1, 'a\nb\n'),
    ('set -e; f() { false; echo in; }; f || echo or; f; echo no', 1, 'in\n'),
    ('set -u; echo $nope; echo no', 2, ''),
    ('set -- \'a b\' c; for x in "$@"; do echo "[$x]"; done; for x in $*; do echo "$x"; done', 0, '[a b]\n[c]\na\nb\nc\n'),
    ('sleep 0.2 & echo first; wait $!; echo $?', 0, 'first\n0\n'),
    ('(sleep 0.1; echo bg) & echo fg; wait', 0, 'fg\nbg\n'),
    ('false & wait $!; echo $?', 0, '1\n'),
    ('sleep 10 & kill $!; wait $!; echo done', 0, 'done\n'),
    ("trap 'echo t; rm -f /tmp/qa' EXIT; touch /tmp/qa; exit 4", 4, 't\n'),
    ("eval 'x=1; echo $x'; echo $x", 0, '1\n1\n'),
    ("printf '1\\n2\\n3\\n' | while read x; do [ $x = 2 ] && break; echo $x; done", 0, '1\n'),
    ('f ()\n{\n  echo body\n}\nf', 0, 'body\n'),
    ('[ a ] && [ ! "" ] && [ 1 -lt 2 -o 3 -lt 2 ]; echo $?', 0, '0\n'),
    ("sh -c 'exit 7'; echo $?", 0, '7\n'),
    ("sh -ec 'false; echo x'; echo $?", 0, '1\n'),
    ('. /tmp/none 2>/dev/null; echo no', 2, ''),
    ("printf 'x=7\\n' > /tmp/qs; . /tmp/qs; echo $x", 0, '7\n'),
    ('true & wait; ! false && echo n', 0, 'n\n'),
    ('unset -v x; echo ${x-unset}', 0, 'unset\n'),
    ("export Q=1; (echo $Q); sh -c 'echo $Q'", 0, '1\n1\n'),
    ('[ -d / ] && [ -f /tmp ] ; echo $?', 0, '1\n'),
    ('i=0; while :; do i=$((i+1)); [ $i -ge 3 ] && break; done; echo $i', 0, '3\n'),
]  # fmt: skip


@pytest.mark.parametrize(("script", "status", "output"), FUNCTIONS_JOBS_AND_OPTIONS)
def test_te10_2_functions_jobs_and_options(script: str, status: int, output: str) -> None:
    assert ran(script) == (status, output)


REDIRECTIONS_AND_HERE_DOCUMENTS = [
    ('echo one > /tmp/qa; cat < /tmp/qa', 0, 'one\n'),
    ('exec 3> /tmp/qa; echo hi >&3; echo ho >&3; exec 3>&-; cat /tmp/qa', 0, 'hi\nho\n'),
    ('exec 3<> /tmp/qa; echo hi >&3; exec 3>&-; cat /tmp/qa', 0, 'hi\n'),
    ('echo abc > /tmp/qa; exec 4< /tmp/qa; read x <&4; echo got $x; exec 4<&-', 0, 'got abc\n'),
    ('cat <<E\nhello\nE', 0, 'hello\n'),
    ("cat <<'E'\n$hello\nE", 0, '$hello\n'),
    ('echo a >/tmp/qa 2>&1; cat /tmp/qa', 0, 'a\n'),
    ('{ echo a; echo b >&2; } 2>/dev/null', 0, 'a\n'),
    ('echo $((1+2*3)) $((0x10)) $((5>3)) $((1<<4)) $((7&3))', 0, '7 16 1 16 3\n'),
    ('read a b <<E\n1 2 3\nE\necho $a/$b', 0, '1/2 3\n'),
    ('echo a 1>&2', 0, ''),
    ('if true; then exec 3>/tmp/qa; fi; echo hi >&3; cat /tmp/qa', 0, 'hi\n'),
    ('{ exec 4>/tmp/qb; }; echo ho >&4; cat /tmp/qb', 0, 'ho\n'),
    ('f() { exec 5>/tmp/qc; }; f; echo hu >&5; cat /tmp/qc', 0, 'hu\n'),
    ('while read a b; do echo "$b $a"; done <<E\n1 2\n3 4 5\nE', 0, '2 1\n4 5 3\n'),
    ('cat <<-E\n\ttabbed\n\tE', 0, 'tabbed\n'),
    ('x=3; cat <<E\nv $x \\$x `echo bq` $(echo cs) "q" \\" \'$x\'\nE', 0, 'v 3 $x bq cs "q" \\" \'3\'\n'),
    ('echo x >/dev/null 2>&1; echo y 2>&1 >/dev/null; echo z', 0, 'z\n'),
    ('echo err >&2 2>/dev/null', 0, ''),
    ('exec echo replaced; echo no', 0, 'replaced\n'),
    ('echo x 3>&1 1>&3', 0, 'x\n'),
    ('cat <<A; cat <<B\n1\nA\n2\nB', 0, '1\n2\n'),
    ('grep -q b <<E && echo found\nabc\nE', 0, 'found\n'),
    ('tail -n 1 <<E\nx\ny\nE', 0, 'y\n'),
    ('echo a >/tmp/qa; wc -l /tmp/qa; wc -c < /tmp/qa; head -c 1 /tmp/qa', 0, '1 /tmp/qa\n2\na'),
]  # fmt: skip


@pytest.mark.parametrize(("script", "status", "output"), REDIRECTIONS_AND_HERE_DOCUMENTS)
def test_te10_2_redirections_and_here_documents(script: str, status: int, output: str) -> None:
    assert ran(script) == (status, output)


PROGRAMS = [
    ("printf '%s\\n' a b c", 0, 'a\nb\nc\n'),
    ("printf '%d %x\\n' 10 255 3 4", 0, '10 ff\n3 4\n'),
    ("printf 'a\\tb\\n'", 0, 'a\tb\n'),
    ("printf '%5s|%-5s|%05d\\n' ab cd 7", 0, '   ab|cd   |00007\n'),
    ("printf '%b' 'a\\nb\\n'", 0, 'a\nb\n'),
    ('printf abc | wc -c', 0, '3\n'),
    ("printf 'é\\n'", 0, 'é\n'),
    ("printf '%s'", 0, ''),
    ("printf '\\0\\1' | od -An -tx1", 0, ' 00 01\n'),
    ('echo one > /tmp/qa; echo two >> /tmp/qa; cat /tmp/qa', 0, 'one\ntwo\n'),
    ('i=0; while [ $i -lt 3 ]; do echo $i; i=$((i+1)); done', 0, '0\n1\n2\n'),
    ('x=$(printf \'a\\n\\n\\n\'); echo "[$x]"', 0, '[a]\n'),
    ('echo abc | sed s/b/X/', 0, 'aXc\n'),
    ("printf 'a\\nb\\nc\\n' > /tmp/qa; head -n 2 /tmp/qa; tail -n 1 /tmp/qa; tail -n +2 /tmp/qa", 0, 'a\nb\nc\nb\nc\n'),
    ("printf 'a\\nb\\nc\\n' | head -2", 0, 'a\nb\n'),
    ("printf 'a\\nb\\nc\\n' | grep -c .", 0, '3\n'),
    ("printf 'a\\nb\\nc\\n' | grep -v b", 0, 'a\nc\n'),
    ('grep x /tmp/none; echo $?', 0, '2\n'),
    ('cat /tmp/none; echo $?', 0, '1\n'),
    ('echo x > /tmp/qa; rm /tmp/qa; cat /tmp/qa; echo $?', 0, '1\n'),
    ('mkdir /tmp/qd; echo $?; rmdir /tmp/qd; echo $?', 0, '0\n0\n'),
    ('mkdir /tmp/qd; echo x > /tmp/qd/f; cat /tmp/qd/f; ls /tmp/qd; rm -r /tmp/qd; echo $?', 0, 'x\nf\n0\n'),
    ('echo abc > /tmp/qa; dd if=/tmp/qa bs=1 count=2 2>/dev/null; echo', 0, 'ab\n'),
    ('echo abc > /tmp/qa; cp /tmp/qa /tmp/qb; cat /tmp/qb', 0, 'abc\n'),
    ('echo abc | dd of=/tmp/qa 2>/dev/null; cat /tmp/qa', 0, 'abc\n'),
    ('dd if=/dev/zero bs=4 count=2 2>/dev/null | od -An -tx1', 0, ' 00 00 00 00 00 00 00 00\n'),
    ('seq 3', 0, '1\n2\n3\n'),
    ('echo "a  b" | cut -d\' \' -f1', 0, 'a\n'),
    ('unset x; x=1; unset x; echo "[$x]"', 0, '[]\n'),
    ('i=3; until [ $i = 0 ]; do i=$((i-1)); done; echo $i', 0, '0\n'),
    ('echo abc | tee /tmp/qa; cat /tmp/qa', 0, 'abc\nabc\n'),
    ("printf 'c\\na\\nb\\n' | sort | uniq | wc -l", 0, '3\n'),
    ('cat /dev/null; echo $?', 0, '0\n'),
    ('basename /a/b; dirname /a/b', 0, 'b\n/a\n'),
    (': > /tmp/qa; cat /tmp/qa; echo $?', 0, '0\n'),
    ('printf "%s\\n" "$#"', 0, '0\n'),
    ("printf '%c%c' ab cd; echo", 0, 'ac\n'),
    ("printf '%%'; echo", 0, '%\n'),
    ("printf '%i %o %X\\n' 5 8 255", 0, '5 10 FF\n'),
    ("printf 'x%sy\\n'", 0, 'xy\n'),
    ("printf '%d\\n' 0x1f 010", 0, '31\n8\n'),
    ('[ -f /tmp/none ]; echo $?', 0, '1\n'),
    ('expr 1 + 2', 0, '3\n'),
    ('echo a | (cat; echo b)', 0, 'a\nb\n'),
    ("printf '%s-%s\\n' a b c", 0, 'a-b\nc-\n'),
    ("printf '%.2s|%3d|%-3d|%+d\\n' abcdef 5 5 5", 0, 'ab|  5|5  |+5\n'),
    ("printf '%d\\n' abc; echo $?", 0, '0\n1\n'),
    ("printf '%x\\n' -1", 0, 'ffffffffffffffff\n'),
    ('printf \'%s\\n\' \'a b\' "c\td"', 0, 'a b\nc\td\n'),
    ('printf "%d" "\'A"', 0, '65'),
    ('[ x -eq 1 ]; echo $?', 0, '2\n'),
    ('[ 1 = 1; echo $?', 0, '2\n'),
    ('test; echo $?', 0, '1\n'),
    ('echo abc > /tmp/qa; printf X | dd of=/tmp/qa bs=1 seek=1 conv=notrunc status=none; cat /tmp/qa', 0, 'aXc\n'),
    ('echo abcdef > /tmp/qa; dd if=/tmp/qa bs=2 skip=1 count=1 status=none; echo', 0, 'cd\n'),
    ('dd if=/dev/zero bs=1k count=2 status=none | wc -c', 0, '2048\n'),
    ('echo a > /tmp/a; cp /tmp/a /tmp/b; mkdir /tmp/d; cp /tmp/a /tmp/d; cat /tmp/d/a /tmp/b', 0, 'a\na\n'),
    ('echo hi | tee /tmp/qa /tmp/qb; cat /tmp/qb', 0, 'hi\nhi\n'),
    ("echo 'a b c' | cut -d ' ' -f 2; echo abc | sed -n 's/b/X/p'", 0, 'b\naXc\n'),
    ('echo "a" "b" > "/tmp/q a"; cat "/tmp/q a"; rm "/tmp/q a"', 0, 'a b\n'),
]  # fmt: skip


@pytest.mark.parametrize(("script", "status", "output"), PROGRAMS)
def test_te10_2_programs(script: str, status: int, output: str) -> None:
    assert ran(script) == (status, output)


MESSAGES = [
    ("tail -n 1 /tmp/none", 1, "tail: can't open '/tmp/none': No such file or directory\ntail: no files\n"),
    ("cp /tmp/none /tmp/a", 1, "cp: can't stat '/tmp/none': No such file or directory\n"),
    ("mkdir /tmp/d; rm /tmp/d; rmdir /tmp/d/", 0, "rm: '/tmp/d' is a directory\n"),
    ("mkdir /tmp/d; : > /tmp/d/f; rmdir /tmp/d", 1, "rmdir: '/tmp/d': Directory not empty\n"),
    ("echo x > /tmp/none/f", 1, "sh: can't create /tmp/none/f: nonexistent directory\n"),
    ("sh /tmp/none", 2, "sh: can't open '/tmp/none': No such file or directory\n"),
    ("[ a b c ]", 2, "sh: b: unknown operand\n"),
    ("[ 1 -eq x ]", 2, "sh: x: bad number\n"),
    ("echo $((1/0)); echo no", 2, "sh: divide by zero\n"),
    ("exit abc", 2, "sh: abc: bad number\n"),
    ("timeout 1", 1, "timeout: a number of seconds and a command are needed\n"),
    ("printf 'a%'", 1, "sh: %: invalid format\na"),
    ("timeout 0.05 cat /dev/zero > /dev/null", 143, ""),
    ("timeout 0.05 sh -c 'while :; do :; done'", 143, ""),
    ("f() { return; }; false; f", 1, ""),
]  # fmt: skip


@pytest.mark.parametrize(("script", "status", "messages"), MESSAGES)
def test_te11_1_messages_are_those_of_busybox(script: str, status: int, messages: str) -> None:
    output = Sink()
    found = Shell(Files(tracefs), Commands().run).run(script, output, output)
    assert (found, output.data.decode()) == (status, messages)
