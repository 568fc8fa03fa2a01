"""Try every mutant, or those that are named, and print which ones are noticed: `make mutants`.

    python -m tests.mutants [NAME...]

A name may be a pattern. Ends 0 if each is noticed, or listed with the reason why it changes nothing.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from tests.mutants.changes import MUTANTS
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.trial import Copy, Verdict


def chosen(names: Sequence[str]) -> list[Mutant]:
    """The mutants that `names` match; all if there are none. Raises SystemExit for one that matches nothing."""
    for name in names:
        if not any(fnmatchcase(mutant.name, name) for mutant in MUTANTS):
            sys.exit(f"no mutant is called {name!r}; those that there are: {', '.join(each.name for each in MUTANTS)}")
    return [mutant for mutant in MUTANTS if not names or any(fnmatchcase(mutant.name, name) for name in names)]


def outcome(copy: Copy, mutant: Mutant) -> str:
    """A word or the reason, behind which the time is printed."""
    return f"harmless: {mutant.harmless}" if mutant.harmless else copy.try_out(mutant).value


def main(names: Sequence[str]) -> int:
    mutants = chosen(names)
    tests = sorted({test for mutant in mutants if not mutant.harmless for test in mutant.tests})
    missed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as where:
        copy = Copy(ROOT, Path(where))
        if tests and not copy.passes(tests):
            sys.exit("the tests do not pass without a mutant either: run " + " ".join(tests))
        for mutant in mutants:
            began = time.monotonic()
            found = outcome(copy, mutant)
            missed += found in (Verdict.NOT_NOTICED.value, Verdict.NO_TEST.value)
            print(f"{mutant.name:32} {found}  ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{len(mutants)} mutants, {missed} not noticed")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
