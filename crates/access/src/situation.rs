//! What policies see when they decide.

use crate::{
    Choice, ConnectionId, Cost, DestinationId, Granularity, Intents, PathEstimate, PathId, PathList, Seconds,
};
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

/// Something under way that a policy may still change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnderWay {
    /// The connection it is on.
    pub connection: ConnectionId,
    /// Bytes that are outstanding.
    pub left: u64,
    /// When it will be complete if nothing changes.
    pub completes: Seconds,
    /// Nothing comes of it at present: all of it is asked for once more, or stays.
    pub stands: bool,
}

/// All that a policy may look at when it decides.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// The moment, on the same clock as forecasts.
    pub now: Seconds,
    /// What is decided about.
    pub granularity: Granularity,
    /// What the application says about the unit.
    pub intents: &'a Intents,
    /// What is known of each path.
    pub paths: &'a [PathEstimate],
    /// Where the unit could go, on each path in the order in which to try. Empty: to wherever it goes, all
    /// paths lead there.
    pub destinations: &'a [Destination],
    /// Connections that could be reused, oldest first.
    pub connections: &'a [Connection],
}

impl<'a> Situation<'a> {
    /// The intents that apply to units of this granularity.
    pub fn stated(&self) -> Intents {
        self.intents.at(self.granularity)
    }

    /// The numbers of the paths that may be used: they lead to a destination, and cost nothing if that is
    /// what the application wants. All policies choose among these.
    pub fn usable(&self) -> impl Iterator<Item = PathId> + use<'a> {
        let this = *self;
        let numbers = 0..self.paths.len().min(crate::MAX_PATHS) as u8;
        numbers.map(PathId).filter(move |path| this.leads(*path) && this.affords(*path))
    }

    /// The connections that may be reused, oldest first: none if a whole connection is decided about, and
    /// none that costs money if nothing may.
    pub fn reusable(&self) -> impl Iterator<Item = &'a Connection> + use<'a> {
        let this = *self;
        let possible = self.granularity != Granularity::Connection;
        self.connections.iter().filter(move |connection| {
            possible && connection.paths.as_slice().iter().all(|path| this.affords(*path))
        })
    }

    /// The ways to open a new connection on these paths: one for each destination of the first of them, in
    /// their order; only one where no destinations are listed.
    pub fn openings(&self, paths: PathList) -> impl Iterator<Item = Choice> + use<'a> {
        let anywhere = self.destinations.is_empty().then_some(Choice::open_on(paths));
        let destinations = (0..=u16::MAX).map(DestinationId).zip(self.destinations);
        let mine = destinations.filter(move |(_, destination)| destination.path == paths.first());
        anywhere
            .into_iter()
            .chain(mine.map(move |(number, _)| Choice::Open { paths, destination: Some(number) }))
    }

    fn leads(&self, path: PathId) -> bool {
        self.destinations.is_empty() || self.destinations.iter().any(|destination| destination.path == path)
    }

    fn affords(&self, path: PathId) -> bool {
        let free_only = self.intents.cost() == Cost::NoExpense;
        self.paths.get(path.index()).is_some_and(|estimate| !(free_only && estimate.metered))
    }
}
