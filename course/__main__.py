"""`python3 -m course` and `python3 PATH/course`: check which Python runs this, then hand over to `course.bootstrap`.

Keep this file to syntax that old Pythons parse (no f-strings, no annotations).
"""

import errno
import os
import sys

LOWEST = (3, 11)  # the first Python that is supported; the same bounds as requires-python in pyproject.toml
BEYOND = (3, 16)  # the first one that is not any more
PREFERRED = ("3.13", "3.12", "3.14", "3.11", "3.15")

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)


def fix_path():
    """Make `course` importable as a package, and its modules not importable as top-level ones.

    `python3 PATH/course` puts PATH/course itself first on the path, where `course/platform.py` would hide the
    standard library's `platform`.
    """
    here = os.path.realpath(HERE)
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or os.getcwd()) != here]
    if ROOT not in sys.path:
        sys.path.insert(0, ROOT)


def suitable(version):
    """Whether a (major, minor) is one that this project runs on."""
    return LOWEST <= tuple(version) < BEYOND


def other_pythons():
    """Yield command lines that may start a suitable Python on this machine, the preferred one first."""
    import shutil

    for version in PREFERRED:
        found = shutil.which("python" + version)
        if found:
            yield [found]
    launcher = shutil.which("py") if os.name == "nt" else None
    for version in PREFERRED if launcher else ():
        yield [launcher, "-" + version]


def works(command):
    """Whether a command starts a suitable Python that can make environments."""
    import subprocess

    probe = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    try:
        # -I: no user settings; the answer must come from the interpreter alone
        answer = subprocess.check_output(command + ["-I", "-c", probe], stderr=subprocess.DEVNULL)
        return suitable(int(part) for part in answer.decode("ascii").split("."))
    except (OSError, ValueError, subprocess.CalledProcessError):
        return False


def with_another_python(arguments):
    """This Python does not fit: carry on with one that does, or say what to install.  Returns an exit code."""
    import subprocess

    mine = "%d.%d" % sys.version_info[:2]
    wanted = "%d.%d to %d.%d" % (LOWEST + (BEYOND[0], BEYOND[1] - 1))
    for command in other_pythons():
        if works(command):
            sys.stderr.write("This is Python %s; fucina needs %s. Using %s.\n" % (mine, wanted, " ".join(command)))
            sys.stderr.flush()
            return subprocess.call(command + [HERE] + arguments)
    sys.stderr.write(
        "This is Python %s, but fucina needs Python %s, and none was found on this machine.\n"
        "Install one (python.org, your system's packages, or 'uv python install 3.13'),\n"
        "then start again with it, for example:  python3.13 -m course\n" % (mine, wanted)
    )
    return 2


def main(arguments):
    """Run one command of the course; returns the exit code."""
    fix_path()
    if sys.version_info[0] >= 3 and not suitable(sys.version_info[:2]):
        return with_another_python(arguments)
    if sys.version_info[0] < 3:
        sys.stderr.write("This is Python 2; start the course with:  python3 -m course\n")
        return 2
    from course.bootstrap import main as run

    return run(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.stderr.write("\nStopped.\n")
        sys.exit(130)
    except IOError as error:
        if error.errno != errno.EPIPE:
            raise
        # Whoever read our output has gone (`| head`): end quietly, also when the interpreter flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
