"""Programs of other compilers: Rust's are attached to, and musl's refused before anything in them is touched."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from attaching import attached, fprobe, has_interpreter, interrupted, rows
from sampled import sampled

MUSL, RUST = (
    shutil.which("musl-gcc"),
    shutil.which("rustc") or shutil.which("rustc", path=Path("~/.cargo/bin").expanduser()),
)
C = '#include <unistd.h>\nint main(void) { write(1, "ready\\n", 6); for (;;) pause(); }\n'
RS = """
use std::io::{stdin, BufRead};
#[no_mangle] #[inline(never)] pub extern "C" fn own_work(x: u64) -> u64 { std::hint::black_box(x).wrapping_mul(3) }
fn main() {
    println!("ready");
    for line in stdin().lock().lines() {
        let number: u64 = line.unwrap().parse().unwrap();
        println!("{}", (0..number).map(|x| own_work(x)).sum::<u64>());
    }
}
"""


@pytest.fixture
def started():
    """Starts a program that says when it is ready."""
    made = []

    def start(program):
        made.append(subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert made[-1].stdout.readline() == "ready\n"
        return made[-1]

    yield start
    for each in made:
        each.kill()
        each.communicate()


@pytest.mark.skipif(not MUSL, reason="no musl-gcc: apt-get install musl-tools")
@pytest.mark.parametrize("options", [(), ("-static",)])
def test_a_program_with_musl_is_refused_and_lives_on(tmp_path, started, options):
    (tmp_path / "a.c").write_text(C)
    subprocess.run([MUSL, *options, tmp_path / "a.c", "-o", tmp_path / "a"], check=True)
    process = started(tmp_path / "a")
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    done = fprobe("stat", "-p", process.pid, "main")
    why = "does not use glibc: it is statically linked, or has another C library (musl)"
    assert (done.returncode, done.stderr) == (2, f"fprobe: process {process.pid} {why}\n")
    assert Path(f"/proc/{process.pid}/maps").read_text() == maps and process.poll() is None
    done = fprobe("run", "--stat", "main", tmp_path / "a")
    assert done.returncode == 2 and re.search("is statically linked" if options else r"not glibc \(musl\)", done.stderr)


@pytest.mark.parametrize(
    "words", sampled(["gcc -fsanitize=thread", "clang -fsanitize=thread", "gcc -fsanitize=leak"], 1)
)
@pytest.mark.skipif(not has_interpreter(), reason="no shared libpython: see fprobe doctor")
def test_a_program_with_a_sanitizer_that_knows_its_threads_is_refused_and_lives_on(tmp_path, started, words):
    (tmp_path / "a.c").write_text(
        C.replace("(void)", "(int count, char **words)").replace("for (;;)", "while (count < 2)")
    )
    built = subprocess.run([*words.split(), tmp_path / "a.c", "-o", tmp_path / "a"], capture_output=True)
    if built.returncode:
        pytest.skip(f"no {words}")
    process = started(tmp_path / "a")
    why = "has ThreadSanitizer or LeakSanitizer, which end a program in which threads of others run"
    done = fprobe("stat", "-p", process.pid, "main")
    assert done.returncode == 2 and f"fprobe: process {process.pid} {why}" in done.stderr and process.poll() is None
    done = fprobe("run", "--stat", "main", tmp_path / "a", "ends")
    assert (done.stdout, done.returncode) == ("ready\n", 1) and why in done.stderr


OF_VERSION_0 = """
#include <stdio.h>
__attribute__((noipa)) long work(long) __asm__("_RNvCs1234_4mine4work");
long work(long n) { return n + 1; }
int main(int count, char **words) {
    puts("ready");
    fflush(stdout);
    if (count < 2) getchar();
    for (long n = 0; n < 7; n++) work(n);
    puts("done");
    fflush(stdout);
    return count < 2 && getchar() != EOF;
}
"""


@pytest.mark.stress
@pytest.mark.skipif(not has_interpreter(), reason="no shared libpython: see fprobe doctor")
def test_patterns_match_names_of_rust_of_version_0(tmp_path, started):
    """In programs in machine code they met the symbols: the package that demangles was not imported there."""
    pytest.importorskip("pydemumble")
    (tmp_path / "a.c").write_text(OF_VERSION_0)
    subprocess.run(["cc", "-O1", tmp_path / "a.c", "-o", tmp_path / "a"], check=True)
    done = fprobe("run", "--stat", "mine::*", tmp_path / "a", "ends")
    assert done.returncode == 0 and re.search(r" 7  mine::work \[a\]\n", done.stderr), done.stderr
    process = started(tmp_path / "a")
    with attached("stat", "-p", process.pid, "mine::work", "--json") as command:
        process.stdin.write("now")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        assert rows(interrupted(command))["mine::work"]["hits"] == 7


@pytest.mark.stress
@pytest.mark.skipif(not RUST, reason="no rustc")
@pytest.mark.skipif(not has_interpreter(), reason="no shared libpython: see fprobe doctor")
def test_a_program_in_rust_is_counted_exactly(tmp_path, started):
    (tmp_path / "a.rs").write_text(RS)
    subprocess.run([RUST, "-O", tmp_path / "a.rs", "-o", tmp_path / "a"], check=True)
    process = started(tmp_path / "a")
    with attached("stat", "-p", process.pid, "own_work", "--json") as command:
        process.stdin.write("50\n")
        process.stdin.flush()
        assert process.stdout.readline() == "3675\n"
        assert rows(interrupted(command))["own_work"]["hits"] == 50
