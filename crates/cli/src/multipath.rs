//! The flags that say how several networks are used, and how a running command is told to do otherwise.

use clap::Args;
use serde::{Deserialize, Serialize};
use whimbrel::{Config, Endpoint, HandoverMode, InterfaceRule, PathControl, Policy, Priority, SchedulerKind};
use whimbrel_base::EndpointId;
use whimbrel_transport::Side;

use crate::options::NETWORKS;

/// How several networks are used.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PathFlags {
    /// full: all networks; backup: one, others stand by; single: one
    #[arg(long, value_name = "MODE", help_heading = NETWORKS)]
    pub(crate) mode: Option<HandoverMode>,
    /// Which networks, and how: aggregate, prefer-wifi, prefer-cellular, cheapest or lowest-latency
    #[arg(long, value_name = "POLICY", help_heading = NETWORKS)]
    pub(crate) policy: Option<Policy>,
    /// How data is shared out: earliest-arrival, min-rtt, round-robin, redundant or rate-proportional
    #[arg(long, value_name = "SCHEDULER", help_heading = NETWORKS)]
    pub(crate) scheduler: Option<SchedulerKind>,
    /// Use only these, best first: wlan0, usb0=cellular, wifi; repeatable
    #[arg(long, value_name = "NAME[=WORDS]", help_heading = NETWORKS)]
    pub(crate) interface: Vec<InterfaceRule>,
    /// Open so many paths at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16), help_heading = NETWORKS)]
    pub(crate) max_paths: Option<u16>,
}

impl PathFlags {
    /// Puts into a config what the flags say.
    pub(crate) fn apply(&self, mut config: Config) -> Config {
        if let Some(policy) = self.policy {
            config.paths.policy = policy;
            config.handover = policy.mode();
        }
        config.handover = self.mode.unwrap_or(config.handover);
        config.scheduler = self.scheduler.unwrap_or(config.scheduler);
        if !self.interface.is_empty() {
            config.paths.interfaces = self.interface.clone();
        }
        config.paths.max_paths = self.max_paths.map_or(config.paths.max_paths, usize::from);
        config
    }

    /// The config of a command that has no other wishes.
    pub(crate) fn config(&self) -> Config {
        self.apply(Config::default())
    }
}

/// What a running command is to change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    /// The beginning of a connection's id; all connections without.
    pub(crate) connection: Option<String>,
    pub(crate) mode: Option<String>,
    pub(crate) policy: Option<String>,
    pub(crate) scheduler: Option<String>,
    /// Paths by number, and what they should be: `normal` or `backup`.
    pub(crate) priorities: Vec<(u64, String)>,
}

impl Change {
    /// Changes connections of this endpoint, whose name service is `service`. Says how many, or why not.
    pub(crate) fn make(&self, endpoint: &Endpoint, service: Option<EndpointId>) -> Result<usize, String> {
        let mode = read::<HandoverMode>(self.mode.as_deref())?;
        let policy = read::<Policy>(self.policy.as_deref())?;
        let scheduler = read::<SchedulerKind>(self.scheduler.as_deref())?;
        let priorities = self.priorities.iter().map(|(path, word)| Ok((*path, priority(word)?)));
        let priorities = priorities.collect::<Result<Vec<_>, String>>()?;
        let controls = self.chosen(endpoint, service)?;
        if !priorities.is_empty() && controls.len() > 1 {
            return Err("the command has several connections: say which with --connection".to_owned());
        }
        for control in &controls {
            if let Some(policy) = policy {
                control.set_policy(whimbrel::PathPolicy { policy, ..control.policy() });
            }
            if let Some(mode) = mode.or(policy.map(Policy::mode)) {
                control.set_handover(mode);
            }
            if let Some(scheduler) = scheduler {
                control.set_scheduler(scheduler);
            }
            for (path, priority) in &priorities {
                control.set_priority(*path, *priority).map_err(|error| error.to_string())?;
            }
        }
        Ok(controls.len())
    }

    fn chosen(&self, endpoint: &Endpoint, service: Option<EndpointId>) -> Result<Vec<PathControl>, String> {
        let wanted = |id: &str| self.connection.as_deref().is_none_or(|begin| id.starts_with(begin));
        // A path's number means a path to the peer, unless the connection to the service is named.
        let peers_only = self.connection.is_none() && !self.priorities.is_empty();
        let connections = endpoint.connections().into_iter();
        let connections = connections.filter(|connection| {
            !(peers_only && service == Some(connection.peer) && connection.side == Side::Client)
        });
        let ids = connections.map(|connection| connection.id);
        let controls: Vec<_> =
            ids.filter(|id| wanted(&id.to_string())).filter_map(|id| endpoint.path_control(id)).collect();
        match (&self.connection, controls.len()) {
            (Some(begin), 0) => Err(format!("the command has no connection {begin}…")),
            (Some(begin), 2..) => Err(format!("several connections begin with {begin}: give more of the id")),
            (None, 0) => Err("the command has no connection now".to_owned()),
            _ => Ok(controls),
        }
    }
}

fn read<T>(text: Option<&str>) -> Result<Option<T>, String>
where
    T: std::str::FromStr,
    T::Err: ToString,
{
    text.map(str::parse).transpose().map_err(|error: T::Err| error.to_string())
}

fn priority(word: &str) -> Result<Priority, String> {
    match word {
        "normal" => Ok(Priority::Normal),
        "backup" => Ok(Priority::Backup),
        other => Err(format!("a path is normal or backup, not {other:?}")),
    }
}

/// `PATH=normal` or `PATH=backup`.
pub(crate) fn path_priority(text: &str) -> Result<(u64, String), String> {
    let wrong = || "write it as PATH=normal or PATH=backup, as in 1=backup".to_owned();
    let (path, word) = text.split_once('=').ok_or_else(wrong)?;
    priority(word).map_err(|_| wrong())?;
    Ok((path.parse().map_err(|_| wrong())?, word.to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn flags_say_what_paths_are_wanted() {
        let policy = PathFlags { policy: Some(Policy::PreferWifi), ..PathFlags::default() };
        assert_eq!(policy.config().handover, HandoverMode::Backup);
        let mode = PathFlags { mode: Some(HandoverMode::Full), ..policy };
        assert_eq!(mode.config().handover, HandoverMode::Full);
        assert_eq!(mode.config().paths.policy, Policy::PreferWifi);
        let interface = vec!["usb0=cellular".parse().unwrap()];
        let rules = PathFlags { interface, max_paths: Some(2), ..PathFlags::default() }.config();
        assert_eq!((rules.paths.interfaces.len(), rules.paths.max_paths), (1, 2));
        assert_eq!(rules.handover, HandoverMode::Single);
    }

    #[test]
    fn priorities_are_read() {
        assert_eq!(path_priority("3=backup"), Ok((3, "backup".to_owned())));
        for wrong in ["3", "x=backup", "3=fast", ""] {
            assert!(path_priority(wrong).is_err(), "{wrong}");
        }
    }
}
