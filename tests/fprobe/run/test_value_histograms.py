"""`fprobe run --hist` of the values of arguments: --of, --by arg(NAME), --where, --sum."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from sampled import in_stress, sampled

from fprobe.run.values import Values

CALLS = """
import ctypes
libc = ctypes.CDLL(None)
for size in (1, 2, 3, 4, 5, 1000, -7):
    libc.labs(ctypes.c_long(size))
"""
FORKS = """
import ctypes, os, signal
libc = ctypes.CDLL(None)
def call(*sizes):
    for size in sizes:
        libc.labs(ctypes.c_long(size))
call(1, 2)
if not os.fork():
    call(30)
    os._exit(0)
os.wait()
call(4)
os.kill(os.getpid(), signal.SIGKILL)
"""


def values(done, process=0):
    return done.report["processes"][process]["values"]


def test_values_are_counted_by_powers_of_two_and_added_up(launch):
    (row,) = values(launch("--hist", "libc:labs", "--of", "arg1:s64", "--sum", "arg1", source=CALLS))
    assert (row["symbol"], row["hits"], row["sum"]) == ("labs", 7, {"arg1": 1008})
    assert [(each["low"], each["high"], each["count"]) for each in row["values"]] == [
        (0, 1, 2), (2, 2, 1), (3, 4, 2), (5, 8, 1), (513, 1024, 1),
    ]  # fmt: skip


def test_functions_of_a_glob_have_the_name_each_in_its_own_place(launch):
    source = """
    import ctypes
    libc = ctypes.CDLL(None)
    libc.calloc(3, ctypes.c_long(7_000_003)); libc.malloc(ctypes.c_long(7_000_004)); libc.realloc(None, ctypes.c_long(7_000_005))
    """
    done = launch("--hist", "libc:*alloc", "--sum", "size", "--where", "size > 7000000", source=source)
    found = {row["symbol"]: (row["hits"], row["sum"]["size"]) for row in values(done)}
    assert found == {
        "calloc": (1, 7_000_003),
        "malloc": (2, 14_000_009),
        "realloc": (1, 7_000_005),
    }  # realloc calls malloc


@pytest.mark.stress
def test_arguments_have_the_names_of_the_header(launch):
    """With debug information or without: glibc calls that of malloc `bytes`, and its manual `size`."""
    source = "import ctypes; ctypes.CDLL(None).calloc(3, ctypes.c_long(7_000_003))"
    words = ["--of", "size:u64", "--by", "arg(nmemb:u64)", "--where", "size > 7000000"]
    (row,) = values(launch("--hist", "libc:calloc", *words, source=source))
    assert (row["nmemb"], row["hits"]) == (3, 1)


@pytest.mark.stress
def test_the_product_of_two_arguments_is_added_up(launch):
    source = (
        "import ctypes; calloc = ctypes.CDLL(None).calloc; [calloc(n, ctypes.c_long(7_000_003)) for n in (1, 2, 3)]"
    )
    words = ["--hist", "libc:calloc", "--sum", "nmemb*size", "--where", "size > 7000000"]
    (row,) = values(launch(*words, source=source))
    assert (row["hits"], row["sum"]) == (3, {"nmemb*size": 6 * 7_000_003})


@pytest.mark.stress
def test_only_calls_that_pass_the_filter_count(launch):
    (row,) = values(launch("--hist", "libc:labs", "--where", "arg1 > 3 && arg1 < 100", source=CALLS))
    assert row["hits"] == 2 and "sum" not in row and "values" not in row


@pytest.mark.parametrize("as_json", [True, in_stress(False)])
def test_calls_are_grouped_by_a_text(launch, tmp_path, as_json):
    names = [tmp_path / "plain", tmp_path / 'a "b"', tmp_path / ("x" * 300)]
    source = f"""
import os
for name in {[*map(str, names)]} * 2:
    try: os.stat(name)
    except OSError: pass
