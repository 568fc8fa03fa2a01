"""Old names say the new ones for one version."""

from __future__ import annotations

import pytest

import kprobes
from fprobe.attachment import Attachment
from kprobes.attachment import _Probes
from sandbox.process.renamed import renamed


@pytest.mark.parametrize("name", ["set_kprobes_enabled", "read_kprobes_enabled", "write_kprobes_enabled"])
def test_a_name_of_a_package(name):
    with pytest.warns(DeprecationWarning, match=rf"^kprobes.{name} is now kprobes_enabled\("):
        assert callable(getattr(kprobes, name))
    assert name not in kprobes.__all__ and name not in dir(kprobes)


def test_a_name_of_a_class():
    class Thing:
        new = 7
        old = renamed("old", "new")

    with pytest.warns(
        DeprecationWarning, match="Thing.old is now new; the old name goes with the next version"
    ) as seen:
        assert Thing().old == 7
    assert seen[0].filename == __file__


def test_the_names_of_attachments():
    for kind, name, new in ((_Probes, "nmissed", "missed"), (Attachment, "functions", "targets")):
        assert vars(kind)[name].__doc__ == f"The old name of `{new}`."


def test_attachments_have_no_old_name_that_they_never_had():
    """A program tells by it which kind of attachment it has."""
    assert not hasattr(Attachment, "nmissed") and not hasattr(_Probes, "functions")


def test_the_switch_of_kprobes_is_read_and_set_by_one_name():
    try:
        assert (kprobes.kprobes_enabled(False), kprobes.kprobes_enabled()) == (False, False)
    finally:
        assert kprobes.kprobes_enabled(True)
