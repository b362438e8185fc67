#!/bin/sh
# Runs ./demo on machines that have nothing: minimal Debian roots, which debootstrap makes, in namespaces.
#
#   scripts/test-bare-root.sh [bookworm|trixie]...     (all of them if none is named)
#
# In each: ./demo as a stranger without root and without a network (one clear line each), then as root, cold and
# warm, with nobody to answer a question; then the packages of ./test. Needs root, debootstrap, and a network
# with Debian's mirror (MIRROR=URL for another than debootstrap's own) and the crates' registry.
#
# One thing is a stand-in: rustup's installer, in whose place this host's own toolchain is mounted. With
# REAL_RUSTUP=1 it is the real one. OLD_RUST=1 installs the distribution's own, older Rust first. With
# PACKAGE=FILE.deb, a package that `make dist` made is installed, run and purged at the end. With COMMAND=./test,
# or another command of the checkout, that runs instead of ./demo.
set -eu
cd "$(dirname "$0")/.."

fail() {
	echo "test-bare-root: $*" >&2
	exit 1
}

[ "$(id -u)" = 0 ] || fail "only root can make a root directory; run it with sudo"
for program in debootstrap unshare git; do
	command -v "$program" >/dev/null 2>&1 || fail "$program is missing: apt-get install debootstrap util-linux git"
done
toolchain=""
if [ -z "${REAL_RUSTUP:-}" ]; then
	toolchain=$(rustc --print sysroot) ||
		fail "this host has no Rust that could stand in for rustup's; install one, or set REAL_RUSTUP=1"
fi

