"""Measures how long a command takes from its start to its end: start-time.py LIMIT_MS COMMAND...

Prints the median of 30 runs, and fails if it is above the limit.
"""

import statistics
import subprocess
import sys
import time


def run(command: list[str]) -> float:
    """Returns the milliseconds of one run."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    limit, command = float(sys.argv[1]), sys.argv[2:]
    median = statistics.median(run(command) for _ in range(30))
    print(f"start: {median:.1f} ms (at most {limit:g})")
    if median > limit:
        sys.exit(1)


main()
