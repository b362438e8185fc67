#!/usr/bin/env python3
"""Decides for `whimbrel access serve --external 20`: what is small goes where round trips are short, what is
large where the rate is high. The lines that are spoken are in docs/manager.md."""
import json, os, socket

runtime = os.environ.get("XDG_RUNTIME_DIR")
directory = f"{runtime}/whimbrel" if runtime else f"/tmp/whimbrel-{os.getuid()}"
manager = socket.socket(socket.AF_UNIX)
manager.connect(f"{directory}/access")

def say(**what):
    manager.sendall(json.dumps(what).encode() + b"\n")

say(policy={"name": "small-or-large"})
for line in manager.makefile():
    said = json.loads(line)
    if said.get("ok"):
        print("deciding", flush=True)
    if "error" in said:
        raise SystemExit(said["error"])
    if "decide" in said:
        question = said["decide"]
        if question["intents"].get("size-received", 0) < 100_000:
            best, why = (lambda path: path.get("srtt_min_ms", 0)), "it is small: the shortest round trip"
        else:
            best, why = (lambda path: -path.get("down_best", 0)), "it is large: the highest rate"
        paths = sorted(question["paths"], key=best)
        say(choose={"n": question["n"], "open": [path["interface"] for path in paths], "why": why})
