#!/bin/sh
# Installs what `make test` needs on a fresh Debian or Ubuntu machine, and says so.
set -eu

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		echo "setup: need root (or sudo) to run: $*" >&2
		exit 1
	fi
}

missing=""
need() { # program package
	command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
PATH="$PATH:/usr/sbin:/sbin"
need cc build-essential
need cmake cmake
need curl curl
need ip iproute2
need nft nftables
need unshare util-linux
need ssh openssh-client
need sshd openssh-server
# For the client in interop/python. Debian splits what `python3 -m venv` needs into a package of its own.
need python3 python3
python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"

if [ -n "$missing" ]; then
	echo "setup: installing$missing"
	as_root apt-get update -qq
	# shellcheck disable=SC2086
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

if ! command -v cargo >/dev/null 2>&1; then
	echo "setup: installing the Rust toolchain with rustup"
	curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal -c rustfmt -c clippy
	echo "setup: cargo is in ~/.cargo/bin; put that in PATH and run make again" >&2
	exit 1
fi
for component in rustfmt clippy; do
	if ! cargo "$( [ $component = rustfmt ] && echo fmt || echo clippy )" --version >/dev/null 2>&1; then
		echo "setup: adding $component"
		rustup component add "$component"
	fi
done
