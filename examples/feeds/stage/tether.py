"""`python tether.py COMMAND...` becomes COMMAND, which dies when the process that started it does.

So the demo leaves nothing behind even if it is killed with SIGKILL itself. Linux only; elsewhere
the command just runs, and the demo's own tidying up has to do. (Not subprocess' `preexec_fn`,
which is unsafe beside threads.)
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):
            sys.exit("the demo is gone")
    os.execvp(command[0], command)
