//! Which networks a connection uses, and which it likes best: pure functions.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use whimbrel_proto::HandoverMode;

use crate::monitor::{InterfaceKind, LocalAddress};

/// More paths than this are seldom faster; a server keeps at most 16 for a connection.
const DEFAULT_MAX_PATHS: usize = 8;
/// Round trips change without any event: so often the paths are weighed anew where they count.
const WEIGHING: Duration = Duration::from_secs(5);

/// A ready-made policy, by name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// All networks together.
    #[default]
    Aggregate,
    /// Wi-Fi (then a cable) as long as it works; the others stand by.
    PreferWifi,
    /// The mobile network as long as it works; the others stand by.
    PreferCellular,
    /// Networks that cost nothing; metered ones stand by.
    Cheapest,
    /// The network with the shortest round trip; the others stand by.
    LowestLatency,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Aggregate, Self::PreferWifi, Self::PreferCellular, Self::Cheapest, Self::LowestLatency];

    /// Its name, as in settings and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aggregate => "aggregate",
            Self::PreferWifi => "prefer-wifi",
            Self::PreferCellular => "prefer-cellular",
            Self::Cheapest => "cheapest",
            Self::LowestLatency => "lowest-latency",
        }
    }

    /// The handover mode that it is meant for.
    #[must_use]
    pub const fn mode(self) -> HandoverMode {
        match self {
            Self::Aggregate | Self::Cheapest => HandoverMode::Full,
            Self::PreferWifi | Self::PreferCellular | Self::LowestLatency => HandoverMode::Backup,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no policy has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy {0:?}: try aggregate, prefer-wifi, prefer-cellular, cheapest or lowest-latency")]
pub struct UnknownPolicy(String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|p| p.name() == name).ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

/// An interface as policies see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name; that of an address without a known interface is the address itself.
    pub name: Arc<str>,
    /// What it leads to.
    pub kind: InterfaceKind,
    /// Whether its bytes cost something.
    pub metered: bool,
}

/// Which interfaces a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Selector {
    /// The one with this name (or this address).
    Name(String),
    /// All of a kind.
    Kind(InterfaceKind),
    /// All that are metered, or all that are not.
    Metered(bool),
}

/// Allows interfaces, and may say what they are where the system does not know: `wlan0`,
/// `usb0=cellular,metered`, `wifi`, `unmetered`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceRule {
    /// Which.
    pub selector: Selector,
    /// What they are, if the system is not to be asked.
    pub kind: Option<InterfaceKind>,
    /// Whether their bytes cost something, if that does not follow from the kind.
    pub metered: Option<bool>,
}

/// A rule that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadRule {
    /// Nothing before `=`, or an interface's name that no system would have.
    #[error("{0:?} names no interface: write it as wlan0, usb0=cellular,metered or wifi")]
    Name(String),
    /// A word behind `=` that means nothing.
    #[error(
        "{0:?} says nothing about an interface: try ethernet, wifi, cellular, other, metered or unmetered"
    )]
    Word(String),
}

impl FromStr for InterfaceRule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, words) = text.split_once('=').unwrap_or((text, ""));
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '/' || c == ',') {
            return Err(BadRule::Name(text.to_owned()));
        }
        let selector = match (name.parse(), metered(name)) {
            (Ok(kind), _) => Selector::Kind(kind),
            (_, Some(metered)) => Selector::Metered(metered),
            _ => Selector::Name(name.to_owned()),
        };
        let mut rule = Self { selector, kind: None, metered: None };
        for word in words.split(',').filter(|_| text.contains('=')) {
            match (word.parse(), metered(word)) {
                (Ok(kind), _) => rule.kind = Some(kind),
                (_, Some(metered)) => rule.metered = Some(metered),
                _ => return Err(BadRule::Word(word.to_owned())),
            }
        }
        Ok(rule)
    }
}

fn metered(word: &str) -> Option<bool> {
    match word {
        "metered" => Some(true),
        "unmetered" => Some(false),
        _ => None,
    }
}

impl InterfaceRule {
    fn names(&self, name: &str) -> bool {
        matches!(&self.selector, Selector::Name(selected) if selected == name)
    }

    fn selects(&self, interface: &Interface) -> bool {
        match &self.selector {
            Selector::Name(name) => **name == *interface.name,
            Selector::Kind(kind) => *kind == interface.kind,
            Selector::Metered(metered) => *metered == interface.metered,
        }
    }
}

/// How liked an interface is: the lowest is used first.
pub(crate) type Rank = (u8, usize, u8);

/// Which paths a connection should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPolicy {
    /// What to like best.
    pub policy: Policy,
    /// The interfaces that may be used, in order of preference. Empty: all.
    pub interfaces: Vec<InterfaceRule>,
    /// Paths that are opened at most. Default 8, at least 1.
    pub max_paths: usize,
    /// From each of our interfaces to each of the peer's, instead of using each of them once.
    pub mesh: bool,
}

impl Default for PathPolicy {
    fn default() -> Self {
        Self { policy: Policy::default(), interfaces: Vec::new(), max_paths: DEFAULT_MAX_PATHS, mesh: false }
    }
}

impl From<Policy> for PathPolicy {
    fn from(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }
}

impl PathPolicy {
    /// It matters which interface a path uses, so that is not left to the system's routes.
    #[must_use]
    pub fn is_selective(&self) -> bool {
        let likes = matches!(self.policy, Policy::PreferWifi | Policy::PreferCellular | Policy::Cheapest);
        likes || !self.interfaces.is_empty()
    }

