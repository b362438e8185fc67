#!/bin/sh
# Plays a story in the terminal: a download that begins on the phone goes on at the PC, from the very byte.
#
#   scripts/demo-devices.sh PROGRAM        (`make demo-devices` builds PROGRAM, and runs this)
#
# Everything is real, on this host's loopback and without root: a web server of Python that knows nothing of
# Whimbrel, `whimbrel gateway serve`, and two devices with keys and directories of their own, on which curl
# downloads. Takes less than a minute, and leaves nothing behind. Exit code 0 says that both parts joined are
# the file, and that the server saw one request. DEMO_SIZE is the file's size in MiB (48).
set -eu

fail() {
	echo "demo-devices: $*" >&2
	exit 1
}

[ $# = 1 ] || { echo "usage: $0 PROGRAM" >&2; exit 2; }
case $1 in
	/*) program=$1 ;;
	*) program=$PWD/$1 ;;
esac
[ -x "$program" ] || fail "$program is no program; \`make demo-devices\` builds it"
for needed in curl python3 sha256sum; do
	command -v "$needed" >/dev/null 2>&1 || fail "$needed is missing: apt-get install curl python3 coreutils"
done
megabytes=${DEMO_SIZE:-48}
case $megabytes in
	"" | *[!0-9]* | ????*) fail "DEMO_SIZE is a number of MiB from 12 to 999, and not $megabytes" ;;
esac
[ "$megabytes" -ge 12 ] || fail "DEMO_SIZE is a number of MiB from 12 to 999, and not $megabytes"

dir=$(mktemp -d) || fail "cannot make a temporary directory"
running=""
clean() {
	trap - EXIT
	for process in $running; do
		kill "$process" 2>/dev/null || true
	done
	for process in $running; do
		wait "$process" 2>/dev/null || true
	done
	rm -rf "$dir"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# --- What is said

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
	bold=$(printf '\033[1m') plain=$(printf '\033[0m')
else
	bold="" plain=""
fi

tell() {
	printf '\n%s%s%s\n' "$bold" "$*" "$plain"
}

shown() { # device, command
	printf '  %5s$ %s\n' "$1" "$2"
}

# --- How things are run

# What the user has set is for other purposes.
unset XDG_CONFIG_HOME XDG_DATA_HOME WHIMBREL_NAMES RUST_LOG
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
gate_address=127.93.7.1 phone_address=127.93.7.2 pc_address=127.93.7.3

# Runs a command of the program as a device, each of which has a home and an address of its own.
phone() {
	HOME="$dir/phone" XDG_RUNTIME_DIR="$dir/phone/run" "$program" --address $phone_address "$@"
}
mkdir -p "$dir/gate/run" "$dir/phone/run" "$dir/pc/run" "$dir/site"

# What went wrong, in the words of what went wrong.
blame() { # what, file with its messages
	[ ! -s "$2" ] || sed 's/^/  /' "$2" >&2
	fail "$1"
}

# Waits until a command succeeds.
until_so() { # what, file with messages, command
	what=$1 messages=$2 tries=0
	shift 2
	until "$@"; do
		tries=$((tries + 1))
		[ "$tries" -lt 300 ] || blame "waited 30 s without success: $what" "$messages"
		sleep 0.1
	done
}

# The value of a field in a line of JSON.
field() { # name, file
	sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" "$2" | head -n 1
}

has_field() {
	[ -n "$(field "$1" "$2")" ]
}

length() {
	if [ -f "$1" ]; then wc -c <"$1" | tr -d ' '; else echo 0; fi
}

has_bytes() { # file, how many
	[ "$(length "$1")" -ge "$2" ]
}

in_megabytes() {
	awk -v bytes="$1" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }'
}

sum() {
	sha256sum | cut -d ' ' -f 1
}

port_of_server() {
	sed -n 's/.* port \([0-9]*\) .*/\1/p' "$dir/server.log" | head -n 1
}

has_port() {
	[ -n "$(port_of_server)" ]
}

# --- The stage

tell "A web server, a gateway, a phone and a PC, all on this host"
head -c $((megabytes * 1048576)) /dev/urandom >"$dir/site/film"
python3 -u -m http.server 0 --bind 127.0.0.1 --directory "$dir/site" >"$dir/server.log" 2>&1 &
running="$running $!"
until_so "the web server listens" "$dir/server.log" has_port
url=http://127.0.0.1:$(port_of_server)/film
echo "  $url has $megabytes MiB, and its server knows nothing of Whimbrel"

