"""Programs with handlers of faults: they do not see ours, and a probe that reads a bad pointer does not call theirs."""

import shutil
import subprocess

import pytest

SOURCE = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#define APART __attribute__((noinline, noipa))
static sigjmp_buf back;
static int faults;
APART long work(const char *text) { return (long)text & 7; }
APART long load(const volatile char *text) { return *text; }
static void handler(int number, siginfo_t *info, void *context) {
  sigset_t mask;
  sigprocmask(SIG_BLOCK, 0, &mask);
  printf("%d: code %d, blocked %d %d %d\n", number, info->si_code, sigismember(&mask, SIGSEGV),
         sigismember(&mask, SIGUSR1), sigismember(&mask, SIGTERM));
  if (info->si_code > 0) siglongjmp(back, 1);
}
static void simple(int number) { faults++; siglongjmp(back, 1); }
static void alarmed(int number) { kill(getpid(), SIGSEGV); }
static void call_with_bad_pointers(void) { for (long at = 0x5000; at < 0x8000; at += 0x1000) work((char *)at); }
int main(int count, char **words) {
  struct sigaction own = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO}, found;
  int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
  for (int at = 0; at < 6; at++) { sigaction(numbers[at], 0, &found); printf("%d", found.sa_handler == SIG_DFL); }
  sigaddset(&own.sa_mask, SIGUSR1);
  sigaction(SIGSEGV, &own, &found);
  printf(" %d\n", found.sa_handler == SIG_DFL);
  sigaction(SIGSEGV, 0, &found);
  printf("%d %d %d\n", found.sa_sigaction == handler, found.sa_flags & SA_SIGINFO, sigismember(&found.sa_mask, SIGUSR1));
  call_with_bad_pointers();
  work("text");
  if (!sigsetjmp(back, 1)) load((char *)0x9000);
  kill(getpid(), SIGSEGV);
  raise(SIGSEGV);
  printf("%d\n", signal(SIGSEGV, simple) == (void *)handler);
  if (!sigsetjmp(back, 1)) load((char *)0x9000);
  call_with_bad_pointers();
  own.sa_flags = SA_SIGINFO | SA_RESETHAND | SA_NODEFER;
  sigaction(SIGSEGV, &own, 0);
  kill(getpid(), SIGSEGV);
  sigaction(SIGSEGV, 0, &found);
  printf("%d %d\n", faults, found.sa_handler == SIG_DFL);
  signal(SIGSEGV, SIG_IGN);
  kill(getpid(), SIGSEGV);
  call_with_bad_pointers();
  for (int restarts = 0; restarts < 2; restarts++) {
    int ends[2];
    char byte;
    struct sigaction timed = {.sa_handler = alarmed, .sa_flags = SA_RESTART};
    own.sa_flags = SA_SIGINFO | (restarts ? SA_RESTART : 0);
    sigaction(SIGSEGV, &own, 0);
    sigaction(SIGALRM, &timed, 0);
    pipe(ends);
    fflush(stdout);
    if (!fork()) { usleep(300000); write(ends[1], "x", 1); _exit(0); }
    ualarm(50000, 0);
    errno = 0;
    printf("read %ld\n", (long)read(ends[0], &byte, 1));
  }
  signal(SIGSEGV, SIG_DFL);
  fflush(stdout);
  call_with_bad_pointers();
  return load((char *)0x9000);
}
"""
READS = "p:read work text=+0(%di):string"

RUST = """
#[inline(never)]
fn deep(n: u64) -> u64 { let held = [n; 64]; if n == u64::MAX { 0 } else { deep(n + 1) + std::hint::black_box(held)[3] } }
fn main() {
    if std::env::args().count() > 1 { println!("{}", deep(1)); }
    println!("{:?}", std::thread::Builder::new().name("worker".into()).spawn(|| deep(1)).unwrap().join().is_ok());
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    made = tmp_path_factory.mktemp("faults") / "faults"
    subprocess.run(["gcc", "-xc", "-", "-w", "-g", "-O1", "-o", made], input=SOURCE, text=True, check=True)
    return made


@pytest.mark.parametrize(
    "options", [["-e", READS], ["--trace", "work"], ["--stat", "*"]], ids=["event", "trace", "stat"]
)
def test_a_program_with_handlers_of_faults_behaves_the_same(launch, program, options):
    plain = subprocess.run(program, capture_output=True, text=True, check=False)
    assert plain.returncode == -11 and plain.stdout.startswith("111111 1\n1 4 1\n11: code 1, blocked 1 1 0\n")
    done = launch(*options, words=[program])
    assert (done.returncode, done.out) == (plain.returncode, plain.stdout), done.err


@pytest.mark.skipif(not shutil.which("rustc"), reason="no rustc")
@pytest.mark.parametrize("words", [[], pytest.param(["main"], marks=pytest.mark.stress)], ids=["thread", "main"])
def test_a_stack_overflow_in_rust_is_said(launch, tmp_path, words):
    """Its runtime has a handler only where there is none when it begins."""
    made = tmp_path / "overflows"
    command = ["rustc", "-O", "-", "-o", made]
    subprocess.run(command, input=RUST, text=True, check=True, stderr=subprocess.DEVNULL)
    done = launch("--stat", "libc:malloc", words=[made, *words])
    assert done.returncode == -6 and "has overflowed its stack" in done.err


def test_faulthandler_is_not_called_for_bad_pointers_that_probes_read(launch):
    code = (
        "import ctypes, faulthandler; faulthandler.enable(); z = ctypes.CDLL('libz.so.1').adler32\n"
        "z.argtypes = [ctypes.c_ulong, ctypes.c_void_p, ctypes.c_uint]\n"
        "print([z(1, at, 0) for at in (0x5000, 0x9000)], flush=True); ctypes.string_at(0x9000)"
    )
    done = launch("-e", "p:x libz:adler32 text=+0(%si):string", words=["-c", code])
    assert (done.returncode, done.out) == (-11, "[1, 1]\n")
    assert "Fatal Python error: Segmentation fault" in done.err and "string_at" in done.err
