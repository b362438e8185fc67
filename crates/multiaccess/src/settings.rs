//! What the manager is told by its operator, as TOML.

use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use whimbrel_access::{MAX_PATHS, PolicyError, PolicySpec};
use whimbrel_base::Name;

/// The least and the most time between two measurements, in milliseconds.
const INTERVALS: std::ops::RangeInclusive<u64> = 10..=60_000;
/// The least and the most time for another program's decision, in milliseconds.
const LIMITS: std::ops::RangeInclusive<u64> = 1..=1000;
/// The longest name of an interface (IFNAMSIZ without its end).
const LONGEST_NAME: usize = 15;
/// DNS servers and search domains of an interface.
const MOST_SERVERS: usize = 8;

/// Settings of a manager.
///
/// ```
/// use whimbrel_multiaccess::Settings;
///
/// let settings = Settings::from_toml(
///     "metered = [\"wwan0\"]\n[policy]\nname = \"eaf\"\n[[interface]]\nname = \"wlan0\"\nservers = [\"192.0.2.1\"]",
/// )?;
/// assert!(settings.is_metered("wwan0") && !settings.is_metered("wlan0"));
/// let refused = Settings::from_toml("[policy]\nname = \"eaff\"").err();
/// assert!(refused.is_some_and(|error| error.to_string().contains("there is no policy `eaff`")));
/// # Ok::<(), whimbrel_multiaccess::SettingsError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Which policy decides, with its settings.
    pub policy: PolicySpec,
    /// Milliseconds between measurements while there is traffic.
    pub interval: u64,
    /// Milliseconds between measurements while there is none.
    pub rest: u64,
    /// Interfaces whose traffic costs money.
    pub metered: Vec<String>,
    /// What NetworkManager says to be metered costs money too.
    pub networkmanager: bool,
    /// Interfaces that are never used.
    pub ignore: Vec<String>,
    /// Milliseconds that another program may take for a decision before the policy decides. Without it no
    /// program may decide.
    pub external: Option<u64>,
    /// The gateway of the user, through which connections go that must not break.
    pub gateway: Option<Name>,
    /// The socket of the helper that may open and close subflows of Multipath TCP.
    pub helper: Option<PathBuf>,
    /// Interfaces of which more is known. Their order is that of the paths' numbers.
    pub interface: Vec<InterfaceSettings>,
}

/// What is known of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceSettings {
    /// Its name.
    pub name: String,
    /// Whether its traffic costs money.
    #[serde(default)]
    pub metered: bool,
    /// Its DNS servers, instead of those that the system knows.
    #[serde(default)]
    pub servers: Vec<Server>,
    /// The domains in which short names are looked for, instead of those that the system knows.
    #[serde(default)]
    pub search: Option<Vec<String>>,
}

/// The address of a DNS server: with a port, or at port 53.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Server(pub SocketAddr);

impl TryFrom<String> for Server {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let plain = || text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 53));
        text.parse().or_else(|_| plain()).map(Self).map_err(|_| {
            format!("`{text}` is no DNS server; write an address, as in 192.0.2.1 or 192.0.2.1:5353")
        })
    }
}

/// Why settings are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// They are not understood.
    #[error("{0}")]
    Toml(String),
    /// The policy does not exist, or its settings make no sense.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A value is out of its range.
    #[error("{key} = {value}: must be from {least} to {most} milliseconds")]
    Range {
        /// The key.
        key: &'static str,
        /// The value.
        value: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// No interface can have this name.
    #[error("`{0}` is no name of an interface: they have 1 to 15 characters, without spaces or slashes")]
    Name(String),
    /// An interface stands there twice.
    #[error("interface {0} stands there twice: join the two tables")]
    Twice(String),
    /// An interface is used and ignored.
    #[error("interface {0} has a table and is to be ignored: take one of both away")]
    Ignored(String),
    /// More than there are numbers, or than are asked.
    #[error("{0}")]
    Many(String),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: PolicySpec::named("whimbrel"),
            interval: 100,
            rest: 1000,
            metered: Vec::new(),
            networkmanager: false,
            ignore: Vec::new(),
            external: None,
            gateway: None,
            helper: None,
            interface: Vec::new(),
        }
    }
}

impl Settings {
    /// Reads and checks settings.
    ///
    /// # Errors
    /// [`SettingsError`], which says what would be right.
    pub fn from_toml(text: &str) -> Result<Self, SettingsError> {
        let settings: Self = toml::from_str(text).map_err(|error| SettingsError::Toml(said(text, &error)))?;
        settings.check()?;
        Ok(settings)
    }

