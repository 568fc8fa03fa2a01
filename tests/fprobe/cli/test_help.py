"""Help: for terminals of 80 columns, and for readers that read only its beginning."""

from __future__ import annotations

import os
import subprocess

import click
import pytest
from command import COMMAND, environment

from fprobe.cli.verbs import verbs


@pytest.mark.parametrize(
    "words", [("--help",), ("--version",), ("trace", "--help"), ("help", "run.md"), ("completion", "bash")]
)
def test_help_for_a_reader_that_has_gone_is_no_failure(words):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *words],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
        env=environment(PYTHONUNBUFFERED="1"),
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("verb", verbs.list_commands(None))
def test_help_has_80_columns(verb):
    command = verbs.get_command(None, verb)
    text = command.get_help(click.Context(command, info_name=f"fprobe {verb}", terminal_width=80, max_content_width=80))
    assert [line for line in text.splitlines() if len(line) > 80] == []
