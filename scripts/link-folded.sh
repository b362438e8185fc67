#!/bin/sh
# Links as zig does, folds functions whose machine code is the same (0.14 MB less), and leaves out what is in
# the program twice (0.17 MB) or never used (0.09 MB). zig's own linker cannot fold, but says what it was told;
# Rust brings one of the same kind that can. Called by rustc for scripts/dist.sh.
set -eu
# As cargo-zigbuild has cargo call it.
zig=$CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER
lld=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/gcc-ld/ld.lld
told=$("$zig" -v "$@" 2>&1) || {
	echo "$told" >&2
	exit 1
}
told=$(echo "$told" | sed -n 's/^ld\.lld //p' | tail -n 1)
[ -n "$told" ] || {
	echo "link-folded: zig does not say how it links" >&2
	exit 1
}
# Of operations of X25519 and Ed25519 aws-lc has two each, with their tables: one for processors with ADX, and
# `_alt`, which it takes on those without. That one runs on all and is little slower, some times a handshake:
# the other one goes. The names have the library's version in them; one that is not there is an error.
version=$(sed -n '/^name = "aws-lc-sys"$/{n;s/^version = "\(.*\)"$/\1/p;}' "$(dirname "$0")/../Cargo.lock")
prefix=aws_lc_$(echo "$version" | tr . _)
instead=
for name in curve25519_x25519_byte curve25519_x25519base_byte edwards25519_decode edwards25519_scalarmulbase \
	edwards25519_scalarmuldouble; do
	instead="$instead --defsym=${prefix}_$name=${prefix}_${name}_alt"
done
# ML-DSA, which is in a table of kinds of keys: nothing here makes such a key, and servers are not offered it
# (`crates/proxy/src/intercept/servers.rs`; endpoints have Ed25519 alone). Each of its operations becomes a function
# that answers 0, which is failure.
for level in 44 65 87; do
	for name in keypair keypair_internal pack_pk_from_sk sign verify; do
		instead="$instead --defsym=${prefix}_ml_dsa_${level}_$name=${prefix}_FIPS_mode"
	done
	for name in sign verify; do
		instead="$instead --defsym=${prefix}_ml_dsa_extmu_${level}_$name=${prefix}_FIPS_mode"
	done
done
# No path in it has blanks: they are of zig's cache and of cargo's target directory.
# shellcheck disable=SC2086
exec "$lld" $told $instead --icf=all -O2 --hash-style=gnu
