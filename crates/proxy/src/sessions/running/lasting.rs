//! A session that is halted, and goes on later or in another process.

use super::moving::refuse_for_now;
use super::{Holder, Order, Session, SessionSettings, Taking};
use crate::sessions::lasting::{HaltedSession, SessionHead, SessionPiece, SessionRecord};
use crate::sessions::parts::{Body, missing};
use crate::sessions::seat::Seat;
use crate::sessions::server::Server;
use crate::sessions::table::{Table, before, behind, millis};
use crate::{Destination, Place};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use whimbrel_base::EndpointId;
use whimbrel_transport::Stream;

impl Session {
    /// Halts it. A move that is under way fails, and may be tried again.
    pub(super) fn halt(mut self) -> io::Result<HaltedSession> {
        self.end_move();
        let (now, mut body) = (Instant::now(), Vec::new());
        let entry = self.listing.record(now).ok_or_else(missing)?;
        let Self { to, server, holder, busy, is_cut, .. } = self;
        let (server, socket) = server.halt(&mut body)?;
        let (seat, held, streams) = match holder {
            Holder::Seat(seat) => {
                let (seat, streams) = seat.halt(&mut body);
                (Some(seat), 0, streams)
            }
            Holder::None(until) => (None, millis(until.saturating_duration_since(now)), Vec::new()),
        };
        let busy = millis(now.duration_since(busy));
        let head = SessionHead(SessionRecord { to: to.to_string(), entry, server, seat, held, busy, is_cut });
        Ok(HaltedSession { piece: SessionPiece { head, body, socket }, streams })
    }

    fn end_move(&mut self) {
        match self.taking.take() {
            Some(Taking::Pausing { mut take, .. }) => {
                take.claim.withdrawn();
                refuse_for_now(take);
            }
            Some(Taking::Confirming { mut claim, .. }) => claim.withdrawn(),
            None => {}
        }
        self.orders.close();
        while let Ok(order) = self.orders.try_recv() {
            if let Order::Take(take) = order {
                refuse_for_now(*take);
            }
        }
        if let Holder::Seat(seat) = &mut self.holder {
            seat.resume();
        }
    }

    /// One that was halted. Without the streams of its device it is held.
    pub(in crate::sessions) fn going_on(
        piece: SessionPiece,
        streams: Vec<Stream>,
        (table, settings): (&Arc<Table>, SessionSettings),
        (sender, orders): (mpsc::Sender<Order>, mpsc::Receiver<Order>),
        place: Place<EndpointId>,
    ) -> io::Result<Self> {
        let SessionPiece { head: SessionHead(record), body, socket } = piece;
        let (now, mut body, place) = (Instant::now(), Body::new(body), Arc::new(place));
        // Until it goes on its end is a break.
        socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
        let to: Destination = record.to.parse().map_err(|_| missing())?;
        let server = Server::going_on(record.server, &mut body, socket)?;
        let mut streams = streams.into_iter();
        let (mut is_cut, moves) = (record.is_cut, record.entry.moves());
        let holder = match (&record.seat, streams.next()) {
            (Some(seat), Some(main)) => {
                let streams = (main, streams.next());
                Holder::Seat(Box::new(Seat::going_on(seat, &mut body, streams, place.clone())?))
            }
            (Some(seat), None) if seat.has_gap() => return Err(missing()),
            (Some(_), None) => {
                is_cut |= !server.has_heard_all();
                Holder::None(now + settings.hold)
            }
            (None, _) => Holder::None(behind(now, record.held)),
        };
        server.go_on_whole();
        let listing = table.go_on(&record.entry, to.clone(), sender);
        let session = Self::new(to, server, listing, orders, settings, place);
        Ok(Self { holder, moves, is_cut, busy: before(now, record.busy), ..session })
    }

    /// Serves one that was halted until it is over.
    pub(in crate::sessions) async fn go_on_serving(mut self: Box<Self>) {
        match self.hold() {
            Some(ending) => self.end(&ending),
            None => self.serve().await,
        }
    }
}
