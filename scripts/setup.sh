#!/bin/sh
# Installs what Whimbrel is built and tested with, where it is missing, and then runs a command with it:
#
#   scripts/setup.sh build|test|browsers [COMMAND...]
#
# `build` is a C compiler, CA certificates, curl and Rust; `test` also has what the tests run; `browsers` also
# has Chromium, Firefox, certutil and ffmpeg, without which a few tests are skipped. Packages come by apt-get,
# as root or with a sudo that asks nothing. A Rust that is too old is left alone: a newer one goes into the
# user's home by rustup, of a version and with a checksum that are written below. Nothing is asked; what goes
# wrong is told in one line.
set -eu
cd "$(dirname "$0")/.."

# The Rust that is installed if there is none that is new enough (`rust-version` in Cargo.toml).
toolchain=1.95.0
# Its installer.
rustup=1.28.2
rustup_x86_64=20a06e644b0d9bd2fbdbfd52d42540bdde820ea7df86e92e533c073da0cdd43c
rustup_aarch64=e3853c5a252fca15252d07cb23a1bdd9377a8c6f3efa01531109281ae47f841c

say() {
	echo "setup: $*" >&2
}

fail() {
	say "$*"
	exit 1
}

case "${1:-}" in
	build | test | browsers) purpose=$1 ;;
	*) echo "usage: $0 build|test|browsers [COMMAND...]" >&2; exit 2 ;;
esac
shift
[ "$(uname -s)" = Linux ] || fail "Whimbrel runs on Linux only, today"
minimum=$(sed -n 's/^rust-version = "\([0-9.]*\)"$/\1/p' Cargo.toml)
[ -n "${HOME:-}" ] || fail "HOME is not set; Rust is looked for, and installed, there"
log=$(mktemp) || fail "cannot make a temporary file; is the disk full?"
trap 'rm -f "$log"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The first error that a quiet program wrote.
problem() {
	sed -n -e '/^E: /p' -e '/^error: /p' -e '/^curl: /p' "$log" | head -n 1 | cut -c 1-300
}

# --- Packages

missing=""
need() { # package, then a command that succeeds if it is there
	package=$1
	shift
	"$@" >/dev/null 2>&1 || missing="$missing $package"
}

has() {
	PATH="$PATH:/usr/sbin:/sbin" command -v "$1"
}

# Debian's compiler does not bring the headers.
compiles() {
	echo '#include <stdio.h>' | cc -x c -c -o /dev/null -
}

has_certificates() {
	[ -n "${SSL_CERT_FILE:-}" ] || [ -s /etc/ssl/certs/ca-certificates.crt ] ||
		[ -s /etc/pki/tls/certs/ca-bundle.crt ]
}

# Debian splits what `python3 -m venv` needs into a package of its own.
has_venv() {
	python3 -c 'import ensurepip, venv'
}

has_aiosmtpd() {
	python3 -c 'import aiosmtpd'
}

has_chromium() {
	has chromium || has chromium-browser || has google-chrome
}

has_firefox() {
	has firefox-esr || has firefox
}

need "gcc libc6-dev" compiles
need ca-certificates has_certificates
need curl has curl
if [ "$purpose" != build ]; then
	need make has make
	need git has git
	need iproute2 has ip
	need nftables has nft
	need util-linux has unshare
	need procps has ps
	need openssh-client has ssh
	need openssh-server has sshd
	# Keeps shells, for the tests of `whimbrel ssh --session`.
	need tmux has tmux
	# A home router that passes ports on, for the tests.
	need miniupnpd-nftables has miniupnpd
	# An HTTP proxy, for the tests.
	need tinyproxy has tinyproxy
	# Reads PAC files as browsers do, for the tests.
	need nodejs has node
	# For what is packaged.
	need man-db has man
	need systemd has systemd-analyze
	need dpkg has dpkg-deb
	# For the client in interop/python.
	need python3 has python3
	need python3-venv has_venv
	# A mail server, for the tests.
	need python3-aiosmtpd has_aiosmtpd
fi
if [ "$purpose" = browsers ]; then
	need chromium has_chromium
	need firefox-esr has_firefox
	# Has a profile of theirs trust a certificate.
	need libnss3-tools has certutil
	# A player whose film goes on at another device.
	need ffmpeg has ffmpeg
