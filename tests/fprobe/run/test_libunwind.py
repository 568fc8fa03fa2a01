"""Programs that unwind by libunwind (nongnu.org), which does not ask libgcc for descriptions of code without a file."""

import shutil
import subprocess

import pytest

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="no g++")

SOURCE = """
#include <dlfcn.h>
#include <cstdio>
#include <stdexcept>
#define APART extern "C" __attribute__((noinline, noipa))
struct Guard { int &ends; ~Guard() { ends++; } };
static int ends;
static int (*walk)(void **, int);
APART int main_size();
int main();
APART int leaf(int n) {
  void *frames[64];
  int callers = walk(frames, 64), found = 0;
  for (int i = 0; i < callers; i++) found += (char *)frames[i] >= (char *)main && (char *)frames[i] < (char *)main_size;
  if (n % 3 == 2) throw std::runtime_error("third");
  return found;
}
APART int middle(int n) { Guard guard{ends}; return leaf(n); }
APART int outer(int n) { Guard guard{ends}; return middle(n) + 10; }
int main() {
  auto library = dlopen("libunwind.so.8", RTLD_NOW);
  if (!library) return 77;
  walk = (int (*)(void **, int))dlsym(library, "unw_backtrace");
  int sum = 0;
  for (int n = 0; n < 30; n++) try { sum += outer(n); } catch (std::exception &) { sum += 1000; }
  std::printf("%d %d\\n", sum, ends);
}
APART int main_size() { return 0; }
"""


@pytest.fixture(scope="module", params=["linked", "loaded later"])
def program(request, tmp_path_factory):
    made = tmp_path_factory.mktemp("unwound") / "unwound"
    flags = ["-Wl,--no-as-needed", "-l:libunwind.so.8"] if request.param == "linked" else []
    command = ["g++", "-xc++", "-", "-xnone", "-g", "-O1", "-fno-toplevel-reorder", *flags, "-o", made]
    done = subprocess.run(command, input=SOURCE, text=True, stderr=subprocess.PIPE, check=False)
    if done.returncode and "cannot find" in done.stderr:
        pytest.skip("no libunwind")
    assert done.returncode == 0, done.stderr
    if subprocess.run(made, stdout=subprocess.DEVNULL, check=False).returncode == 77:
        pytest.skip("no libunwind")
    return made


WAITING = ["--stat", "libnothing:*"]
"""What libraries that are loaded later are looked for."""


@pytest.mark.parametrize(
    "options", [["--stat", "*"], ["-e", "r:r middle", "-e", "f:x outer%return"]], ids=["hooks", "both"]
)
def test_exceptions_and_stack_traces_pass_hooked_calls(launch, program, options):
    done = launch(*options, *WAITING, words=[program])
    assert (done.returncode, done.out) == (0, "10220 60\n"), done.err
    if options[0] == "--stat":
        hits = {name: row["hits"] for name, row in done.functions().items()}
        assert hits.items() >= {"leaf": 30, "middle": 30, "outer": 30, "main": 1}.items()


@pytest.mark.parametrize("is_there", [False, True])
def test_what_dlerror_has_to_say_stays_the_programs(launch, is_there):
    """Looking for libunwind by dlopen took it away, and Numba, which uses it unseen, ended by SIGSEGV as it was imported."""
    source = f"""
    import ctypes
    libc = ctypes.CDLL(None)
    libc.dlopen.restype, libc.dlerror.restype = ctypes.c_void_p, ctypes.c_char_p
    libc.dlopen(b"libunwind.so.8", 2) if {is_there} else None
    libc.dlerror()
    print(libc.dlopen(b"libnosuch.so", 2), libc.dlerror())
    """
    done = launch(*WAITING, "--stat", "*:nothing", source=source, as_json=False)
    assert "None b'libnosuch.so: cannot open" in done.out, done
