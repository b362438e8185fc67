//! Which devices are up, as this machine's agent heard it last: a file that the agent writes and other
//! commands read; and whether the user is at this one, which a command says and the agent reads.
//!
//! Devices say for how long something has been so, and not when it began: all times here are of this
//! machine's own clock, and another device's clock is of no importance.

pub(crate) mod kept;
mod shown;

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use whimbrel_base::{EndpointId, UnixTime};

use self::kept::folder;
pub(crate) use self::shown::{MOST_OF_ONE, Shown, ShownDevice};
use crate::identity;

/// What was said holds for so long: three heartbeats.
pub(crate) const HOLDS: Duration = Duration::from_secs(90);
/// Devices that are remembered.
const MOST: usize = 512;
/// The file that is there while the user is not at this machine.
const AWAY: &str = "away";
/// What the agent's file is called behind the user's key.
const ENDING: &str = "json";
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
    /// What a device said of itself so many seconds ago.
    pub(crate) fn told(said: Said, ago: u32, now: UnixTime) -> Self {
        let heard = now.as_secs().saturating_sub(ago.into());
        Self { away: said.away, since: heard.saturating_sub(said.seconds.into()), heard }
    }

    /// The same in words that need no clock: what was said, and how many seconds ago.
    pub(crate) fn retold(&self, now: UnixTime) -> (Said, u32) {
        let seconds = |span: u64| u32::try_from(span).unwrap_or(u32::MAX);
        let said = Said { away: self.away, seconds: seconds(self.heard.saturating_sub(self.since)) };
        (said, seconds(now.as_secs().saturating_sub(self.heard)))
    }

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
            self.0.insert(device, Up::told(said, 0, now));
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
        serde_json::from_slice(&kept::read(user, ENDING, LARGEST)).unwrap_or_default()
    }

    /// Writes it for other commands. Blocks.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn write(&self, user: EndpointId) -> Result<()> {
        kept::write(user, ENDING, &serde_json::to_vec(self)?)
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
    fn what_is_told_on_is_as_old_as_it_was() {
        let at = UnixTime::from_secs(1_700_000_000);
        let up = Up::told(Said { away: true, seconds: 300 }, 20, at);
        assert_eq!((up.since, up.heard), (1_699_999_680, 1_699_999_980));
        let later = at.saturating_add(Duration::from_secs(5));
        assert_eq!(up.retold(later), (Said { away: true, seconds: 300 }, 25));
        // Another clock, which is a day behind.
        let elsewhere = UnixTime::from_secs(1_699_900_000);
        let (said, ago) = up.retold(later);
        let there = Up::told(said, ago, elsewhere);
        assert_eq!((there.heard, there.holds(elsewhere)), (1_699_899_975, true));
        assert!(!there.holds(elsewhere.saturating_add(HOLDS - Duration::from_secs(25))));
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
