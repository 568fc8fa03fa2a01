"""Run CPython's tests without and with probes, library by library, and print a table: `make libraries`.

    python -m tests.libraries [LIBRARY...]

`PYTHON` chooses the interpreter: one with its package `test`, such as Debian's with libpython3.11-testsuite.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from tests.libraries import described

TESTS = {
    "libz.so.1": "test_zlib,test_gzip",
    "libbz2.so.1.0": "test_bz2",
    "liblzma.so.5": "test_lzma",
    "libexpat.so.1": "test_pyexpat,test_xml_etree,test_xml_etree_c,test_minidom,test_sax",
    "libm.so.6": "test_math,test_cmath",
    "libsqlite3.so.0": "test_sqlite3,test_dbm",
    "libcrypto.so.3": "test_hashlib,test_hmac",
    "libssl.so.3": "test_ssl",
    "libffi.so.8": "test_ctypes",
}
_LIMIT = 1800
_JUMPS = ("jump", "punned jump", "jump over several instructions")
_HEADER = """\
| library | of the FDEs | functions | jumps | breakpoints | refused | hits | tests | attach (s) |
|---|---|---|---|---|---|---|---|---|"""


def run(library: str, *options: str) -> dict[str, Any]:
    """What one process says. Raises CalledProcessError if it fails."""
    root, packages = Path(__file__).parents[2], sysconfig.get_paths()["platlib"]
    command = [os.environ.get("PYTHON", sys.executable), "-X", "faulthandler", "-m", "tests.libraries.probed"]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{packages}"}
    done = subprocess.run(
        [*command, TESTS[library], library, *options],
        env=environment,
        timeout=_LIMIT,
        check=True,
        stdout=subprocess.PIPE,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def described_functions(probed: dict[str, Any]) -> dict[int, str]:
    """How each function that pyelftools finds is patched, or why it is not, by its address in the file."""
    starts = described.functions(Path(probed["path"]))
    return {start: probed["places"].get(str(start), "it is not among our functions") for start in starts}


def row(library: str, plain: dict[str, Any], probed: dict[str, Any]) -> str:
    """A line of the table."""
    ways, skipped = probed["ways"], len(probed["skipped"])
    jumps = sum(ways.get(way, 0) for way in _JUMPS)
    functions = probed["functions"]
    share = f"{jumps:,} ({100 * jumps / functions:.1f} %)"
    described = described_functions(probed)
    as_jumps = sum(way in _JUMPS for way in described.values())
    counted = f"{as_jumps:,} of {len(described):,} ({100 * as_jumps / len(described):.1f} %)"
    outcome = f"{len(plain['outcomes'])} the same" if plain["outcomes"] == probed["outcomes"] else "DIFFERENT"
    breakpoints, hits = ways.get("breakpoint", 0), probed["counts"]["hits"]
    attach = f"{probed['attach_s']:.2f}"
    return f"| {library} | {counted} | {functions:,} | {share} | {breakpoints} | {skipped} | {hits:,} | {outcome} | {attach} |"


def wrong(plain: dict[str, Any], probed: dict[str, Any]) -> list[str]:
    """What must not be: other results, or calls with a return node that have neither returned nor are under way."""
    found = [
        f"{name}: {plain['outcomes'].get(name)} without, {probed['outcomes'].get(name)} with probes"
        for name in sorted({*plain["outcomes"], *probed["outcomes"]})
        if plain["outcomes"].get(name) != probed["outcomes"].get(name)
    ]
    pending = probed["pending"]
    if probed["entered"] != probed["left"] + len(pending):
        found.append(f"{probed['entered']:,} calls, {probed['left']:,} returns; under way: {pending}")
    return found


def main() -> int:
    print(_HEADER)
    failures: list[str] = []
    for library in sys.argv[1:] or TESTS:
        plain, probed = run(library), run(library, "probe")
        print(row(library, plain, probed), flush=True)
        failures += [f"{library}: {what}" for what in wrong(plain, probed)]
        for name, reason in probed["skipped"]:
            print(f"  {name}: {reason}", file=sys.stderr)
        for start, way in described_functions(probed).items():
            if way not in _JUMPS:
                print(f"  {library}+{start:#x}: {way}", file=sys.stderr)
    print("\n".join(failures), file=sys.stderr)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