    /// Checks settings.
    ///
    /// # Errors
    /// [`SettingsError`], which says what would be right.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.policy.build()?;
        in_range("interval", self.interval, INTERVALS)?;
        in_range("rest", self.rest, INTERVALS)?;
        if let Some(limit) = self.external {
            in_range("external", limit, LIMITS)?;
        }
        if self.interface.len() > MAX_PATHS {
            let count = self.interface.len();
            let text = format!("{count} tables of interfaces; there are numbers for {MAX_PATHS} paths");
            return Err(SettingsError::Many(text));
        }
        let tables = self.interface.iter().map(|interface| &interface.name);
        for name in tables.chain(&self.metered).chain(&self.ignore) {
            let fits = (1..=LONGEST_NAME).contains(&name.len())
                && !name.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control());
            if !fits {
                return Err(SettingsError::Name(name.clone()));
            }
        }
        for (n, interface) in self.interface.iter().enumerate() {
            if self.interface[..n].iter().any(|other| other.name == interface.name) {
                return Err(SettingsError::Twice(interface.name.clone()));
            }
            if self.ignore.contains(&interface.name) {
                return Err(SettingsError::Ignored(interface.name.clone()));
            }
            let search = interface.search.as_ref().map_or(0, Vec::len);
            if interface.servers.len().max(search) > MOST_SERVERS {
                return Err(SettingsError::Many(format!(
                    "interface {}: at most {MOST_SERVERS} DNS servers and as many search domains",
                    interface.name
                )));
            }
        }
        Ok(())
    }

    /// Whether traffic over this interface costs money.
    pub fn is_metered(&self, interface: &str) -> bool {
        self.metered.iter().any(|name| name == interface)
            || self.interface(interface).is_some_and(|interface| interface.metered)
    }

    /// What is known of this interface.
    pub fn interface(&self, name: &str) -> Option<&InterfaceSettings> {
        self.interface.iter().find(|interface| interface.name == name)
    }

    /// The socket of the helper: that of this user's helper, if nothing else is said.
    #[cfg(target_os = "linux")]
    pub(crate) fn helper(&self) -> PathBuf {
        let own = || crate::helper_path(rustix::process::geteuid().as_raw());
        self.helper.clone().unwrap_or_else(own)
    }

    /// The time between measurements.
    pub fn pause(&self, is_busy: bool) -> Duration {
        Duration::from_millis(if is_busy { self.interval.min(self.rest) } else { self.rest })
    }
}

fn in_range(
    key: &'static str,
    value: u64,
    range: std::ops::RangeInclusive<u64>,
) -> Result<(), SettingsError> {
    let (least, most) = (*range.start(), *range.end());
    if range.contains(&value) { Ok(()) } else { Err(SettingsError::Range { key, value, least, most }) }
}

/// What is wrong, and in which line.
fn said(text: &str, error: &toml::de::Error) -> String {
    let what = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    match error.span() {
        Some(span) => {
            let line = text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count() + 1;
            format!("line {line}: {what}")
        }
        None => what,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_refused_with_what_would() {
        for (text, says) in [
            ("[policy]\nname = \"eaff\"", "there is no policy `eaff`; there are: single"),
            ("[policy]\nname = \"single\"\npath = 9", "paths count from 1 to 8"),
            ("interval = 1", "interval = 1: must be from 10 to 60000 milliseconds"),
            ("external = 5000", "must be from 1 to 1000"),
            ("intervall = 100", "line 1: unknown field `intervall`"),
            ("\nmetered = \"wwan0\"", "line 2: "),
            ("metered = [\"\"]", "is no name of an interface"),
            ("ignore = [\"../../etc\"]", "is no name of an interface"),
            ("[[interface]]\nname = \"a\"\n[[interface]]\nname = \"a\"", "a stands there twice"),
            ("ignore = [\"a\"]\n[[interface]]\nname = \"a\"", "take one of both away"),
            ("[[interface]]\nname = \"a\"\nservers = [\"dns\"]", "is no DNS server"),
            ("[[interface]]\nservers = []", "missing field `name`"),
            ("\ngateway = \"example.org\"", "line 2: "),
        ] {
            let error = Settings::from_toml(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn an_empty_file_is_the_default_and_measures_ten_times_a_second() {
        let settings = Settings::from_toml("").unwrap();
        assert_eq!(settings, Settings::default());
        assert_eq!(settings.pause(true), Duration::from_millis(100));
        assert_eq!(settings.pause(false), Duration::from_secs(1));
    }

    #[test]
    fn a_dns_server_may_have_a_port() {
        let text = "[[interface]]\nname = \"a\"\nservers = [\"192.0.2.1\", \"[2001:db8::1]:5353\"]";
        let settings = Settings::from_toml(text).unwrap();
        let servers: Vec<String> =
            settings.interface[0].servers.iter().map(|server| server.0.to_string()).collect();
        assert_eq!(servers, ["192.0.2.1:53", "[2001:db8::1]:5353"]);
    }
}