root="" child=""
clean() {
	[ -z "$child" ] || kill "$child" 2>/dev/null || true
	[ -z "$child" ] || wait "$child" 2>/dev/null || true
	# All mounts were in the child's namespace, and are gone with it.
	[ -z "$root" ] || rm -rf --one-file-system "$root"
	root="" child=""
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Runs a command in the root, as it would run on a machine of its own. $net is empty, or --net for no network.
inside() { # user, command and arguments
	user=$1
	shift
	# shellcheck disable=SC2016,SC2086
	unshare --mount --pid --uts --ipc $net --fork --kill-child sh -euc '
		root=$1 toolchain=$2 user=$3
		shift 3
		mount -t proc proc "$root/proc"
		mount --rbind /dev "$root/dev"
		mount -t sysfs -o ro sysfs "$root/sys" 2>/dev/null || mount --rbind /sys "$root/sys"
		stand_in=""
		if [ -n "$toolchain" ]; then
			mount --bind "$toolchain" "$root/stand-in/toolchain"
			mount -o remount,bind,ro "$root/stand-in/toolchain"
			stand_in=WHIMBREL_RUSTUP_INIT=/stand-in/rustup-init
		fi
		exec env -i HOME="$root_home" TERM=dumb LANG=C.UTF-8 \
			PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin $stand_in \
			chroot --userspec="$user" "$root" "$@"
	' sh "$root" "$toolchain" "$user" "$@" >"$root/output" 2>&1 </dev/null &
	child=$!
	status=0
	wait "$child" || status=$?
	child=""
}

# The command failed, and its last line says this.
refused() { # what was tried, text
	if [ "$status" != 1 ] || ! tail -n 1 "$root/output" | grep -q "$2"; then
		fail "$1: exit code $status, and no \"$2\" in its last line: $(tail -n 1 "$root/output")"
	fi
	echo "  $1: $(tail -n 1 "$root/output")"
}

succeeded() { # what was tried, since
	if [ "$status" != 0 ]; then
		tail -n 30 "$root/output" >&2
		fail "$1: exit code $status"
	fi
	echo "  $1: exit 0 after $(($(date +%s) - $2)) s"
}

prepare() { # suite
	root=$(mktemp -d "${TMPDIR:-/var/tmp}/whimbrel-bare-XXXXXX")
	chmod 755 "$root"
	# shellcheck disable=SC2086
	debootstrap --variant=minbase "$1" "$root" ${MIRROR:-} >"$root.log" 2>&1 || {
		tail -n 5 "$root.log" >&2
		rm -f "$root.log"
		fail "debootstrap cannot make $1"
	}
	rm -f "$root.log"
	cp /etc/resolv.conf "$root/etc/resolv.conf"
	# A host behind a proxy that reads along has certificates of its own, and so has every machine there.
	mkdir -p "$root/usr/local/share/ca-certificates" "$root/whimbrel" "$root/stand-in/toolchain"
	cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
	git -c safe.directory="*" ls-files -z --cached --others --exclude-standard | tar -c --null --no-recursion -T - --ignore-failed-read |
		tar -x -C "$root/whimbrel" --no-same-owner
	[ -z "$toolchain" ] || cat >"$root/stand-in/rustup-init" <<-'END'
		#!/bin/sh
		# Stands in for rustup's installer, whose host the test does not ask: puts the mounted toolchain where
		# rustup would.
		mkdir -p "$HOME/.cargo/bin"
		for program in /stand-in/toolchain/bin/*; do ln -sf "$program" "$HOME/.cargo/bin/"; done
	END
	[ -z "$toolchain" ] || chmod 755 "$root/stand-in/rustup-init"
}

try() { # suite
	echo "$1: a minimal root"
	[ -z "$toolchain" ] || echo "  stand-in: $toolchain in place of what rustup would install"
	prepare "$1"
	net="" root_home=/tmp
	export root_home
	inside 65534:65534 /whimbrel/demo
	refused "a stranger without root" "root must run this first"
	root_home=/root net=--net
	inside 0:0 /whimbrel/demo
	refused "without a network" "is there a network"
	net=""
	if [ -n "${OLD_RUST:-}" ]; then
		inside 0:0 sh -c 'apt-get -qq update && apt-get -qq -y --no-install-recommends install cargo && cargo --version'
		[ "$status" = 0 ] || fail "cannot install the distribution's cargo: $(tail -n 1 "$root/output")"
		echo "  the distribution's own: $(tail -n 1 "$root/output")"
	fi
	if [ -n "${COMMAND:-}" ]; then
		since=$(date +%s)
		inside 0:0 sh -c "cd /whimbrel && $COMMAND"
		succeeded "$COMMAND" "$since"
		grep -E '^test result|^[0-9]+ passed' "$root/output" | sed 's/^/    /'
		clean
		return
	fi
	since=$(date +%s)
	inside 0:0 /whimbrel/demo
	succeeded "./demo, cold" "$since"
	grep '^setup: ' "$root/output" | sed 's/^/    /'
	grep -q 'SHA-256 equal' "$root/output" || fail "the demo did not say that the bytes are equal"
	since=$(date +%s)
	inside 0:0 /whimbrel/demo
	succeeded "./demo, warm" "$since"
	! grep '^setup: ' "$root/output" || fail "the second run installed something"
	tail -n 1 "$root/output" | sed 's/^/    /'
	since=$(date +%s)
	inside 0:0 sh /whimbrel/scripts/setup.sh test make -n -C /whimbrel checks
	succeeded "the packages of ./test" "$since"
	if [ -n "${PACKAGE:-}" ]; then
		cp "$PACKAGE" "$root/tmp/whimbrel.deb"
		since=$(date +%s)
		inside 0:0 sh -euc 'apt-get -qq -y install /tmp/whimbrel.deb
			cd / && whimbrel --version && whimbrel demo --size 16
			test -s /usr/lib/systemd/system/whimbrel-names.service
			apt-get -qq -y purge whimbrel && test ! -e /usr/bin/whimbrel && test ! -e /etc/whimbrel'
		succeeded "the package: installed, run, purged" "$since"
	fi
	clean
}

[ "$#" != 0 ] || set -- bookworm trixie
for suite in "$@"; do
	try "$suite"
done
