#!/usr/bin/env python3
"""Builds all tests of the workspace and runs several groups of them beside each other, each in a process of its own.

    scripts/run-tests.py [--jobs N] [--beside N] [--only TEXT]

`cargo test` runs one program after the other, and most tests wait for clocks and for emulated networks: one by one
they take three quarters of an hour on two cores, while the cores rest. A group is a test program, or where a crate's
tests are one program to save its build (`tests/all.rs`), a module of it. What fails is told when it fails, and once
more at the end. No test is tried twice. `--beneath COMMAND` uses what the tests leave of the processors, as for lints.
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
# a link in a second, how long a sender's own queue is, which round trip brought an answer.
ALONE = [
    "cli/limits",
    "proxy/http_returns",
    "transport/lab::deep_queue",
    "transport/lab::one_round_trip",
    "transport/limits",
    "transport/standby",
]
# These compute all the time, and measure none: what waits for a clock goes first.
COMPUTING = ["access", "base", "pageload", "proto"]
# No group takes half of this; one that hangs must not take the whole run's time.
LIMIT = 1200.0
RESULT = re.compile(r"^test result: .* (\d+) passed; (\d+) failed; (\d+) ignored;", re.MULTILINE)


class Group:
    """Tests that run in one process, named by their crate and their target or module."""

    def __init__(self, crate, part, command, directory):
        self.name = f"{crate}/{part}"
        self.command = command
        self.directory = directory
        self.passed = self.failed = self.ignored = 0
        self.problem = None
        self.output = ""
        self.took = 0.0

    def run(self, children):
        """Runs to the end, or to its limit. What it started and left behind is ended with it."""
        is_computing = self.name.split("/", 1)[0] in COMPUTING
        env = dict(os.environ, CARGO_MANIFEST_DIR=self.directory)
        begun = time.monotonic()
        child = subprocess.Popen(
            ["nice", "-n", "10", *self.command] if is_computing else self.command,
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
    """All groups of the workspace's tests, newly built, or the end with cargo's exit code."""
    command = [arguments.cargo, "test", "--workspace", "--no-run", "-j", str(arguments.jobs)]
    command.append("--message-format=json-render-diagnostics")
    cargo = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True, process_group=0)
    children.add(cargo.pid)
    groups = []
    for line in cargo.stdout:
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
            continue
        directory = os.path.dirname(message["manifest_path"])
        crate = os.path.basename(directory)
        groups += groups_of(crate, message["target"]["name"], message["executable"], directory)
    if cargo.wait() != 0:
        sys.exit(cargo.returncode)
    children.discard(cargo.pid)
    return groups


def examples(arguments, root):
    """The examples in the documentation: cargo builds them, so they wait for whoever builds in the same place."""
    command = [arguments.cargo, "test", "--workspace", "--doc", "--no-fail-fast", "-j", str(arguments.jobs)]
    return Group("all", "documentation", command, root)


def beneath(command, root):
    """What runs only where a processor has nothing else to do, so that no test is late for it."""
    return Group("all", "beneath", ["chrt", "--idle", "0", "sh", "-c", command], root)


def groups_of(crate, target, program, directory):
    """The groups of a test program."""
    if target != "all":
        return [Group(crate, target, [program], directory)]
    listed = subprocess.run([program, "--list"], cwd=directory, capture_output=True, text=True, check=True).stdout
    modules = {}
    for line in listed.splitlines():
        test, found, _ = line.rpartition(": test")
        if found:
            modules.setdefault(part_of(crate, test), []).append(test)
    return [Group(crate, module, [program, "--exact", *tests], directory) for module, tests in modules.items()]


def part_of(crate, test):
    """The module of a test that runs in a process of its own: the outermost one, unless one within runs alone."""
    path = test.split("::")
    inner = "::".join(path[:2])
    return inner if f"{crate}/{inner}" in ALONE else path[0]


def run_beside(groups, beside, children, told):
    """Runs the groups, so many at a time."""
    waiting = queue.SimpleQueue()
    for group in groups:
        waiting.put(group)

    def work():
        while True:
            try:
                group = waiting.get_nowait()
            except queue.Empty:
                return
            group.run(children)
            told(group)

    workers = [threading.Thread(target=work) for _ in range(beside)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def tell(group):
    """One line of a group that passed; all that one wrote that failed."""
    line = f"{group.name}: {group.passed} passed in {group.took:.0f} s"
    if group.problem:
        line = f"{group.output}\n{group.name}: {group.problem}, after {group.took:.0f} s"
    print(line, flush=True)


def failures(output):
    """The part of an output that says what failed: cargo's own, or else its end."""
    begin = output.find("\nfailures:\n")
    return output[begin:] if begin >= 0 else output[-4000:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    processors = os.cpu_count() or 2
    parser.add_argument("--jobs", type=int, default=processors, help="how many crates are built at once")
    parser.add_argument("--beside", type=int, default=processors + 1, help="how many groups run at once")
    parser.add_argument("--beneath", metavar="COMMAND", help="what else to run, on what the tests leave of the processors")
    parser.add_argument("--only", default="", help="only groups with this in their name, as in cli/proxies")
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
    groups = [*build(arguments, root, children), examples(arguments, root)]
    groups = [group for group in groups if arguments.only in group.name]
    order = {name: place for place, name in enumerate([*LONGEST_FIRST, "", "all/documentation"])}
    groups.sort(key=lambda group: (order.get(group.name, order[""]), group.name))
    together = [group for group in groups if group.name not in ALONE]
    alone = [group for group in groups if group.name in ALONE]
    other = [beneath(arguments.beneath, root)] if arguments.beneath else []

    printing = threading.Lock()

    def told(group):
        with printing:
            tell(group)

    begun = time.monotonic()
    others = threading.Thread(target=run_beside, args=(other, 1, children, told))
    others.start()
    run_beside(together, max(1, arguments.beside), children, told)
    others.join()
    run_beside(alone, 1, children, told)

    broken = [group for group in [*groups, *other] if group.problem]
    for group in broken:
        print(f"\n--- {group.name}: {group.problem}\n{failures(group.output).strip()}")
    passed, failed, ignored = (sum(getattr(g, part) for g in groups) for part in ("passed", "failed", "ignored"))
    for group in broken:
        print(f"failed: {group.name}: {group.problem}")
    print(f"{len(groups)} groups of tests in {time.monotonic() - begun:.0f} s")
    print(f"{passed} passed, {max(failed, len(broken))} failed, {ignored} skipped")
    return 101 if broken or not groups else 0


if __name__ == "__main__":
    sys.exit(main())
