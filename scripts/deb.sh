#!/bin/sh
# Makes a Debian package of a built program:
#
#   scripts/deb.sh PROGRAM ARCHITECTURE PAGES OUT.deb
#
# PAGES is a directory that scripts/pages.sh made. DEB_COMPRESSION=none is for
# tests.
set -eu
cd "$(dirname "$0")/.."
[ "$#" = 4 ] || { echo "usage: $0 PROGRAM ARCHITECTURE PAGES OUT.deb" >&2; exit 2; }
program=$1 architecture=$2 pages=$3 out=$4
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
maintainer="Whimbrel maintainers <maintainers@whimbrel.invalid>"
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-0}"
umask 022
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

put() { # mode, file, place
	install -D -m "$1" "$2" "$root/$3"
}
put 755 "$program" usr/bin/whimbrel
for unit in packaging/systemd/system/*; do put 644 "$unit" "usr/lib/systemd/system/${unit##*/}"; done
for unit in packaging/systemd/user/*; do put 644 "$unit" "usr/lib/systemd/user/${unit##*/}"; done
for flags in names relay serve; do put 644 "packaging/$flags.toml" "etc/whimbrel/$flags.toml"; done
for page in "$pages"/man/*.1; do
	put 644 "$page" "usr/share/man/man1/${page##*/}"
	gzip -9n "$root/usr/share/man/man1/${page##*/}"
done
put 644 "$pages/completions/whimbrel.bash" usr/share/bash-completion/completions/whimbrel
put 644 "$pages/completions/_whimbrel" usr/share/zsh/vendor-completions/_whimbrel
put 644 "$pages/completions/whimbrel.fish" usr/share/fish/vendor_completions.d/whimbrel.fish
put 644 packaging/debian/copyright usr/share/doc/whimbrel/copyright
put 644 README.md usr/share/doc/whimbrel/README.md
put 644 CHANGELOG.md usr/share/doc/whimbrel/CHANGELOG.md
put 644 "$pages/THIRD-PARTY" usr/share/doc/whimbrel/THIRD-PARTY
# Debian wants one in a form of its own.
cat >"$root/usr/share/doc/whimbrel/changelog" <<END
whimbrel ($version) unstable; urgency=medium

  * What is new is in CHANGELOG.md.gz.

 -- $maintainer  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
END
gzip -9n "$root/usr/share/doc/whimbrel/CHANGELOG.md" "$root/usr/share/doc/whimbrel/THIRD-PARTY" \
	"$root/usr/share/doc/whimbrel/changelog"

size=$(du -sk "$root" | cut -f 1)
mkdir "$root/DEBIAN"
for script in postinst prerm postrm; do put 755 "packaging/debian/$script" "DEBIAN/$script"; done
printf '/etc/whimbrel/%s.toml\n' names relay serve >"$root/DEBIAN/conffiles"
cat >"$root/DEBIAN/control" <<END
Package: whimbrel
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $size
Depends: libc6 (>= 2.28), libgcc-s1
Suggests: curl, openssh-client
Section: net
Priority: optional
Description: connections that survive every move
 Connects programs by name. A connection lives until somebody closes it,
 whatever happens to addresses, interfaces, NATs and sleep underneath. It
 needs no root and no change to the programs: ssh, curl and browsers use it
 through a local port or a pipe.
END
(cd "$root" && find usr etc -type f -exec md5sum {} + | LC_ALL=C sort -k 2 >DEBIAN/md5sums)
# The same input makes the same package, to the byte.
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group -Z"${DEB_COMPRESSION:-xz}" --build "$root" "$out" >/dev/null
