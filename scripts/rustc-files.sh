#!/bin/sh
# Calls rustc so that a panic says which file it comes from, and not the line: 0.26 MB less, as each line is an entry of
# 24 bytes and a relocation of as many more. Files are short, and the message says what was wrong. Called by cargo for
# scripts/dist.sh, as its RUSTC_WRAPPER: the option is not a stable one yet, and is let in for what is linked into the
# program alone, and not where libraries' build scripts ask what the compiler can do.
set -eu
for argument in "$@"; do
	case "$argument" in
	metadata=* | -Cmetadata=*) built=yes ;;
	--target | --target=*) linked=yes ;;
	esac
done
if [ -n "${built:-}" ] && [ -n "${linked:-}" ]; then
	RUSTC_BOOTSTRAP=1 exec "$@" -Zlocation-detail=file
fi
exec "$@"