fi

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	else
		sudo -n "$@"
	fi
}

apt() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 \
		-o Acquire::Retries=2 -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30 \
		"$@" >>"$log" 2>&1 </dev/null
}

if [ -n "$missing" ]; then
	command -v apt-get >/dev/null 2>&1 ||
		fail "there is no apt-get here; install by hand:$missing (these are Debian's names), then run this again"
	if [ "$(id -u)" != 0 ] && ! sudo -n true >/dev/null 2>&1; then
		fail "root must run this first: apt-get update && apt-get install -y$missing"
	fi
	say "installing$missing"
	# A list that cannot be had does not matter if the package can.
	apt update || true
	# shellcheck disable=SC2086
	apt install -y --no-install-recommends $missing ||
		fail "cannot install$missing: $(problem); is there a network?"
fi

# --- Rust

at_least() { # version, minimum
	[ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

is_recent() {
	for program in cargo rustc; do
		version=$("$program" --version 2>/dev/null | cut -d ' ' -f 2)
		at_least "${version%%-*}" "$minimum" || return 1
	done
}

# Whether the Rust in PATH will do.
is_usable() {
	is_recent || return 1
	[ "$purpose" = build ] || { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1
}

# Puts the path of a checked installer into $installer.
download_rustup() {
	case "$(uname -m)" in
		x86_64) sum=$rustup_x86_64 ;;
		aarch64) sum=$rustup_aarch64 ;;
		*) fail "no checked installer of Rust for $(uname -m); install Rust $minimum or newer, then run this again" ;;
	esac
	mkdir -p "$bin"
	installer=$bin/.rustup-init-$$
	trap 'rm -f "$log" "$installer"' EXIT
	curl --proto '=https' --tlsv1.2 -sSfL --connect-timeout 20 --max-time 300 --retry 2 -o "$installer" \
		"https://static.rust-lang.org/rustup/archive/$rustup/$(uname -m)-unknown-linux-gnu/rustup-init" >"$log" 2>&1 ||
		fail "cannot download Rust's installer: $(problem); is there a network? Rust $minimum, installed" \
			"in another way, will do too"
	echo "$sum  $installer" | sha256sum -c >/dev/null 2>&1 ||
		fail "Rust's installer is not what it should be: its SHA-256 is not $sum; it was not run"
	chmod 700 "$installer"
}

install_rust() {
	say "installing Rust $toolchain into $HOME (found: ${found:-none}; needed: $minimum or newer)"
	if command -v rustup >/dev/null 2>&1; then
		rustup toolchain install "$toolchain" --profile minimal -c rustfmt -c clippy >"$log" 2>&1 </dev/null ||
			fail "rustup cannot install Rust $toolchain: $(problem)"
		return
	fi
	# Where rustup's host cannot be reached: a program that takes its installer's place.
	installer=${WHIMBREL_RUSTUP_INIT:-}
	[ -n "$installer" ] || download_rustup
	RUSTUP_INIT_SKIP_PATH_CHECK=yes "$installer" -y --no-modify-path --profile minimal \
		--default-toolchain "$toolchain" -c rustfmt -c clippy >"$log" 2>&1 </dev/null ||
		fail "cannot install Rust $toolchain: $(problem)"
	say "cargo is in $bin; put that in PATH to use it by hand"
}

bin=${CARGO_HOME:-$HOME/.cargo}/bin
found=""
if ! is_usable; then
	found=$(cargo --version 2>/dev/null | cut -d ' ' -f 2)
	# In front, so that a distribution's older Rust does not hide it.
	export PATH="$bin:$PATH"
	if ! is_usable && is_recent && command -v rustup >/dev/null 2>&1; then
		rustup component add rustfmt clippy >"$log" 2>&1 </dev/null || true
	fi
	if ! is_usable; then
		export RUSTUP_TOOLCHAIN="$toolchain"
		is_usable || install_rust
	fi
	is_usable ||
		fail "Rust $toolchain was installed, but \`cargo --version\` says: $(cargo --version 2>&1 | head -n 1)"
fi

rm -f "$log"
trap - EXIT INT TERM
[ "$#" = 0 ] || exec "$@"
