"""What a shell does with a job: a process group in the foreground of the terminal, whose stops and end are told.

`python shell.py COMMAND...` prints `stopped` when the job is stopped, continues it, and prints how it ended; and `no echo` if the
job has left the terminal so.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
import time


def main(command):
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if not job:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpgrp())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execv(command[0], command)
    while True:
        _, status = os.waitpid(job, os.WUNTRACED)
        os.tcsetpgrp(0, os.getpgrp())
        if not termios.tcgetattr(0)[3] & termios.ECHO:
            print("no echo", flush=True)
        if not os.WIFSTOPPED(status):
            break
        print("stopped", flush=True)
        time.sleep(0.1)
        os.tcsetpgrp(0, job)
        os.killpg(job, signal.SIGCONT)
    print("ended", os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
