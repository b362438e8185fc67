#!/bin/sh
# Runs the key benches on a quiet machine (some 35 minutes), keeps their results in bench/results, and writes
# docs/results.md anew. `--quick` runs each for a moment only and keeps nothing here: it shows that all of them work.
# `--handover` runs the papers' experiments instead (some 8 minutes), `--rest` all others (some 2 hours).
# Each bench begins when the machine is idle, or after a minute and a half of waiting for that. Benches that cannot
# run are named at the end; the others' results are kept nevertheless.
set -u
cd "$(dirname "$0")/.."

quick="" out=bench/results page=docs/results.md which=key
case "${1:-}" in
	"") ;;
	--handover) which=handover ;;
	--rest) which=rest ;;
	--quick)
		scratch=$(mktemp -d)
		trap 'rm -rf "$scratch"' EXIT
		quick=--quick out=$scratch page=$scratch/results.md
		;;
	*) echo "usage: $0 [--quick | --handover | --rest]" >&2; exit 2 ;;
esac

cargo build --release --bin whimbrel || exit 1
cargo build --release -p whimbrel-bench --features peers || exit 1
program=${CARGO_TARGET_DIR:-target}/release/whimbrel-bench

# Percent of the processors' time that is used, over two seconds.
busy() {
	{ head -n 1 /proc/stat; sleep 2; head -n 1 /proc/stat; } | awk '
		{ all = 0; for (i = 2; i <= 9; i++) all += $i; used = all - $5 - $6 }
		NR == 1 { all_before = all; used_before = used }
		NR == 2 { printf "%d\n", 100 * (used - used_before) / (all - all_before + 0.001) }'
}

# Waits until the machine does nothing else, and no longer than 90 seconds.
quiet() {
	looks=0
	while now=$(busy) && [ "$now" -gt 5 ] && [ "$looks" -lt 44 ]; do
		looks=$((looks + 1))
	done
	[ "$now" -le 5 ] || echo "measure: the machine is $now % busy; measured nevertheless" >&2
}

failed=""
bench() { # name, rounds, more
	name=$1 rounds=$2
	shift 2
	if [ -n "$quick" ]; then rounds=1; else quiet; fi
	echo "measure: $(date -u +%H:%M:%S) $name"
	"$program" "$name" --rounds "$rounds" --out "$out" $quick "$@" 2>"$out/.messages" | grep -E 'target|kept' || true
	file=$out/${kept:-$name}.json
	if [ ! -s "$file" ] || [ "$file" -ot "$out/.messages.begin" ]; then
		failed="$failed $name"
		tail -n 3 "$out/.messages" >&2
	fi
}
: >"$out/.messages.begin"

# Idle connections, each an open file of their server over TCP. Where the limit is lower and cannot be raised, not
# even by root (in many containers), the bench holds the others over QUIC.
ulimit -n 60000 2>/dev/null || ulimit -n "$(ulimit -Hn)"
idle=50000
[ -z "$quick" ] || idle=2000
# What is counted of connections that do nothing.
idle_length="--seconds 15"
[ -z "$quick" ] || idle_length=""
# Connections that are suspended.
suspended=10000
[ -z "$quick" ] || suspended=500

key() {
	bench throughput 5 --systems whimbrel,tcp,tls,iroh
	bench connect 3
	bench ping-pong 5
	bench small-writes 3
	bench connect-lab 20
	bench recovery 20
	bench server-move 3 --connections 20
	bench take-over 3
	bench beside-bulk 3
	bench smooth 3
	bench tunnel 3
	bench relay 2
	bench relay-idle 1
	bench relay-first-byte 5
	bench accept 5 --connections "$idle"
	bench idle 1 $idle_length
	bench failover 2
	bench aggregate 1 --links 30+10
	bench lossy 3
	bench messages 3
	bench suspend 5
	bench hand-over-gap 5
}

handover() {
	kept=handover-goodput bench handover 3 --only goodput,delay
	kept=handover-download bench handover 2 --only download,signal,switch
	kept=handover-energy bench handover 1 --only energy
}

rest() {
	bench relays-at-scale 1
	kept=reach-moves bench reach 10 --only time,moves
	kept=reach-death bench reach 3 --only death
	kept=reach-pairs bench reach 10 --only pairs
	kept=reach-proximate bench reach 3 --only proximate
	kept=reach-roaming bench reach 1 --only roaming
	bench idle 2
	bench quic-recovery 5
	bench server-move 2
	bench session-move 3
	bench start-up 1
	bench small-objects 2
	bench both-move 50
	bench cpu 3
	bench rate-limit 3
	bench message-delay 3
	bench message-outage 3
	bench mockets-tables 5
	bench standby 2 --connections "$suspended"
	bench manager-rest 3
	bench proxy-http 3
	bench gateway-download 3
	bench gateway-moves 3
	bench gateway-sessions 3
}

"$which"
rm -f "$out/.messages" "$out/.messages.begin"

"$program" report --out "$out" --page "$page" || exit 1
sed -n '/^## Targets/,$p' "$page"
if [ -n "$failed" ]; then
	echo "measure: failed:$failed" >&2
	exit 1
fi
