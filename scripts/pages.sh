#!/bin/sh
# Writes what is given to users beside the program:
#
#   scripts/pages.sh PROGRAM OUT [TARGET]
#
# OUT/man, OUT/completions, and OUT/THIRD-PARTY with the licences of all that is linked in.
set -eu
[ "$#" = 2 ] || [ "$#" = 3 ] || { echo "usage: $0 PROGRAM OUT [TARGET]" >&2; exit 2; }
mkdir -p "$2/completions"
"$1" help man "$2/man"
"$1" help completions bash >"$2/completions/whimbrel.bash"
"$1" help completions zsh >"$2/completions/_whimbrel"
"$1" help completions fish >"$2/completions/whimbrel.fish"
python3 "$(dirname "$0")/licences.py" "${3:-$(rustc -vV | sed -n 's/^host: //p')}" "$2/THIRD-PARTY"
