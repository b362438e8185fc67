//! Until when name services hold user names for their owners, by what they said last.
//!
//! Each sign of life of one of the user's devices begins the time anew, so that a device that publishes sees
//! none of it pass. Somebody whose devices were all off for long is to be told by `whimbrel doctor` before
//! the end, when no service has said anything for months: it is written down, in one file a user under
//! `leases/` of the data directory.

use std::convert::Infallible;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use whimbrel_base::{EndpointId, Name, UnixTime};

use crate::network::Network;
use crate::{identity, output, places};
use whimbrel_base::order;

/// Before an end its owner is warned for this time.
pub(crate) const NEAR: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// What was written down is brought up to date this often. Records are published again every few days.
const AGAIN: Duration = Duration::from_secs(3600);
const DAY: u64 = 86_400;
/// More of them are not read.
const MAX_LEASES: usize = 1024;

/// How long a service holds a user name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) user: Name,
    pub(crate) service: EndpointId,
    pub(crate) until: UnixTime,
}

impl Lease {
    /// What the service said when a name of the user was published last by this process.
    fn heard(network: &Network, user: &Name) -> Option<Self> {
        let left = network.endpoint.names()?.lease(user)?;
        let until = UnixTime::from(SystemTime::now()).saturating_add(left);
        Some(Self { user: user.clone(), service: network.service.as_ref()?.id(), until })
    }
}

/// Writes down for how long the service holds the name's user, and warns if that is short.
pub(crate) fn note(network: &Network, name: &Name, quiet: bool) {
    let Some(lease) = Lease::heard(network, &name.user()) else { return };
    write_down(&lease);
    let left = lease.until.since(SystemTime::now().into());
    if left < NEAR {
        let (user, left) = (&lease.user, in_words(left));
        output::note(
            quiet,
            format!(
                "warning: the name service holds {user} for {left} after the last sign of life of its devices, and \
                 somebody else may have it then; let one of them run `whimbrel expose` or `receive`, or use a \
                 service that holds names longer"
            ),
        );
    }
}

/// Keeps what was written down up to date, for as long as it is polled.
pub(crate) async fn keep(network: &Network, name: Option<&Name>) -> Infallible {
    let Some(user) = name.map(Name::user) else { return std::future::pending().await };
    loop {
        tokio::time::sleep(AGAIN).await;
        if let Some(lease) = Lease::heard(network, &user) {
            write_down(&lease);
        }
    }
}

fn write_down(lease: &Lease) {
    let written = places::data().and_then(|data| store(&data, lease));
    if let Err(error) = written {
        tracing::warn!(user = %lease.user, %error, "cannot write down how long the name is held");
    }
}

fn store(data: &Path, lease: &Lease) -> Result<()> {
    identity::private_directory(data)?;
    let directory = data.join("leases");
    identity::private_directory(&directory)?;
    let file = directory.join(lease.user.as_str());
    let failed = || format!("cannot write {}", file.display());
    // A lost file costs a warning, and no name: it is not forced to the disk.
    let mut new = tempfile::NamedTempFile::new_in(&directory).with_context(failed)?;
    writeln!(new, "{} {}", lease.service, lease.until.as_secs()).with_context(failed)?;
    new.persist(&file).with_context(failed)?;
    Ok(())
}

/// All that was written down, by user. Files that are none of these are passed over.
pub(crate) fn all(data: &Path) -> Result<Vec<Lease>> {
    let directory = data.join("leases");
    let failed = || format!("cannot read {}", directory.display());
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(failed)?,
    };
    let mut leases = Vec::new();
    for entry in entries.take(MAX_LEASES) {
        let entry = entry.with_context(failed)?;
        let user = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let text = fs::read_to_string(entry.path()).ok();
        leases.extend(user.zip(text).and_then(|(user, text)| read(user, &text)));
    }
    order::by(&mut leases, |one, other| one.user.cmp(&other.user));
    Ok(leases)
}

fn read(user: Name, text: &str) -> Option<Lease> {
    let (service, until) = text.trim().split_once(' ')?;
    let until = UnixTime::from_secs(until.parse().ok()?);
    Some(Lease { user, service: service.parse().ok()?, until })
}

/// A time to come, rounded down.
pub(crate) fn in_words(left: Duration) -> String {
    match left.as_secs() {
        seconds @ 0..7200 => format!("{} minutes", seconds / 60),
        seconds if seconds < 2 * DAY => format!("{} hours", seconds / 3600),
        seconds => format!("{} days", seconds / DAY),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_was_written_down_is_read_again_and_the_newest_counts() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(all(dir.path()).unwrap(), []);
        let service = whimbrel_base::SecretKey::from_bytes(&[7; 32]).id();
        let lease = |user: &str, secs: u64| Lease {
            user: user.parse().unwrap(),
            service,
            until: UnixTime::from_secs(secs),
        };
        for lease in [lease("bob@example.org", 7), lease("ada@example.org", 8), lease("bob@example.org", 9)] {
            store(dir.path(), &lease).unwrap();
        }
        for (name, text) in [("eve@example.org", "nonsense"), ("no name", "x 1"), ("mia@example.org", "")] {
            fs::write(dir.path().join("leases").join(name), text).unwrap();
        }
        assert_eq!(all(dir.path()).unwrap(), [lease("ada@example.org", 8), lease("bob@example.org", 9)]);
    }
}
