//! The file of known peers: one line a name, as people can read and mend it.
//!
//! ```text
//! # comment
//! owner ada@example.org KEY since 2026-01-31T12:00:00Z first-use
//! endpoint ssh.home.ada@example.org KEY since 2026-01-31T12:00:00Z first-use sequence 1769860800000
//! ```

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use whimbrel_base::{Name, NameKind, UnixTime};

use super::pins::{KnownEndpoint, KnownOwner, MAX_KNOWN, Pins};

const HEADER: &str = "\
# Who owns the names that were met here. `whimbrel trust` shows and changes it.\n";

/// A time as RFC 3339 has it, in whole seconds.
pub(super) fn timestamp(time: UnixTime) -> String {
    // The last second that RFC 3339 can express: the year has four digits.
    let secs = time.as_secs().min(253_402_300_799);
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_secs(secs)).to_string()
}

/// Writes the table.
pub(super) fn write(pins: &Pins) -> String {
    let mut text = HEADER.to_owned();
    for (user, owner) in pins.owners() {
        let KnownOwner { key, since, origin } = owner;
        // Writing to a string never fails.
        let _ = writeln!(text, "owner {user} {key} since {} {origin}", timestamp(*since));
    }
    for (name, endpoint) in pins.endpoints() {
        let KnownEndpoint { id, since, origin, sequence } = endpoint;
        let since = timestamp(*since);
        let _ = writeln!(text, "endpoint {name} {id} since {since} {origin} sequence {sequence}");
    }
    text
}

/// Reads what [`write`] gives, and what people make of it.
///
/// # Errors
/// The number of the first line that can't be understood.
pub(super) fn read(text: &str) -> Result<Pins, usize> {
    let mut pins = Pins::default();
    let mut lines = 0;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        lines += 1;
        if lines > 2 * MAX_KNOWN || read_line(line, &mut pins).is_none() {
            return Err(at + 1);
        }
    }
    Ok(pins)
}

fn read_line(line: &str, pins: &mut Pins) -> Option<()> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (kind, rest) = words.split_first()?;
    let [name, key, "since", since, origin, rest @ ..] = rest else { return None };
    let name: Name = name.parse().ok()?;
    let key = key.parse().ok()?;
    let since = UnixTime::from(humantime::parse_rfc3339(since).ok()?);
    let origin = origin.parse().ok()?;
    let new = match (*kind, rest) {
        ("owner", []) if name.kind() == NameKind::User => {
            pins.insert_owner(name, KnownOwner { key, since, origin })
        }
        ("endpoint", ["sequence", sequence]) => {
            let sequence = sequence.parse().ok()?;
            pins.insert_endpoint(name, KnownEndpoint { id: key, since, origin, sequence })
        }
        _ => return None,
    };
    new.then_some(())
}

/// Reads whatever stands in the file; what is understood is the same when it is written again. For fuzzers.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_anything(text: &str) {
    if let Ok(pins) = read(text) {
        let written = write(&pins);
        assert_eq!(read(&written).map(|pins| write(&pins)), Ok(written));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::SecretKey;

    use super::super::Origin;
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let key = SecretKey::from_bytes(&[7; 32]).id();
        let mut pins = Pins::default();
        let now = UnixTime::from_secs(1_800_000_000);
        pins.pin(&"ada@example.org".parse().unwrap(), key, Origin::FirstUse, now).unwrap();
        pins.pin(&"ssh.home.ada@example.org".parse().unwrap(), key, Origin::Hand, now).unwrap();
        let text = write(&pins);
        assert!(text.contains("since 2027-01-15T08:00:00Z first-use"), "{text}");
        assert_eq!(read(&text), Ok(pins));
    }

    #[test]
    fn a_line_that_is_not_understood_is_told_by_its_number() {
        let key = SecretKey::from_bytes(&[7; 32]).id();
        let good = format!("owner ada@example.org {key} since 2027-01-15T08:00:00Z hand");
        assert!(read(&good).is_ok());
        for bad in [
            "owner",
            "owner ada@example.org",
            &good.replace("owner", "endpoint"),
            &good.replace("ada@", "x.ada@"),
            &good.replace("hand", "told"),
            &good.replace("2027", "20271"),
            &format!("{good} more"),
            &good.replace(&key.to_string(), "key"),
        ] {
            assert_eq!(read(&format!("# x\n\n{bad}\n")), Err(3), "{bad}");
        }
        assert_eq!(read(&format!("{good}\n{good}")), Err(2), "a name twice");
    }
}
