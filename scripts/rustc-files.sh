#!/bin/sh
# Calls rustc so that a panic says which file it comes from, and not the line: 0.26 MB less, as each line is an entry of
# 24 bytes and a relocation of as many more. Files are short, and the message says what was wrong. And so that `{:?}` of
# a type that derives it says which type or which of an enum's it is, and not what is in it: nothing that the program
# says to users is made so. But for rustls, of whose tickets the size is found in that way. And without a trap behind
# each call that never returns (25 KB), and with calls of the C library that take a byte less. Called by cargo for
# scripts/dist.sh, as its RUSTC_WRAPPER: these options are not stable ones yet, and are let in for what is linked into
# the program alone, and not where libraries' build scripts ask what the compiler can do.
set -eu
shown=-Zfmt-debug=shallow
before=""
for argument in "$@"; do
	case "$before $argument" in
	"--crate-name rustls" | "--crate-name rustls_pki_types") shown=-Zfmt-debug=full ;;
	*" metadata="* | *" -Cmetadata="*) built=yes ;;
	*" --target" | *" --target="*) linked=yes ;;
	esac
	before=$argument
done
if [ -n "${built:-}" ] && [ -n "${linked:-}" ]; then
	RUSTC_BOOTSTRAP=1 exec "$@" -Zlocation-detail=file -Ztrap-unreachable=no -Zplt=yes "$shown"
fi
exec "$@"
