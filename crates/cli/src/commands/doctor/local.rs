//! What can be seen without asking anybody: files, names that were lent or held for a time, the clock.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use whimbrel_base::{Name, UnixTime};
use whimbrel_names::ServiceAddress;

use super::Finding;
use crate::leases::{self, Lease};
use crate::options::Globals;
use crate::{failure, identity, places};

/// 2025-01-01: a clock that is behind this program is wrong.
const EARLIEST: UnixTime = UnixTime::from_secs(1_735_689_600);
/// Clocks that differ by less do no harm.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(60);

/// Who else may read or write what only this user should.
pub(super) fn files(globals: &Globals) -> Result<Vec<Finding>> {
    let directory = places::config()?;
    let identity = globals.identity.clone().unwrap_or_else(|| directory.join("identity"));
    let config = globals.config.clone().unwrap_or_else(|| directory.join("config.toml"));
    Ok(vec![
        file("identity", &identity, 0o077, "made on first use"),
        file("configuration", &config, 0o022, "there is none"),
        file("known peers", &directory.join("known_peers"), 0o022, "there are none yet"),
    ])
}

/// A file that others must not have these rights to.
fn file(check: &str, file: &Path, others: u32, absent: &str) -> Finding {
    let shown = file.display();
    match std::fs::metadata(file) {
        Ok(metadata) if metadata.mode() & others != 0 => Finding::bad(
            check,
            format!("{shown} has mode {:04o}", metadata.mode() & 0o7777),
            format!("chmod {:o} {shown}", metadata.mode() & 0o777 & !others),
        ),
        Ok(metadata) if metadata.uid() != rustix::process::geteuid().as_raw() => {
            Finding::bad(check, format!("{shown} is another user's"), format!("chown it, or remove {shown}"))
        }
        Ok(_) => Finding::good(check, format!("{shown} is this user's alone")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Finding::note(check, format!("{shown}: {absent}"))
        }
        Err(error) => Finding::bad(check, format!("cannot look at {shown}: {error}"), "check who owns it"),
    }
}

/// Delegations, of this user's devices and to this key, that end soon.
pub(super) fn delegations(globals: &Globals) -> Vec<Finding> {
    // What is wrong with the key itself is a finding already.
    let Ok(identity) = identity::of_user(globals) else { return Vec::new() };
    let found = |text: String| match text.split_once("; ") {
        Some((finding, remedy)) => Finding::bad("delegation", finding, remedy),
        None => Finding::note("delegation", text),
    };
    match crate::commands::id::devices::warnings(&identity) {
        Ok(warnings) => warnings.into_iter().map(found).collect(),
        Err(error) => vec![Finding::bad("delegations", failure::line(&error), "restore that file")],
    }
}

pub(super) fn clock(now: UnixTime) -> Finding {
    if now < EARLIEST {
        let remedy = "set it, as with `timedatectl set-ntp true`: records are refused until then";
        return Finding::bad("clock", "it is years behind", remedy);
    }
    Finding::good("clock", "plausible; records that it calls expired would be told below")
}

/// Names of users that a name service may give to others before long, by what it said when one was published
/// last.
pub(super) fn names_held(globals: &Globals) -> Vec<Finding> {
    let leases = match places::data().and_then(|data| leases::all(&data)) {
        Ok(leases) => leases,
        Err(error) => return vec![Finding::bad("names", failure::line(&error), "check who owns it")],
    };
    let service = globals.names.as_ref().map(ServiceAddress::id);
    let now = SystemTime::now().into();
    leases.iter().filter(|lease| Some(lease.service) == service).map(|lease| held(lease, now)).collect()
}

fn held(lease: &Lease, now: UnixTime) -> Finding {
    let user = &lease.user;
    let (check, left) = (format!("name {user}"), lease.until.since(now));
    if left.is_zero() {
        let remedy = format!(
            "run `whimbrel id register {user}` to see whose it is; if you gave it up, remove it from `leases` in the \
             data directory"
        );
        return Finding::bad(check, "the name service holds it no longer, as far as was heard here", remedy);
    }
    let finding =
        format!("held by the name service for {} more, as far as was heard here", leases::in_words(left));
    if left < leases::NEAR {
        let remedy =
            "let a device run `whimbrel expose` or `receive` under a name of it: that begins the time anew";
        return Finding::bad(check, finding, remedy);
    }
    Finding::good(check, finding)
}

/// A clock beside the one of whoever signed a record. Numbers of records are the milliseconds at which they
/// were signed, or more: only one of the future says something.
pub(super) fn clock_beside(name: &Name, sequence: u64, now: UnixTime) -> Option<Finding> {
    let ahead = Duration::from_millis(sequence.saturating_sub(now.as_millis()));
    (ahead > CLOCK_TOLERANCE).then(|| {
        let finding = format!("{} s behind that of {name}, or its is ahead", ahead.as_secs());
        Finding::bad("clock", finding, "set both, as with `timedatectl set-ntp true`")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::State;
    use super::*;

    #[test]
    fn a_record_of_the_future_shows_a_clock_that_is_behind() {
        let name: Name = "web.home.ada@example.org".parse().unwrap();
        let now = UnixTime::from_secs(2_000_000_000);
        for (ahead, bad) in [(0, false), (59_000, false), (3_600_000, true)] {
            let found = clock_beside(&name, now.as_millis() + ahead, now);
            assert_eq!(found.is_some_and(|finding| finding.state == State::Bad), bad, "{ahead} ms");
        }
        assert!(clock_beside(&name, 0, now).is_none());
    }

    #[test]
    fn a_clock_that_is_years_behind_is_bad() {
        assert_eq!(clock(UnixTime::from_secs(0)).state, State::Bad);
        assert_eq!(clock(SystemTime::now().into()).state, State::Good);
    }

    #[test]
    fn a_name_is_told_a_week_before_its_service_gives_it_up() {
        let now = UnixTime::from_secs(2_000_000_000);
        let days = |days: u64| Duration::from_secs(days * 86_400);
        let lease = |left: Duration| Lease {
            user: "ada@example.org".parse().unwrap(),
            service: whimbrel_base::SecretKey::from_bytes(&[7; 32]).id(),
            until: now.saturating_add(left),
        };
        for (left, state) in [(days(365), State::Good), (days(6), State::Bad), (days(0), State::Bad)] {
            let found = held(&lease(left), now);
            assert_eq!(found.state, state, "{found:?}");
            assert_eq!(found.remedy.is_some(), state == State::Bad);
        }
        assert!(held(&lease(days(6)), now).finding.contains("6 days"));
    }
}
