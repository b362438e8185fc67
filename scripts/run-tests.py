#!/usr/bin/env python3
"""Builds all tests of the workspace and runs several test programs beside each other.

    scripts/run-tests.py [--jobs N] [--beside N] [--only TEXT]

`cargo test` runs one program after the other, and most of them wait for clocks and for emulated networks: one by
one they take three quarters of an hour on two cores, while the cores rest. What fails is told when it fails, and
once more at the end. No test is tried twice.
"""

import argparse
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib

# What takes longest begins first, so that no single one is left at the end.
LONGEST_FIRST = [
    "transport/lab",
    "cli/guide",
    "bench/whimbrel-bench",
    "cli/renewal",
    "cli/examples",
    "relay/matrix",
    "proto/credit",
    "cli/appointments",
    "portmap/pinholes",
    "whimbrel/lab_names",
    "cli/moving_together",
]
# These measure what others would disturb: a rate within 3 %, memory of thousands of connections, how much comes over
# a link in a second.
ALONE = ["cli/limits", "proxy/http_returns", "transport/limits", "transport/standby"]
# No program takes a tenth of this; one that hangs must not take the whole run's time.
LIMIT = 1200.0
RESULT = re.compile(r"^test result: .* (\d+) passed; (\d+) failed; (\d+) ignored;", re.MULTILINE)


class Program:
    """A test program, named by its crate and its target."""

    def __init__(self, crate, target, command, directory):
        self.name = f"{crate}/{target}"
        self.command = command
        self.directory = directory
        self.passed = self.failed = self.ignored = 0
        self.problem = None
        self.output = ""
        self.took = 0.0

    def run(self, children):
        """Runs to the end, or to its limit. What it started and left behind is ended with it."""
        env = dict(os.environ, CARGO_MANIFEST_DIR=self.directory)
        begun = time.monotonic()
        child = subprocess.Popen(
            self.command,
            cwd=self.directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Not a session of its own: its leader would get the terminal that a test opens, and hang up with it.
            process_group=0,
        )
        children.add(child.pid)
        limit = threading.Timer(LIMIT, end_group, [child.pid])
        limit.start()
        self.output = child.communicate()[0].decode(errors="replace")
        limit.cancel()
        children.discard(child.pid)
        self.took = time.monotonic() - begun
        for passed, failed, ignored in RESULT.findall(self.output):
            self.passed += int(passed)
            self.failed += int(failed)
            self.ignored += int(ignored)
        if self.took >= LIMIT:
            self.problem = f"took more than {LIMIT:.0f} s and was ended"
        elif child.returncode < 0:
            self.problem = f"was ended by signal {-child.returncode}"
        elif child.returncode > 0:
            self.problem = f"{self.failed} failed" if self.failed else f"ended with {child.returncode}"


def end_group(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def set_up(root):
    """Sets what cargo sets for tests that it runs itself, as the seed of property tests; what is set outside wins."""
    with open(os.path.join(root, ".cargo", "config.toml"), "rb") as config:
        for name, value in tomllib.load(config)["env"].items():
            os.environ.setdefault(name, value)


def build(arguments, root, children):
    """The test programs of the workspace, newly built, or the end with cargo's exit code."""
    command = [arguments.cargo, "test", "--workspace", "--no-run", "-j", str(arguments.jobs)]
    command.append("--message-format=json-render-diagnostics")
    cargo = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True, process_group=0)
    children.add(cargo.pid)
    programs = []
    for line in cargo.stdout:
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
            continue
        directory = os.path.dirname(message["manifest_path"])
        crate = os.path.basename(directory)
        programs.append(Program(crate, message["target"]["name"], [message["executable"]], directory))
    if cargo.wait() != 0:
        sys.exit(cargo.returncode)
    children.discard(cargo.pid)
    examples = [arguments.cargo, "test", "--workspace", "--doc", "--no-fail-fast", "-j", str(arguments.jobs)]
    programs.append(Program("all", "documentation", examples, root))
    return programs


def run_beside(programs, beside, children, told):
    """Runs the programs, so many at a time."""
    waiting = queue.SimpleQueue()
    for program in programs:
        waiting.put(program)

    def work():
        while True:
            try:
                program = waiting.get_nowait()
            except queue.Empty:
                return
            program.run(children)
            told(program)

    workers = [threading.Thread(target=work) for _ in range(beside)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def tell(program):
    """One line of a program that passed; all that one wrote that failed."""
    line = f"{program.name}: {program.passed} passed in {program.took:.0f} s"
    if program.problem:
        line = f"{program.output}\n{program.name}: {program.problem}, after {program.took:.0f} s"
    print(line, flush=True)


def failures(output):
    """The part of an output that says what failed: cargo's own, or else its end."""
    begin = output.find("\nfailures:\n")
    return output[begin:] if begin >= 0 else output[-4000:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    processors = os.cpu_count() or 2
    parser.add_argument("--jobs", type=int, default=processors, help="how many crates are built at once")
    parser.add_argument("--beside", type=int, default=processors + 1, help="how many test programs run at once")
    parser.add_argument("--only", default="", help="only programs with this in their name, as in cli/proxies")
    parser.add_argument("--cargo", default=os.environ.get("CARGO", "cargo"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

    set_up(root)
    children = set()

    def stop(number, _frame):
        for child in list(children):
            end_group(child)
        os._exit(128 + number)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    programs = [program for program in build(arguments, root, children) if arguments.only in program.name]
    order = {name: place for place, name in enumerate(LONGEST_FIRST)}
    programs.sort(key=lambda program: (order.get(program.name, len(order)), program.name))
    together = [program for program in programs if program.name not in ALONE]
    alone = [program for program in programs if program.name in ALONE]

    printing = threading.Lock()

    def told(program):
        with printing:
            tell(program)

    begun = time.monotonic()
    run_beside(together, max(1, arguments.beside), children, told)
    run_beside(alone, 1, children, told)

    broken = [program for program in programs if program.problem]
    for program in broken:
        print(f"\n--- {program.name}: {program.problem}\n{failures(program.output).strip()}")
    passed, failed, ignored = (sum(getattr(p, part) for p in programs) for part in ("passed", "failed", "ignored"))
    for program in broken:
        print(f"failed: {program.name}: {program.problem}")
    print(f"{len(programs)} test programs in {time.monotonic() - begun:.0f} s")
    print(f"{passed} passed, {max(failed, len(broken))} failed, {ignored} skipped")
    return 101 if broken or not programs else 0


if __name__ == "__main__":
    sys.exit(main())