"""
    words = [
        "--hist",
        "libc:stat64",
        "--by",
        "arg(file:string)",
        "--sum",
        "arg2:u8",
        "--where",
        f'file ~ "{tmp_path}/*"',
    ]
    if as_json:
        rows = values(launch(*words, source=source))
        assert {(row["file"], row["hits"]) for row in rows if "app" not in row["file"]} == {
            (str(names[0]), 2), (str(names[1]), 2), (str(names[2])[:255], 2)
        }  # fmt: skip
    else:
        shown = launch(*words, source=source, as_json=False).err
        assert f'file="{tmp_path}/a \\"b\\"": 2 calls' in shown


@pytest.mark.stress
def test_calls_are_grouped_by_an_argument_largest_sum_first(launch):
    words = ["--hist", "libc:labs", "--by", "arg(arg1:s64)", "--sum", "arg1", "--top", "3"]
    done = launch(*words, source=CALLS + "libc.labs(ctypes.c_long(5))")
    assert [(row["arg1"], row["hits"], row["sum"]["arg1"]) for row in values(done)] == [
        (1000, 1, 1000),
        (5, 2, 10),
        (4, 1, 4),
    ]
    assert (done.report["processes"][0]["values_left_out"], done.report["processes"][0]["values_without_place"]) == (
        4,
        0,
    )


@pytest.mark.stress
@pytest.mark.parametrize("by", ["caller", in_stress("thread")])
def test_calls_are_grouped_by_caller_and_thread(launch, by):
    done = launch("--hist", "libc:labs", "--of", "arg1", "--by", by, source=CALLS)
    (row,) = values(done)
    assert row["hits"] == 7
    assert row["tid"] == done.report["processes"][0]["pid"] if by == "thread" else "ffi" in row["caller"]


@pytest.mark.stress
def test_results_are_values_too(launch):
    (row,) = values(launch("--hist", "libc:labs", "--sum", "retval", "--where", "retval > 3", source=CALLS))
    assert (row["hits"], row["sum"]) == (4, {"retval": 1016})


@pytest.mark.stress
def test_processes_that_fork_and_are_killed_count_apart_and_together(launch):
    done = launch("--hist", "libc:labs", "--sum", "arg1", source=FORKS)
    assert [values(done, number)[0]["sum"]["arg1"] for number in (0, 1)] == [7, 30]
    (row,) = done.report["total_values"]
    assert (row["hits"], row["sum"]) == (4, {"arg1": 37})


@pytest.mark.stress
def test_tables_of_times_are_shown_beside(launch):
    done = launch("--stat", "libc:labs", "--hist", "libc:labs", "--of", "arg1", source=CALLS, as_json=False)
    assert " 7  labs [libc]\n" in done.err and "\nlabs [libc]: 7 calls\n" in done.err


@pytest.mark.stress
def test_what_has_no_place_is_said(launch):
    source = "import ctypes\nlabs = ctypes.CDLL(None).labs\nfor each in range(2100): labs(each)"
    done = launch("--hist", "libc:labs", "--by", "arg(arg1)", "--top", "1", source=source, as_json=False)
    assert "2,047 rows are not shown: after the first 1 (--top)" in done.err.replace("# ", "")
    assert "# 52 calls are not in this table: a thread has place for 2,048 different rows" in done.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    sampled(
        [
            (["--of", "a b"], 2, "'a b' is not an argument; give its name, or arg1"),
            (["--by", "argument"], 2, "'argument' is not one of function, caller, thread, or arg(NAME)"),
            (["--by", "arg()"], 2, "'' is not an argument"),
            (["--of", "arg1:u9"], 1, "arg1=$arg1:u9"),
            (["--where", "arg1 >"], 1, "arg1 >"),
            (["--of", "arg1:string"], 2, "arg1:string is a text; --by 'arg(arg1:string)' counts by the text itself"),
            (["--of", "nothing"], 1, "nothing=nothing"),
        ],
        1,
    ),
)
def test_arguments_that_are_not_there_are_refused(launch, words, code, message):
    done = launch("--hist", "libc:labs", *words, source=CALLS, as_json=False)
    assert done.returncode == code and message in done.err


@pytest.mark.parametrize(
    ("words", "is_refused"),
    sampled(
        [
            (["--hist", "libc:labs", "--by", "arg(arg7)"], True),
            (["--stacks", "libc:labs", "--where", "arg2 > 0"], True),
            (["--stat", "libc:labs", "--by", "arg(arg2:s32)"], True),
            (["--hist", "libc:labs", "--sum", "arg2"], True),
            (["--hist", "libc:l[ad][bi][sv]", "--of", "arg2"], False),
        ],
        2,
    ),
)
def test_arguments_that_a_function_has_not_are_not_read_from_elsewhere(launch, words, is_refused):
    done = launch(*words, source=f"{CALLS}\nctypes.CDLL(None).labs(1)", as_json=False)
    assert (done.returncode, "# not counted: labs [libc.so.6]" in done.err) == (is_refused, not is_refused), done.err
    assert "labs [libc.so.6]: it has no arg" in done.err


KINDS = """
double h_real(int a) { return a / 4.0; }
void h_none(int *a) { *a = 3; }
int h_int(int a) { return -a; }
unsigned long h_large(long a) { return -a; }
signed char h_small(int a) { return -a; }
"""
CALL_KINDS = """
import ctypes
kinds = ctypes.CDLL("{path}")
for name in ("h_real", "h_int", "h_large", "h_small"):
    getattr(kinds, name)(ctypes.c_long(5))
