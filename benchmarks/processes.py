"""Samples from several processes: where code and stacks happen to lie decides about a nanosecond or two.

Some placements let branches or addresses collide in the CPU's predictors for as long as a process lives; a median over
one process alone would be the median of a single throw of the dice.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from benchmarks.measure import Sample

Samples = Mapping[str, Sequence[Sample]]
"""The samples of each row."""


class ChildError(RuntimeError):
    """A measuring process has failed; the message is what it said."""


def lines(samples: Samples) -> Iterator[str]:
    """Samples as text: one JSON array per line, of a name and a sample."""
    for name, taken in samples.items():
        for sample in taken:
            yield json.dumps([name, asdict(sample)])


def gather(arguments: Sequence[str], number: int) -> Samples:
    """Run the command with these arguments in `number` processes, one after the other; the samples of them all.

    Raises ChildError if one fails.
    """
    gathered: dict[str, list[Sample]] = {}
    for _ in range(number):
        for line in _output([*arguments, "--samples"]).splitlines():
            name, fields = json.loads(line)
            gathered.setdefault(name, []).append(Sample(**fields))
    return gathered


def _output(arguments: Sequence[str]) -> str:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChildError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout
