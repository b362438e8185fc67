//! What one lock guards: the engine, and what goes with it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, MutexGuard};
use std::task::Waker;
use std::time::Instant;

use smallvec::SmallVec;
use whimbrel_base::EndpointId;
use whimbrel_base::relayed::Aliased;
use whimbrel_proto::{Connection as Engine, FlowId, PathId};

use super::effort::Effort;
use super::feed::Feed;
use super::keep::Keep;
use super::outage::Outage;
use super::outcomes::Outcomes;
use super::pins::Pins;
use super::punching::Punching;
use super::takeovers::Takeovers;
use super::wakers::Wakers;
use crate::cause::DownCause;
use crate::locator::Locator;
use crate::locked::Holding;
use crate::path_io::PathIo;
use crate::signal::Received;
use crate::whereabouts::Nearness;

/// Has somebody drive a connection again that rested.
pub(crate) type Revive = Box<dyn FnOnce() + Send>;

pub(crate) struct State {
    pub(crate) engine: Keep,
    pub(crate) paths: SmallVec<[Arc<PathIo>; 2]>,
    pub(crate) wakers: Wakers,
    pub(crate) outcomes: Outcomes,
    pub(crate) effort: Effort,
    /// How many handles of the application each flow has.
    #[expect(clippy::box_collection, reason = "one word where there are none")]
    flows: Option<Box<BTreeMap<FlowId, usize>>>,
    pub(crate) outage: Outage,
    pub(crate) moves: u64,
    /// A path has been answered before.
    pub(super) was_up: bool,
    pub(crate) takeovers: Takeovers,
    /// Server: paths that are up, and whose carriers are about to be here.
    #[expect(clippy::box_collection, reason = "one word where there are none")]
    pub(super) arriving: Option<Box<Vec<PathId>>>,
    pub(crate) pins: Pins,
    pub(crate) punching: Punching,
    /// Server: where the client says that it hears notices.
    pub(super) peer_notice_addresses: Box<[SocketAddr]>,
    /// Server: from how near the client was seen.
    pub(crate) nearness: Nearness,
    /// Server: by which tokens of its own the client finds this endpoint behind relays, as it was told.
    #[expect(clippy::box_collection, reason = "one word where there are none")]
    told: Option<Box<Vec<Aliased>>>,
    /// The connection is over here, but we lost our address while saying so: the peer may not know.
    pub(super) farewell_cut: bool,
    pub(super) feed: Feed,
    /// What the endpoint is told of Wi-Fi.
    pub(super) received: Option<Arc<Received>>,
    /// Client: the server's owner has said that its end goes to this key, which may be there.
    pub(crate) assigned: Option<Box<(EndpointId, Vec<SocketAddr>)>>,
    /// Client: the next attempt looks for the server under the key that it had.
    pub(super) wants_former: bool,
    /// While the engine rests.
    revive: Option<Revive>,
}

impl State {
    pub(super) fn has_carrier(&self, id: PathId) -> bool {
        self.paths.iter().any(|path| path.id == id)
    }

    /// There is one more handle of a flow.
    pub(crate) fn hold_flow(&mut self, flow: FlowId) {
        *self.flows.get_or_insert_default().entry(flow).or_default() += 1;
    }

