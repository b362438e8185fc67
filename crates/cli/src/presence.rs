//! Which devices are up, as this machine's agent heard it last: a file that the agent writes and other
//! commands read; and whether the user is at this one, which a command says and the agent reads.
//!
//! Devices say for how long something has been so, and not when it began: all times here are of this machine's own
//! clock, and another device's clock is of no importance.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use whimbrel_base::{EndpointId, UnixTime};

use crate::{identity, places};

/// What was said holds for so long: three heartbeats.
pub(crate) const HOLDS: Duration = Duration::from_secs(90);
/// Devices that are remembered.
const MOST: usize = 512;
/// The file that is there while the user is not at this machine.
const AWAY: &str = "away";
/// No file that the agent writes is larger.
const LARGEST: u64 = 256 * 1024;

/// What a device says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Said {
    /// Its user is not at it.
    pub(crate) away: bool,
    /// For so many seconds.
    pub(crate) seconds: u32,
}

/// What a device said, by this machine's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Up {
    /// Its user is not at it.
    pub(crate) away: bool,
    /// Since when.
    pub(crate) since: u64,
    /// When it said so last.
    pub(crate) heard: u64,
}

impl Up {
    /// In one word.
    pub(crate) fn state(&self) -> &'static str {
        if self.away { "away" } else { "present" }
    }

    /// For programs.
    pub(crate) fn as_json(&self) -> Value {
        json!({ "state": self.state(), "since": self.since, "heard": self.heard })
    }

    fn holds(&self, now: UnixTime) -> bool {
        // What was heard in the future was heard before the clock was set back.
        now.as_secs().checked_sub(self.heard).is_some_and(|age| age < HOLDS.as_secs())
    }
}

impl fmt::Display for Up {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.heard.saturating_sub(self.since);
        write!(f, "{} for {}", self.state(), humantime::format_duration(Duration::from_secs(seconds)))
    }
}

/// What is known of all devices, by their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Presence(BTreeMap<String, Up>);

impl Presence {
    /// A device says this, or that it says nothing.
    pub(crate) fn hear(&mut self, device: EndpointId, said: Option<Said>, now: UnixTime) {
        self.0.retain(|_, up| up.holds(now));
        let device = device.to_string();
        let Some(said) = said else {
            self.0.remove(&device);
            return;
        };
        if self.0.len() < MOST || self.0.contains_key(&device) {
            let heard = now.as_secs();
            let since = heard.saturating_sub(said.seconds.into());
            self.0.insert(device, Up { away: said.away, since, heard });
        }
    }

    /// Forgets all but these.
    pub(crate) fn keep(&mut self, is_wanted: impl Fn(&str) -> bool) {
        self.0.retain(|device, _| is_wanted(device));
    }

    /// What holds of a device now.
    pub(crate) fn of(&self, device: EndpointId, now: UnixTime) -> Option<Up> {
        self.0.get(&device.to_string()).copied().filter(|up| up.holds(now))
    }

    /// What the agent of this machine wrote last. A file that is not there or makes no sense says nothing.
    pub(crate) fn read(user: EndpointId) -> Self {
        let read = file(user).ok().filter(|file| {
            std::fs::metadata(file).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= LARGEST)
        });
        let text = read.and_then(|file| std::fs::read(file).ok()).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Writes it for other commands. Blocks.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn write(&self, user: EndpointId) -> Result<()> {
        let file = file(user)?;
        let directory = file.parent().context("the file has no folder")?;
        identity::private_directory(directory)?;
        let failed = || format!("cannot write {}", file.display());
        // Of no use after a crash: it is not forced to the disk.
        let mut new = tempfile::NamedTempFile::new_in(directory).with_context(failed)?;
        new.write_all(&serde_json::to_vec(self)?).with_context(failed)?;
        new.persist(&file).with_context(failed)?;
        Ok(())
    }
}

/// Says to the agents of this machine whether its user is not at it. Blocks.
///
/// # Errors
/// When that cannot be written down.
pub(crate) fn set_away(away: bool) -> Result<()> {
    let folder = folder()?;
    identity::private_directory(&folder)?;
    let file = folder.join(AWAY);
    let written = match away {
        true => std::fs::write(&file, ""),
        false => std::fs::remove_file(&file),
    };
    match written {
        Err(error) if !away && error.kind() == ErrorKind::NotFound => Ok(()),
        written => written.with_context(|| format!("cannot change {}", file.display())),
    }
}

/// Whether the user has said so.
///
/// # Errors
/// When that cannot be looked at.
pub(crate) fn is_away() -> Result<bool> {
    Ok(folder()?.join(AWAY).try_exists()?)
}

fn file(user: EndpointId) -> Result<PathBuf> {
    Ok(folder()?.join(format!("{user}.json")))
}

/// Where the agent writes what it heard: a folder that only the user reads.
pub(crate) fn folder() -> Result<PathBuf> {
    Ok(places::data()?.join("presence"))
}

/// This machine's clock.
pub(crate) fn now() -> UnixTime {
    SystemTime::now().into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn device(number: u8) -> EndpointId {
        whimbrel_base::SecretKey::from_bytes(&[number; 32]).id()
    }

    fn said(away: bool, seconds: u32) -> Option<Said> {
        Some(Said { away, seconds })
    }

    #[test]
    fn what_a_device_said_goes_stale_also_if_the_clock_is_set_a_day_on_or_back() {
        let (mut presence, at) = (Presence::default(), UnixTime::from_secs(1_700_000_000));
        let day = Duration::from_secs(24 * 60 * 60);
        presence.hear(device(1), said(true, 60), at);
        let up = presence.of(device(1), at).unwrap();
        assert_eq!((up.state(), up.since, up.to_string().as_str()), ("away", 1_699_999_940, "away for 1m"));
        assert!(presence.of(device(1), at.saturating_add(HOLDS - Duration::from_secs(1))).is_some());
        assert_eq!(presence.of(device(1), at.saturating_add(HOLDS)), None);
        assert_eq!(presence.of(device(1), at.saturating_add(day)), None);
        assert_eq!(presence.of(device(1), UnixTime::from_secs(at.as_secs() - day.as_secs())), None);
        assert_eq!(presence.of(device(2), at), None);
    }

    #[test]
    fn a_device_that_says_nothing_any_more_is_forgotten_and_no_more_are_known_than_may_be() {
        let (mut presence, at) = (Presence::default(), UnixTime::from_secs(1_700_000_000));
        presence.hear(device(1), said(false, 0), at);
        presence.hear(device(1), None, at);
        assert_eq!(presence, Presence::default());
        for number in 0..MOST {
            presence.0.insert(number.to_string(), Up { away: false, since: 1, heard: at.as_secs() });
        }
        presence.hear(device(1), said(false, 0), at);
        assert_eq!((presence.0.len(), presence.of(device(1), at)), (MOST, None));
        presence.hear(device(1), said(false, 0), at.saturating_add(HOLDS));
        assert_eq!(presence.0.len(), 1, "what is stale makes room");
        presence.keep(|_| false);
        assert_eq!(presence, Presence::default());
        // A device that says that it has been up for ever.
        presence.hear(device(1), said(false, u32::MAX), UnixTime::from_secs(5));
        assert_eq!(presence.of(device(1), UnixTime::from_secs(5)).unwrap().since, 0);
    }
}