phone_id=$(phone id 2>"$dir/phone.log") || blame "the phone has no key" "$dir/phone.log"
pc_id=$(HOME="$dir/pc" "$program" id 2>"$dir/pc.log") || blame "the PC has no key" "$dir/pc.log"
# The server is on this host, which a gateway does not let anybody reach unless it is told to.
HOME="$dir/gate" XDG_RUNTIME_DIR="$dir/gate/run" "$program" --address $gate_address gateway serve --ticket \
	--json --to 127.0.0.1 --allow "$phone_id" --allow "$pc_id" >"$dir/gate.out" 2>"$dir/gate.log" &
running="$running $!"
until_so "the gateway is there" "$dir/gate.log" has_field ticket "$dir/gate.out"
ticket=$(field ticket "$dir/gate.out")
shown gate "whimbrel gateway serve --ticket --allow PHONE --allow PC"

HOME="$dir/phone" XDG_RUNTIME_DIR="$dir/phone/run" "$program" --address $phone_address proxy socks \
	--listen 127.0.0.1:0 --json --through "$ticket" >"$dir/socks.out" 2>"$dir/socks.log" &
running="$running $!"
until_so "the phone's proxy listens" "$dir/socks.log" has_field listening "$dir/socks.out"
proxy=socks5h://$(field listening "$dir/socks.out")
shown phone "whimbrel proxy socks --through GATE"

# --- The phone downloads

tell "On the way home: the phone downloads, at 1 MiB/s"
shown phone "curl --limit-rate 1M --proxy $proxy -o film $url"
curl -sS --limit-rate 1M --max-time 300 --proxy "$proxy" -o "$dir/phone/film" "$url" 2>"$dir/curl.log" &
curl=$!
running="$running $curl"
for part in 1 2 3 4; do
	until_so "the download grows" "$dir/curl.log" has_bytes "$dir/phone/film" $((part * 1048576))
	echo "         $(in_megabytes "$(length "$dir/phone/film")") are there"
done

tell "At the desk: the same connection is to go on at the PC"
sessions=$(phone sessions --json --through "$ticket" 2>"$dir/phone.log") ||
	blame "the phone is not told of its sessions" "$dir/phone.log"
session=$(echo "$sessions" | sed -n 's/.*"id":"\([0-9a-f]\{8\}\).*/\1/p')
[ -n "$session" ] || fail "the gateway has no session of the phone: $sessions"
shown phone "whimbrel sessions --through GATE"
phone sessions --through "$ticket" 2>"$dir/phone.log" | sed 's/^/         /'
shown phone "whimbrel handoff $session --to PC --through GATE"
phone handoff "$session" --to "$pc_id" --through "$ticket" 2>"$dir/phone.log" >"$dir/handoff.out" ||
	blame "the phone cannot hand its session over" "$dir/phone.log"

# --- The PC goes on

shown pc "whimbrel take $session --as http --through GATE -- curl -o rest {url}"
HOME="$dir/pc" XDG_RUNTIME_DIR="$dir/pc/run" "$program" --address $pc_address take "$session" --as http \
	--through "$ticket" -- curl -sS --fail --max-time 300 -o "$dir/pc/rest" "{url}" 2>"$dir/pc.log" &
running="$running $!"
wait $! || blame "the PC could not take the session" "$dir/pc.log"
sed -n 's/.*\(the session goes on here, from byte [0-9]*\).*/         \1/p' "$dir/pc.log"
code=0
wait "$curl" || code=$?
echo "         curl on the phone has ended: its connection went on elsewhere (exit code $code)"

# --- What came of it

first=$(length "$dir/phone/film") rest=$(length "$dir/pc/rest")
file_sum=$(sum <"$dir/site/film")
joined_sum=$(cat "$dir/phone/film" "$dir/pc/rest" | sum)
requests=$(grep -c '"GET ' "$dir/server.log" || true)
tell "What came of it"
echo "  phone     $(in_megabytes "$first") ($first bytes)"
echo "  PC        $(in_megabytes "$rest") ($rest bytes)"
echo "  the file  $file_sum  (SHA-256)"
echo "  joined    $joined_sum"
echo "  requests that the server saw: $requests"
[ "$code" != 0 ] || fail "curl on the phone got the whole file: nothing moved"
[ "$rest" -gt 0 ] || fail "the PC got nothing"
[ "$joined_sum" = "$file_sum" ] || fail "both parts joined are not the file"
[ "$requests" = 1 ] || fail "the server saw $requests requests"
tell "Not a byte was lost or came twice, and the server saw one connection."
