#!/bin/sh
# Makes what is given to users, into dist/:
#
#   scripts/dist.sh [TARGET]     (by default x86_64-unknown-linux-gnu.2.28, which runs on Debian 10 and later)
#
# a program that needs no newer glibc than the target says (none at all with a musl target), a tar archive and,
# for glibc, a .deb, with manual pages, completions and systemd units; a CycloneDX bill of materials; the
# checksums of them all.
# zig links it, from PyPI; rustup, if it is there, adds the target's standard library. Needs python3 with venv,
# and on Debian `sh scripts/setup.sh test` once.
set -eu
cd "$(dirname "$0")/.."

zig=0.17.1
zigbuild=0.24.0
cyclonedx=0.5.9

fail() {
	echo "dist: $*" >&2
	exit 1
}

target=${1:-x86_64-unknown-linux-gnu.2.28}
triple=${target%%.*}
case "$target" in
	x86_64-unknown-linux-gnu.* | x86_64-unknown-linux-musl) architecture=amd64 ;;
	aarch64-unknown-linux-gnu.* | aarch64-unknown-linux-musl) architecture=arm64 ;;
	*) fail "unknown target $target; there are (x86_64|aarch64)-unknown-linux-(gnu.2.28|musl)" ;;
esac
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
# The same commit makes the same archives.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
umask 022
out=$PWD/dist
built=${CARGO_TARGET_DIR:-$PWD/target}
tools=${DIST_TOOLS:-$built/dist-tools}
mkdir -p "$out" "$tools"
case "$built" in /*) ;; *) built=$PWD/$built ;; esac

step() {
	echo "dist: $*"
}

has_std() {
	[ -d "$(rustc --print sysroot)/lib/rustlib/$triple/lib" ]
}
if ! has_std; then
	command -v rustup >/dev/null 2>&1 ||
		fail "this Rust has no standard library for $triple, and there is no rustup"
	rustup target add "$triple" || fail "rustup cannot add $triple; is there a network?"
fi
if ! "$tools/zig/bin/python" -m ziglang version 2>/dev/null | grep -qx "$zig"; then
	step "installing zig $zig and cargo-zigbuild $zigbuild"
	python3 -m venv "$tools/zig" || fail "python3 cannot make an environment; apt-get install python3-venv"
	"$tools/zig/bin/pip" install -q --disable-pip-version-check "ziglang==$zig" "cargo-zigbuild==$zigbuild" ||
		fail "cannot install zig from PyPI; is there a network?"
fi
if ! "$tools/bin/cargo-cyclonedx" cyclonedx --version 2>/dev/null | grep -qw "$cyclonedx"; then
	step "installing cargo-cyclonedx $cyclonedx"
	cargo install -q cargo-cyclonedx --version "$cyclonedx" --locked --root "$tools" ||
		fail "cannot install cargo-cyclonedx"
fi

step "building for $target"
# Panics name the source that they come from: a library's by where cargo keeps it on this machine, which is
# nobody's business, and 50 KB.
cargo fetch -q --locked --target "$triple" || fail "cannot fetch the libraries; is there a network?"
# With frame pointers the program is some 0.6 MB smaller: what lies on the stack is named in a byte less, and the tables
# for unwinding need not follow each push and pop. Profilers find the callers, too.
flags='-Cforce-frame-pointers=yes'
for sources in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*; do
	flags=$flags${flags:+$(printf '\037')}--remap-path-prefix=$sources=
done
# Nothing is ever unwound through C. Of zstd's ways to compress, two belong to the levels that are used.
cflags='-fno-asynchronous-unwind-tables -fno-unwind-tables'
for way in GREEDY LAZY LAZY2 BTLAZY2 BTOPT BTULTRA; do
	cflags="$cflags -DZSTD_EXCLUDE_${way}_BLOCK_COMPRESSOR"
done
# Folds what is the same; tried for this target alone.
set --
[ "$triple" != x86_64-unknown-linux-gnu ] || set -- -C linker="$PWD/scripts/link-folded.sh" -C linker-flavor=gcc
# LLVM gathers equal pieces of machine code in functions of their own, each of which has an entry in the tables for
# unwinding: from 14 bytes on that pays, 1.5 MB in all; from 10 on it is about the same, from 24 on 0.03 MB less.
PATH="$tools/zig/bin:$PATH" CARGO_ENCODED_RUSTFLAGS=$flags RUSTC_WRAPPER="$PWD/scripts/rustc-files.sh" \
	env "CFLAGS_$(printf %s "$triple" | tr - _)=$cflags" cargo-zigbuild rustc -p whimbrel-cli --bin whimbrel \
	--profile dist --locked --target "$target" -- "$@" \
	-C llvm-args=-enable-machine-outliner=always -C llvm-args=-outliner-benefit-threshold=14 \
	-C llvm-args=-machine-outliner-reruns=3
program=$built/$triple/dist/whimbrel

# What the promise is: a start within 10 ms, no newer glibc, and 15 MB.
size=$(wc -c <"$program")
[ "$size" -le 15000000 ] || fail "the program has $size bytes; 15000000 are allowed"
case "$target" in
	*-gnu.*)
		needs=$(grep -ao 'GLIBC_[0-9.]*' "$program" | sed 's/GLIBC_//' | sort -uV | tail -n 1)
		newest=$(printf '%s\n%s\n' "$needs" "${target#*.}" | sort -V | tail -n 1)
		[ "$newest" = "${target#*.}" ] || fail "the program needs glibc $needs"
		;;
esac
step "$size bytes"
if "$program" --version >/dev/null 2>&1; then
	host=$program
	python3 scripts/start-time.py 10 "$program" --version
	# What was left out at linking must not be what it computes with.
	python3 scripts/handshake.py "$program"
else
	# Another processor's: pages come from a program of this one.
	cargo build -q --locked --bin whimbrel
	host=$built/debug/whimbrel
fi

pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
sh scripts/pages.sh "$host" "$pages/pages" "$triple"

name=whimbrel-$version-$triple
folder=$pages/$name
mkdir "$folder" "$folder/systemd"
install -m 755 "$program" "$folder/whimbrel"
cp -r "$pages/pages/." "$folder/"
cp -r packaging/systemd/. "$folder/systemd/"
cp README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE packaging/names.toml packaging/relay.toml packaging/serve.toml \
	"$folder/"
tar -c -C "$pages" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" "$name" |
	gzip -9n >"$out/$name.tar.gz"
step "$name.tar.gz"

case "$target" in
	*-gnu.*)
		sh scripts/deb.sh "$program" "$architecture" "$pages/pages" "$out/whimbrel_${version}_$architecture.deb"
		step "whimbrel_${version}_$architecture.deb"
		;;
esac

# It is written beside the package's manifest.
"$tools/bin/cargo-cyclonedx" cyclonedx -q --manifest-path crates/cli/Cargo.toml --format json \
	--target "$triple" --override-filename "$name.cdx"
find crates fuzz -name "$name.cdx.json" ! -path 'crates/cli/*' -exec rm {} +
# Where it was built is nobody's business.
sed "s#file://$PWD#file:///whimbrel#g" "crates/cli/$name.cdx.json" >"$out/$name.cdx.json"
rm "crates/cli/$name.cdx.json"
step "$name.cdx.json"

(cd "$out" && rm -f SHA256SUMS && sha256sum whimbrel* >.sums && mv .sums SHA256SUMS)
step "SHA256SUMS"
