"""Gathers the licences of everything that is linked into the program: licences.py TARGET OUT

Writes one text: the packages, and each licence text once with the packages that it came with. Fails if a package
is under a licence that does not let its object code be passed on under MIT or Apache-2.0.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

# What asks for no more than that its text is passed on, as this program does; and the MPL, which lets object code
# be under other terms if it is said where the source of its own files is (§3.2): each package's line says so.
ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CDLA-Permissive-2.0", "ISC",
    "MIT", "MIT-0", "MPL-2.0", "Unicode-3.0", "Unlicense", "Zlib",
}
TEXTS = re.compile(r"(licen[cs]e|copying|notice|unlicense)", re.IGNORECASE)


def is_allowed(expression: str) -> bool:
    """Tells whether an SPDX expression can be met with what is allowed."""
    words = re.findall(r"[()]|[\w.+-]+", expression.replace("/", " OR "))
    python, skip = [], False
    for word in words:
        if skip:
            # An exception only gives more.
            skip = False
        elif word == "WITH":
            skip = True
        elif word in ("AND", "OR"):
            python.append(word.lower())
        elif word in "()":
            python.append(word)
        else:
            python.append(str(word in ALLOWED))
    return bool(python) and eval(" ".join(python))


def linked(target: str) -> list[dict]:
    """Returns the packages, other than our own, that are linked into the program."""
    manifest = Path(__file__).parent.parent / "Cargo.toml"
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    command += ["--manifest-path", str(manifest)]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [package["id"] for package in packages.values() if package["name"] == "whimbrel-cli"]
    found = set(waiting)
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            is_normal = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if is_normal and dependency["pkg"] not in found:
                found.add(dependency["pkg"])
                waiting.append(dependency["pkg"])
    others = [packages[found_id] for found_id in found if packages[found_id]["source"]]
    return sorted(others, key=lambda package: (package["name"], package["version"]))


def texts(package: dict) -> list[str]:
    """Returns the licence texts that a package comes with."""
    folder = Path(package["manifest_path"]).parent
    files = sorted(file for file in folder.iterdir() if TEXTS.search(file.name) and file.is_file())
    return [file.read_text(errors="replace").strip() for file in files]


def main() -> None:
    target, out = sys.argv[1], Path(sys.argv[2])
    packages = linked(target)
    refused, without, by_text = [], [], {}
    for package in packages:
        name = f"{package['name']} {package['version']}"
        licence = package["license"] or "unknown"
        if not is_allowed(licence):
            refused.append(f"{name} ({licence})")
        found = texts(package)
        if not found:
            without.append(name)
        for text in found:
            by_text.setdefault(text, []).append(name)
    if len(packages) < 50:
        sys.exit(f"licences: only {len(packages)} packages were found")
    if refused:
        sys.exit(f"licences: not allowed: {', '.join(refused)}")
    lines = ["What is linked into whimbrel, beside its own code.", ""]
    lines += [f"{p['name']} {p['version']}: {p['license']}, {p['repository'] or 'crates.io'}" for p in packages]
    if without:
        lines += ["", f"Without a text of their own: {', '.join(without)}."]
    for text, names in by_text.items():
        lines += ["", "=" * 80, f"With {', '.join(names)}:", "", text]
    out.write_text("\n".join(lines) + "\n")
    print(f"licences: {len(packages)} packages, {len(by_text)} texts, {len(without)} without one")


main()
