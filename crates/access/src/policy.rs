//! The trait that all policies share, and what they see.

use crate::{ConnectionId, Decision, Forecast, Intents, PathEstimate, PathId, PathList, Seconds};
use std::net::SocketAddr;

/// A connection that the unit could use: same destination and same security.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Connection {
    /// Its number; a situation lists connections with ascending numbers.
    pub id: ConnectionId,
    /// The paths it runs on.
    pub paths: PathList,
    /// Bytes that are scheduled on it and still outstanding; 0 if it is idle.
    pub scheduled: u64,
}

/// An address that the unit could go to. Answers of the resolver are kept apart by path (Socket Intents
/// §V-E2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    /// The address.
    pub address: SocketAddr,
    /// The path by which the name was resolved; only that path should go there.
    pub path: PathId,
}

/// All that a policy may look at when it decides.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// The moment, on the same clock as forecasts.
    pub now: Seconds,
    /// What the application says about the unit.
    pub intents: &'a Intents,
    /// What is known of each path.
    pub paths: &'a [PathEstimate],
    /// Where the unit could go. Empty: to wherever it goes, all paths lead there.
    pub destinations: &'a [Destination],
    /// Connections that could be reused, oldest first.
    pub connections: &'a [Connection],
}

impl Situation<'_> {
    /// The numbers of the paths that lead to a destination.
    pub fn usable(&self) -> impl Iterator<Item = PathId> {
        (0..self.paths.len().min(crate::MAX_PATHS) as u8).map(PathId).filter(|path| self.leads(*path))
    }

    fn leads(&self, path: PathId) -> bool {
        self.destinations.is_empty() || self.destinations.iter().any(|destination| destination.path == path)
    }
}

/// Something under way that a policy may still change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnderWay {
    /// The connection it is on.
    pub connection: ConnectionId,
    /// Bytes that are outstanding.
    pub left: u64,
    /// When it will be complete if nothing changes.
    pub completes: Seconds,
}

/// Chooses a way for each unit of communication: a request, a message, or a whole connection.
///
/// Policies have no clock and no sockets; what they remember between decisions is their own affair, and
/// [`Policy::reset`] forgets it.
pub trait Policy: Send {
    /// The name by which it is registered.
    fn name(&self) -> &'static str;

    /// Rank the ways to carry the unit into `decision`, which is empty at first.
    ///
    /// An empty decision means that the unit has to wait.
    fn decide(&mut self, situation: &Situation<'_>, forecast: &mut dyn Forecast, decision: &mut Decision);

    /// Say whether the end of something that is under way should come another way: asked when a path or
    /// connection has become free. `situation` is as for a new unit of the size that is left. The parts of
    /// the decision say how many bytes move, and where to; none leaves it alone. Forecasts of a split include
    /// what stays where it is.
    fn reconsider(
        &mut self,
        _under_way: &UnderWay,
        _situation: &Situation<'_>,
        _forecast: &mut dyn Forecast,
        _decision: &mut Decision,
    ) {
    }

    /// Whether [`Policy::reconsider`] does anything.
    fn reconsiders(&self) -> bool {
        false
    }

    /// Whether it only works with servers that support multipath connections.
    fn needs_server_support(&self) -> bool {
        false
    }

    /// Forget everything, and draw random numbers from this seed from now on.
    fn reset(&mut self, _seed: u64) {}
}
