//! Requests about sessions, at their gateway.

use super::SessionId;
use super::lasting::{HaltedSession, SessionPiece};
use super::message::{How, MOST_LISTED, Takers, write_list};
use super::running::{Session, SessionSettings};
use super::server::Server;
use super::table::{NoSession, Order, Table, Take};
use super::words::{Awaited, Word, Words};
use crate::{Answer, Destination, Full, Place, Quota, Status};
use futures_util::FutureExt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Instant;
use whimbrel_base::EndpointId;
use whimbrel_transport::Stream;

/// Orders that wait for one session.
const ORDERS: usize = 4;
/// Sessions that have halted and were not taken yet.
const HALTED: usize = 64;

/// Why a session does not go to a device.
pub(crate) enum Refused {
    /// There is no such session for it.
    None(NoSession),
    /// There is no place for one more connection of its own.
    Full(Full),
}

impl From<NoSession> for Refused {
    fn from(none: NoSession) -> Self {
        Self::None(none)
    }
}

impl From<Full> for Refused {
    fn from(full: Full) -> Self {
        Self::Full(full)
    }
}

/// All sessions of a gateway. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Sessions {
    table: Arc<Table>,
    words: Arc<Words>,
    settings: SessionSettings,
}

impl Sessions {
    pub(crate) fn with_settings(self, settings: SessionSettings) -> Self {
        Self { settings, ..self }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.table.count()
    }

    /// Serves a new session until it is over, in a task of its own.
    pub(crate) fn begin(
        &self,
        stream: Stream,
        socket: TcpStream,
        to: Destination,
        rule: Takers,
        place: Place<EndpointId>,
    ) {
        let (sender, orders) = mpsc::channel(ORDERS);
        let listing = self.table.begin(stream.peer_id(), to.clone(), rule, sender);
        let by = socket.peer_addr().map(|address| address.to_string()).unwrap_or_default();
        let session = Session::new(to, Server::new(socket), listing, orders, self.settings, Arc::new(place));
        let session = Box::new(session);
        tokio::spawn(FutureExt::boxed(async move { session.run(stream, &by).await }));
    }

    /// Halts all sessions, and returns those that have halted within a limit. The others break.
    pub(crate) async fn halt(&self, limit: Duration) -> Vec<HaltedSession> {
        let (sender, mut halted) = mpsc::channel(HALTED);
        for orders in self.table.orders() {
            let sender = sender.clone();
            // One that hears nothing is over.
            tokio::spawn(FutureExt::boxed(async move { drop(orders.send(Order::Halt(sender)).await) }));
        }
        drop(sender);
        let mut all = Vec::new();
        let gathering = async {
            while let Some(one) = halted.recv().await {
                all.push(one);
            }
        };
        if tokio::time::timeout(limit, gathering).await.is_err() {
            tracing::warn!("not all sessions were halted in time; the others break");
        }
        all
    }

    /// Goes on with a session that was halted, on the streams of its device if they are there still.
    pub(crate) fn go_on(
        &self,
        piece: SessionPiece,
        streams: Vec<Stream>,
        quota: &Quota<EndpointId>,
    ) -> io::Result<()> {
        let place = quota.keep(piece.head.0.holder());
        let at = (&self.table, self.settings);
        let session = Session::going_on(piece, streams, at, mpsc::channel(ORDERS), place)?;
        tokio::spawn(FutureExt::boxed(Box::new(session).go_on_serving()));
        Ok(())
    }

    /// Has a session go to the device of a stream. The answer comes from the session. One that is the
    /// device's own needs no place beside that which it has.
    pub(crate) fn take(
        &self,
        stream: Stream,
        (id, moves): (SessionId, u32),
        (rule, how): (Takers, How),
        place: Result<Place<EndpointId>, Full>,
    ) -> Result<(), (Stream, Refused)> {
        let claim = match self.table.claim(stream.peer_id(), id, moves, Instant::now()) {
            Ok(claim) => claim,
            Err(none) => return Err((stream, none.into())),
        };
        let place = match place {
            Ok(place) => Some(place),
            Err(_) if claim.is_own() => None,
            Err(full) => return Err((stream, full.into())),
        };
        let orders = claim.orders();
        let take = Take { stream, claim, rule, how, ahead: None, place };
        let given = give(&orders, Order::Take(Box::new(take)));
        given.map_err(|(stream, none)| (stream, none.into()))
    }

    /// Has a session use a second stream to its device. The answer comes from the session.
    pub(crate) fn control(
        &self,
        stream: Stream,
        (id, moves): (SessionId, u32),
    ) -> Result<(), (Stream, NoSession)> {
        match self.table.orders_of(stream.peer_id(), id, moves) {
            Ok(orders) => give(&orders, Order::Control(stream, moves)),
            Err(none) => Err((stream, none)),
        }
    }

    /// A device waits to be told of sessions that are handed over to it. `None` if too many do.
    pub(crate) fn wait(&self, device: EndpointId) -> Option<Awaited> {
        self.words.wait(device)
    }

    /// Lets another device take a session of this one, and tells it.
    pub(crate) fn permit(
        &self,
        holder: EndpointId,
        session: (SessionId, u32),
        to: EndpointId,
        limit: Duration,
    ) -> Result<(), NoSession> {
        self.table.permit(holder, session, to, limit, Instant::now())?;
        self.words.say(to, Word::new(session.0, session.1));
        Ok(())
    }

    /// Lets these devices, and no others, take all sessions of this one without being asked to.
    pub(crate) fn set_rule(&self, device: EndpointId, rule: &Takers) {
        self.table.set_rule(device, rule, Instant::now());
    }

    /// The answer to a device that asks what it has, and may take.
    pub(crate) fn list(&self, device: EndpointId) -> Vec<u8> {
        let mut listed = self.table.list(device, Instant::now());
        listed.truncate(MOST_LISTED);
        [Answer::new(Status::Connected, "").encode(), write_list(&listed)].concat()
    }
}

/// Gives an order, and the stream back if nobody takes it.
fn give(orders: &mpsc::Sender<Order>, order: Order) -> Result<(), (Stream, NoSession)> {
    orders.try_send(order).or_else(|error| match error.into_inner() {
        Order::Take(take) => Err((take.stream, NoSession)),
        Order::Control(stream, _) => Err((stream, NoSession)),
        // It is given by others.
        Order::Recall(_) | Order::Halt(_) => Ok(()),
    })
}
