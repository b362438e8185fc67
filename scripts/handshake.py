"""Checks that a program computes right, however it was linked: handshake.py PROGRAM

One process of it lets anybody reach a service by a ticket, others fetch what the service says, over TCP and
over QUIC, on loopback, with keys and directories of their own.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading

LIMIT = 30.0
"""Seconds for each step."""
WORD = os.urandom(1 << 16)


def serve(listener: socket.socket) -> None:
    """Says the word to all who come."""
    while True:
        guest, _ = listener.accept()
        with guest:
            guest.sendall(WORD)


def user(home: str) -> dict[str, str]:
    """Returns the environment of somebody who has nothing yet."""
    os.makedirs(home, mode=0o700)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "WHIMBREL_"))}
    return kept | {"HOME": home, "XDG_RUNTIME_DIR": home}


def fetched(program: str, ticket: str, carrier: str, home: str) -> bool:
    """Whether the word comes through over this carrier."""
    command = [program, "pipe", ticket, "-q", "--carrier", carrier, "--address", "127.0.0.1"]
    try:
        got = subprocess.run(
            command,
            env=user(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=LIMIT,
            check=True,
        )
    except subprocess.SubprocessError as error:
        print(f"handshake: {error}", file=sys.stderr)
        return False
    return got.stdout == WORD


def main() -> None:
    program = os.path.abspath(sys.argv[1])
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    place = f"127.0.0.1:{listener.getsockname()[1]}"
    command = [program, "expose", "--ticket", "--to", place, "--allow", "any", "--json", "--until-eof"]
    with tempfile.TemporaryDirectory(prefix="wh-") as folder:
        exposing = subprocess.Popen(
            [*command, "-q", "--address", "127.0.0.1"],
            env=user(f"{folder}/server"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        # One that says nothing is ended, and its output with it.
        late = threading.Timer(LIMIT, exposing.kill)
        late.start()
        try:
            line = exposing.stdout.readline()
            late.cancel()
            if not line:
                sys.exit("handshake: expose ends, or does not say where it is")
            ticket = json.loads(line)["ticket"]
            for carrier in ("tcp", "quic"):
                if not fetched(program, ticket, carrier, f"{folder}/{carrier}"):
                    sys.exit(f"handshake: over {carrier} it does not come through")
        finally:
            late.cancel()
            exposing.kill()
            exposing.wait()
    print("handshake: over TCP and QUIC")


main()