    /// There is one less. True if it was the last.
    pub(crate) fn let_go_of_flow(&mut self, flow: FlowId) -> bool {
        let Some(flows) = &mut self.flows else { return true };
        let left = flows.get_mut(&flow).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            flows.remove(&flow);
            self.flows.take_if(|flows| flows.is_empty());
        }
        left == 0
    }

    /// Server: does something with the tokens that the client was told.
    pub(crate) fn with_told<R>(&mut self, f: impl FnOnce(&mut Vec<Aliased>) -> R) -> R {
        let mut told = self.told.take().map(|told| *told).unwrap_or_default();
        let result = f(&mut told);
        self.told = (!told.is_empty()).then(|| Box::new(told));
        result
    }

    pub(super) fn new(engine: Engine) -> Self {
        Self {
            engine: Keep::new(engine),
            paths: SmallVec::new(),
            wakers: Wakers::default(),
            outcomes: Outcomes::default(),
            effort: Effort::default(),
            flows: None,
            outage: Outage::default(),
            moves: 0,
            was_up: false,
            takeovers: Takeovers::default(),
            arriving: None,
            pins: Pins::default(),
            punching: Punching::default(),
            peer_notice_addresses: Box::default(),
            nearness: Nearness::default(),
            told: None,
            farewell_cut: false,
            feed: Feed::default(),
            received: None,
            assigned: None,
            wants_former: false,
            revive: None,
        }
    }

    /// Server: where notices may go. Only a client on this host can name places on it, and only one on a link
    /// places on links.
    pub(crate) fn notice_targets(&self) -> Vec<SocketAddr> {
        let stated = self.peer_notice_addresses.iter().copied();
        let direct = |place: &SocketAddr| matches!(Locator::list(&[*place])[..], [Locator::Direct(_)]);
        stated.filter(|place| direct(place) && self.nearness.permits(*place)).collect()
    }

    /// Server: where the client says that it hears notices.
    pub(crate) fn notice_addresses(&self) -> Vec<SocketAddr> {
        self.peer_notice_addresses.to_vec()
    }

    pub(crate) fn set_notice_addresses(&mut self, addresses: Vec<SocketAddr>) {
        self.peer_notice_addresses = addresses.into_boxed_slice();
    }

    /// Gives a path up, for a reason that is known here.
    pub(crate) fn lose_path(&mut self, now: Instant, id: PathId, cause: DownCause) {
        if let Some(path) = self.paths.iter().find(|path| path.id == id) {
            path.note_cause(cause);
        }
        self.engine.path_lost(now, id);
    }

    /// All paths. (Pushed one by one: cloning the vector costs ten times as much, and this is done for each
    /// wake-up.)
    pub(crate) fn paths(&self) -> SmallVec<[Arc<PathIo>; 2]> {
        let mut paths = SmallVec::new();
        self.paths.iter().for_each(|path| paths.push(path.clone()));
        paths
    }

    /// All sockets are full, which the driver knows or is being told: no use in waking it to write.
    pub(crate) fn is_stuck(&self) -> bool {
        !self.paths.is_empty() && self.paths.iter().all(|path| path.is_blocked())
    }

    /// A path's priority was set by hand: the manager leaves it alone from now on.
    pub(crate) fn pin(&mut self, id: PathId) {
        let paths = &self.paths;
        self.pins.add(id, |pinned| paths.iter().any(|path| path.id == pinned));
    }

    /// The engine may rest.
    pub(crate) fn may_rest(&self) -> bool {
        self.paths.is_empty() && self.engine.may_rest(Instant::now())
    }

    /// Packs the engine if it may rest, and what goes with it. True if it rests.
    pub(super) fn rest(&mut self, now: Instant, revive: Revive) -> bool {
        let rests = self.paths.is_empty() && self.engine.rest(now);
        if rests {
            (self.outcomes, self.revive) = (Outcomes::default(), Some(revive));
            self.wakers.rest();
        }
        rests
    }

    /// Unpacks the engine. Each task that waits for anything looks again. Returns what has a driver go on.
    #[inline]
    pub(super) fn wake(&mut self) -> Option<Revive> {
        if !self.engine.wake() {
            return None;
        }
        self.wakers.all_over();
        self.revive.take()
    }

    /// Wakes the driver if its timer would fire after the engine's next deadline.
    pub(super) fn wake_driver_if_late(&mut self) {
        if let Some(deadline) = self.engine.poll_timeout()
            && self.wakers.armed().is_none_or(|armed| deadline < armed)
        {
            self.wakers.drive();
        }
    }

    /// The connection is over, and the peer knows or will find out by itself.
    pub(crate) fn is_settled(&self) -> bool {
        self.engine.is_closed() && !self.farewell_cut
    }
}

/// The lock on a connection. Given back, it wakes those whose wait is over.
pub(crate) struct Locked<'a> {
    state: MutexGuard<'a, State>,
    // Dropped behind the guard, in this order.
    _holding: Holding,
    due: Due,
}

/// Tasks that are woken when this is dropped, and a driver that goes on.
struct Due(SmallVec<[Waker; 2]>, Option<Revive>);

impl<'a> Locked<'a> {
    #[inline]
    pub(super) fn new(state: MutexGuard<'a, State>, revive: Option<Revive>) -> Self {
        Self { state, _holding: Holding::begin(), due: Due(SmallVec::new(), revive) }
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        // Mostly there is nobody, and the lock is taken many times for each message.
        if self.state.wakers.has_due() {
            self.due.0 = self.state.wakers.take_due();
        }
    }
}

impl Drop for Due {
    fn drop(&mut self) {
        if let Some(revive) = self.1.take() {
            revive();
        }
        // Asking first is quicker than going through none.
        if !self.0.is_empty() {
            self.0.drain(..).for_each(Waker::wake);
        }
    }
}
