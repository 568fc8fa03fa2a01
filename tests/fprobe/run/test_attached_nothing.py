"""With -p: what was asked for and did not happen is said at once and at the end, and the exit code is 1 if nothing happened."""

from __future__ import annotations

import json
import subprocess
import warnings

import pytest
from attaching import COMMAND, LIMIT, attached, fprobe, has_interpreter
from command import forked
from sampled import in_stress

import fprobe as fprobe_module

TYPO, REASON = "libz:deflat", "no function of [libz.so.1] matches 'deflat'; did you mean libz:deflate"
EVENT = "p:asked libz:deflate strm=%di"
UNFOUND, FIELD = "p:asked libz:deflat strm=%di", "Field not found"
CASES = [
    ("stat", (TYPO,), REASON),
    in_stress(("run", ("--stacks", TYPO, "-o", "x.folded"), REASON)),
    in_stress(("record", ("-e", EVENT, "--filter", "nosuch > 1", "-o", "x.dat"), FIELD)),
    in_stress(("stat", (TYPO, "-o", "x.csv"), REASON)),
    in_stress(("run", ("--trace", TYPO, "-o", "x.parquet"), REASON)),
    in_stress(("run", ("--stacks", TYPO, "-o", "x.speedscope.json"), REASON)),
    ("run", ("--hist", "libz:deflate", "--of", "nosuch"), "This variable is not found"),
    in_stress(("trace", (TYPO,), REASON)),
    in_stress(("top", ("--stat", TYPO), REASON)),
    in_stress(("hist", ("-e", EVENT, "keys=nosuch"), "Couldn't find field")),
    in_stress(("hist", ("-e", UNFOUND, "keys=strm"), REASON)),
    in_stress(("record", ("-e", UNFOUND, "-o", "x.dat"), REASON)),
]


@pytest.mark.parametrize(("verb", "words", "said"), CASES)
def test_nothing_is_probed(target, tmp_path, monkeypatch, verb, words, said):
    monkeypatch.chdir(tmp_path)
    recording = tmp_path / "x.dat"
    recording.write_text("old")
    done = fprobe(verb, "-p", target.pid, *words, "--duration", "0.2")
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and lines[0].endswith(": 0 functions; Ctrl-C ends") and said in lines[1], done.stderr
    assert (done.stdout + done.stderr).count(said) == 1, done
    assert recording.read_text() == "old" and ("x.dat: not written" in done.stdout) == (verb == "record")


@pytest.mark.parametrize("verb", ["run --stat", in_stress("run --trace"), "top --stat", "record -e"])
def test_no_process_has_a_report(tmp_path, verb):
    path = tmp_path / {"run --trace": "x.parquet", "record -e": "x.dat"}.get(verb, "x.txt")
    path.write_text("old")
    refused = fprobe(*verb.split()[:1], "-p", 1 << 22, *verb.split()[1:], "p:x libz:deflate", "-o", path)
    assert refused.returncode == 2 and "there is no process" in refused.stderr and path.read_text() == "old"
    path.unlink()
    fprobe(*verb.split()[:1], "-p", 1 << 22, *verb.split()[1:], "p:x libz:deflate", "-o", path)
    assert not path.exists()


def test_a_file_that_is_read_later_says_it_too(target, tmp_path):
    done = fprobe("stat", "-p", target.pid, TYPO, "libz:deflate", "--duration", "0.2", "-o", tmp_path / "x.txt")
    assert done.returncode == 0 and done.stderr.count(REASON) == (tmp_path / "x.txt").read_text().count(REASON) == 1


@pytest.mark.stress
def test_some_is_probed(target):
    done = fprobe("stat", "-p", target.pid, TYPO, "libz:deflate", "--duration", "0.2", "--json")
    assert done.returncode == 0 and REASON in done.stderr
    assert json.loads(done.stdout)["processes"][0]["not_found"][0]["pattern"] == TYPO


@pytest.mark.parametrize("words", [("hist", "keys=strm"), ("record", "-o", "x.dat")])
def test_what_is_not_found_has_one_form_in_json(target, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    done = fprobe(*words, "-p", target.pid, "-e", UNFOUND, "--duration", "0.2", "--json")
    (found,) = json.loads(done.stdout)["processes"][0]["not_found"]
    assert found["pattern"] == "libz:deflat" and REASON in found["reason"]


def test_it_is_said_before_the_end(target):
    with attached("stat", "-p", target.pid, TYPO) as process:
        assert REASON in process.stderr.readline()


@pytest.mark.stress
@pytest.mark.parametrize("closed", [in_stress(">&-"), "2>&-", in_stress("0<&- 1>&- 2>&-")])
def test_standard_descriptors_are_closed(target, closed):
    words = ["stat", "-p", str(target.pid), "libz:deflate", "--duration", "0.2"]
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0 and ("deflate [libz]" in done.stdout) == (closed == "2>&-"), done


@pytest.mark.parametrize("verb", ["top -d 0.05 --stat", in_stress("trace")])
def test_a_table_that_nobody_reads_ends(target, verb):
    command = f'"$@" -p {target.pid} {verb.partition(" ")[2]} libz:deflate | head -n 1'
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command, "sh", *COMMAND, verb.split()[0]], timeout=LIMIT)
    assert done.returncode == 0


def test_attach_to_tells_it(target):
    with (
        pytest.warns(RuntimeWarning, match="did you mean libz:deflate"),
        fprobe_module.attach_to(target.pid, stat=TYPO) as process,
    ):
        pass
    assert process.stat() == [] and REASON in process.errors[0]
    with pytest.raises(ValueError, match="nothing is to be recorded"):
        fprobe_module.attach_to(target.pid, stat="")


@pytest.mark.stress
def test_attach_to_raises_for_events_and_warns_of_nothing_else(target):
    with (
        pytest.raises(OSError, match=r"are not known|not found"),
        fprobe_module.attach_to(target.pid, event="p:asked libz:deflate strm=nosuch"),
    ):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with fprobe_module.attach_to(target.pid, stat="libz:deflate"):
            pass


def test_entry_and_return_are_recorded_from_one_moment_on_and_until_one(target, tmp_path):
    path = tmp_path / "calls.dat"
    both = ("-e", "p:asked libz:deflate", "-e", "r:done libz:deflate")
    done = fprobe("record", "-p", target.pid, *both, "-o", path, "--duration", "0.3")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line)["event"] for line in fprobe("report", path, "--json").stdout.splitlines()]
    assert events.count("done") > 10 and abs(events.count("asked") - events.count("done")) <= 2


@pytest.mark.skipif(not has_interpreter(), reason="no interpreter to bring")
@pytest.mark.parametrize(
    "words", ["--stat libz:deflate", in_stress("-e p:asked\tlibz:deflate"), in_stress("--hist libz:deflate --of flush")]
)
def test_a_library_that_only_fprobe_has_loaded(words):
    """Its functions were "probed", and it was not said that the program has no such library."""
    done = forked(["run", *words.split(" "), "/usr/bin/env", "true"], LIMIT)
    assert "# [libz.so.1] is here since fprobe came: the program itself had not loaded it" in done.stderr


@pytest.mark.stress
@pytest.mark.skipif(not has_interpreter(), reason="no interpreter to bring")
def test_a_library_that_the_program_has_loaded():
    done = forked(["run", "--stat", "libc:puts", "/usr/bin/env", "true"], LIMIT)
    assert "since fprobe came" not in done.stderr