    /// What an address's interface is, as far as rules or the system know.
    pub(crate) fn interface(&self, local: &LocalAddress) -> Interface {
        let name = local.interface.clone().unwrap_or_else(|| Arc::from(local.ip.to_string()));
        let rule = self.interfaces.iter().find(|rule| rule.names(&name));
        let detected = || local.interface.as_deref().map_or(InterfaceKind::Other, InterfaceKind::of);
        let kind = rule.and_then(|rule| rule.kind).unwrap_or_else(detected);
        let metered = rule.and_then(|rule| rule.metered).unwrap_or(kind.is_metered());
        Interface { name, kind, metered }
    }

    pub(crate) fn permits(&self, interface: &Interface) -> bool {
        self.interfaces.is_empty() || self.place(interface).is_some()
    }

    fn place(&self, interface: &Interface) -> Option<usize> {
        self.interfaces.iter().position(|rule| rule.selects(interface))
    }

    /// What the policy says comes first, then the order of the rules, then what is usual.
    pub(crate) fn rank(&self, interface: &Interface) -> Rank {
        let usual = match interface.kind {
            InterfaceKind::Ethernet => 0,
            InterfaceKind::Wifi => 1,
            InterfaceKind::Other => 2,
            InterfaceKind::Cellular => 3,
        };
        let class = match (self.policy, interface.kind) {
            (Policy::PreferWifi, InterfaceKind::Wifi) | (Policy::PreferCellular, InterfaceKind::Cellular) => {
                0
            }
            (Policy::PreferWifi | Policy::PreferCellular, _) => 1 + usual,
            (Policy::Cheapest, _) => u8::from(interface.metered),
            (Policy::Aggregate | Policy::LowestLatency, _) => 0,
        };
        (class, self.place(interface).unwrap_or_default(), usual + 4 * u8::from(interface.metered))
    }

    /// Paths on it stand by even where all paths carry data.
    pub(crate) fn reserves(&self, interface: &Interface) -> bool {
        self.policy == Policy::Cheapest && interface.metered
    }

    /// Round trips decide which path carries the data.
    pub(crate) fn weighs(&self) -> Option<Duration> {
        (self.policy == Policy::LowestLatency).then_some(WEIGHING)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn policy(policy: Policy, rules: &[&str]) -> PathPolicy {
        let interfaces = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        PathPolicy { interfaces, ..policy.into() }
    }

    fn interface(name: &str, kind: InterfaceKind) -> Interface {
        Interface { name: name.into(), kind, metered: kind.is_metered() }
    }

    /// The names of these interfaces in order of preference, without those that are not allowed.
    fn order(policy: &PathPolicy) -> Vec<String> {
        let mut all = [
            interface("wlan0", InterfaceKind::Wifi),
            interface("wwan0", InterfaceKind::Cellular),
            interface("tun0", InterfaceKind::Other),
            interface("eth0", InterfaceKind::Ethernet),
        ]
        .to_vec();
        all.retain(|i| policy.permits(i));
        all.sort_by_key(|i| policy.rank(i));
        all.iter().map(|i| i.name.to_string()).collect()
    }

    #[test]
    fn policies_prefer_what_they_say() {
        let order = |p| order(&policy(p, &[]));
        assert_eq!(order(Policy::Aggregate), ["eth0", "wlan0", "tun0", "wwan0"]);
        assert_eq!(order(Policy::PreferWifi), ["wlan0", "eth0", "tun0", "wwan0"]);
        assert_eq!(order(Policy::PreferCellular), ["wwan0", "eth0", "wlan0", "tun0"]);
        assert_eq!(order(Policy::Cheapest), ["eth0", "wlan0", "tun0", "wwan0"]);
    }

    #[test]
    fn rules_allow_and_order() {
        assert_eq!(order(&policy(Policy::Aggregate, &["wwan0", "eth0"])), ["wwan0", "eth0"]);
        assert_eq!(order(&policy(Policy::Aggregate, &["wifi"])), ["wlan0"]);
        assert_eq!(order(&policy(Policy::Aggregate, &["unmetered"])), ["eth0", "wlan0", "tun0"]);
        assert_eq!(order(&policy(Policy::PreferWifi, &["wwan0", "wlan0"])), ["wlan0", "wwan0"]);
    }

    #[test]
    fn a_rule_says_what_the_system_does_not_know() {
        let policy = policy(Policy::Cheapest, &["usb0=cellular", "eth7=unmetered", "wwan3=unmetered"]);
        let look = |name: &str| {
            policy.interface(&LocalAddress { ip: [192, 0, 2, 1].into(), interface: Some(name.into()) })
        };
        assert_eq!((look("usb0").kind, look("usb0").metered), (InterfaceKind::Cellular, true));
        assert!(policy.reserves(&look("usb0")));
        assert!(!policy.reserves(&look("wwan3")));
        let bare = policy.interface(&LocalAddress { ip: [192, 0, 2, 1].into(), interface: None });
        assert_eq!(&*bare.name, "192.0.2.1");
    }

    #[test]
    fn rules_that_cannot_be_read_are_named() {
        for (text, wrong) in [("", "\"\""), ("a b", "\"a b\""), ("eth0=fast", "\"fast\""), ("eth0=", "\"\"")]
        {
            let error = text.parse::<InterfaceRule>().unwrap_err().to_string();
            assert!(error.starts_with(wrong), "{text:?}: {error}");
        }
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
    }
}
