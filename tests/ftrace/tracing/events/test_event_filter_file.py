"""The filter files of an event and of a group (TE-6.8, 6.11)."""

from __future__ import annotations

import errno

import pytest
from event_records import FIELDS

from ftrace.tracing.events.filters.errors import FilterError
from ftrace.tracing.events.filters.fields import PlainField
from ftrace.tracing.events.filters.filter_file import GROUP_HELP, EventFilter, write_group_filter


class Log(list):
    def add(self, *entry):
        self.append(entry)


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def applied():
    return []


@pytest.fixture
def file(log, applied):
    return EventFilter(FIELDS, log, applied.append)


def test_it_reads_what_was_written_without_blanks_at_the_end(file, applied):
    assert file.read() == "none\n"
    file.write("  fd   ==   3  \n")
    assert file.read() == "  fd   ==   3\n"
    file.write(" 0 \n")
    assert file.read() == "none\n"
    assert [filter_ and filter_.text for filter_ in applied] == ["  fd   ==   3", None]


def test_a_refused_filter_is_shown_with_a_caret_logged_and_replaces_the_old_one(file, log, applied):
    file.write("fd == 3")
    with pytest.raises(FilterError) as caught:
        file.write("name == /etc/passwd\n")
    assert caught.value.errno == errno.EINVAL
    assert file.read() == ("name == /etc/passwd\n         ^\nparse_error: Invalid value (did you forget quotes)?\n\n")
    message = "Invalid value (did you forget quotes)?"
    assert log == [("event filter parse error", message, "name == /etc/passwd", 9)]
    assert file.filter is None and applied[-1] is None


def test_the_caret_stays_within_the_text_and_the_logged_position_does_not(file, log):
    with pytest.raises(FilterError):
        file.write("fd")
    assert file.read() == "fd\n  ^\nparse_error: Invalid operator\n\n"
    assert log[0][3] == 3


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_write_is_an_error_without_a_position(file, log, text):
    with pytest.raises(FilterError):
        file.write(text)
    assert file.read() == "\nError: (0)\n\n"
    assert log == [("event filter parse error", "Error", "", 0)]


def test_two_zeros_are_no_filter(file):
    with pytest.raises(FilterError):
        file.write("00")


def test_te6_8_a_filter_ends_at_a_nul(file, log):
    file.write("fd == 3 \0junk")
    assert file.read() == "fd == 3\n"
    file.write("0\0")
    assert file.read() == "none\n"
    write_group_filter([file], "fd == 4\0)")
    assert file.read() == "fd == 4\n"
    with pytest.raises(FilterError):
        file.write("\0fd == 3")


def test_a_write_of_4096_bytes_is_refused_and_changes_nothing(file):
    file.write("fd == 3")
    with pytest.raises(OSError) as caught:
        file.write("fd == 3" + " " * 4089)
    assert caught.value.errno == errno.EINVAL
    assert file.read() == "fd == 3\n"


def test_a_groups_filter_goes_to_the_events_that_accept_it(log):
    one, other = EventFilter(FIELDS, log), EventFilter([PlainField("u32", "other", 8, 4)], log)
    other.write("other == 1")
    write_group_filter([one, other], "fd == 3\n")
    message = "Couldn't find or set field in one of a subsystem's events"
    assert one.read() == "fd == 3\n"
    assert other.read() == f"fd == 3\n^\nparse_error: {message}\n\n"
    assert log == [("event filter parse error", message, "fd == 3", 0)]
    write_group_filter([one, other], "0\n")
    assert (one.read(), other.read()) == ("none\n", "none\n")


def test_a_group_without_events_has_no_filter():
    with pytest.raises(OSError) as caught:
        write_group_filter([], "fd == 3")
    assert caught.value.errno == errno.ENODEV


def test_the_help_of_a_groups_file_has_four_lines():
    assert GROUP_HELP.count("\n") == 4