kinds.h_none(ctypes.byref(ctypes.c_int()))
"""


@pytest.fixture
def kinds(tmp_path):
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    (tmp_path / "kinds.c").write_text(KINDS)
    path = tmp_path / "libkinds.so"
    subprocess.run(["cc", "-g", "-O1", "-shared", "-fPIC", tmp_path / "kinds.c", "-o", path], check=True)
    return CALL_KINDS.format(path=path)


@pytest.mark.stress
def test_only_results_in_a_general_register_are_values(launch, kinds):
    done = launch("--hist", "libkinds:h_*", "--by", "arg(retval)", source=kinds)
    assert {(row["name"], row["retval"]) for row in values(done)} == {
        ("h_int", 0xFFFFFFFB), ("h_large", (1 << 64) - 5), ("h_small", 0xFFFFFFFB)
    }  # fmt: skip
    assert not done.report["processes"][0]["errors"]
    assert sorted(done.report["processes"][0]["remarks"]) == [
        "not counted: h_none [libkinds.so]: it has no retval: it returns nothing",
        "not counted: h_real [libkinds.so]: it has no retval: its result is not in a general register",
    ]


@pytest.mark.stress
@pytest.mark.parametrize("words", sampled([["--by", "arg(retval)"], ["--where", "retval > 0"]], 1))
def test_results_of_tables_have_their_own_signs(launch, kinds, words):
    done = launch("--stat", "libkinds:h_*", *words, source=kinds)
    process = done.report["processes"][0]
    assert {each["name"].partition(" ")[0] for each in process["skipped"]} == {"h_none", "h_real"}
    found = {(row["name"], row.get("retval")) for row in process["functions"]}
    if words[0] == "--by":
        assert found == {("h_int", -5), ("h_large", (1 << 64) - 5), ("h_small", -5)}
    else:
        assert found == {("h_large", None)}


def test_values_need_a_function(launch):
    done = launch("--sum", "size", source="", as_json=False)
    assert done.returncode == 2 and "--sum: for the calls of --hist and --stacks; give one of them, too" in done.err


@pytest.mark.stress
def test_fields_of_a_filter_may_have_types(launch):
    (row,) = values(launch("--hist", "libc:labs", "--where", "arg1:s64 < 0 && comm != 'arg1:u8 < 9'", source=CALLS))
    assert row["hits"] == 1


def test_words_of_the_question_become_those_of_events_and_triggers():
    asked = Values("size", "arg(fd:s32)", "flags & 4 && comm != 'size == 3'", "arg3:u32").checked()
    assert asked.definition(1, "libc:f") == "f:fprobe_values/h1 libc:f size=size arg3=$arg3:u32 fd=fd:s32 flags=flags"
    assert asked.trigger == (
        "hist:keys=__probe_ip,fd,size.log2:vals=arg3:size=2048 if flags & 4 && comm != 'size == 3'"
    )
    assert Values(by="caller", sum="retval").trigger.startswith("hist:keys=__probe_func,__probe_ret_ip:vals=retval:")
