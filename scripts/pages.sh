#!/bin/sh
# Writes manual pages and completions: scripts/pages.sh PROGRAM OUT makes OUT/man and OUT/completions.
set -eu
[ "$#" = 2 ] || { echo "usage: $0 PROGRAM OUT" >&2; exit 2; }
mkdir -p "$2/completions"
"$1" help man "$2/man"
"$1" help completions bash >"$2/completions/whimbrel.bash"
"$1" help completions zsh >"$2/completions/_whimbrel"
"$1" help completions fish >"$2/completions/whimbrel.fish"
