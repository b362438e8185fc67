//! Spares: connections of servers that wait until clients come for them.

use std::sync::Arc;

use futures_util::FutureExt;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use whimbrel_transport::Fronted;

use super::{Order, Shared, Spare, Spliced, is_open, lock};
use crate::reservations::{Match, Refusal};
use crate::sources::Place;

impl Shared {
    /// Takes a spare, if it is one.
    pub(super) fn offered(self: Arc<Self>, fronted: Fronted) {
        let (begin, mut begun) = oneshot::channel();
        let is_waiting = |spare: &Spare| !spare.is_closed();
        let offered = {
            let mut leftovers = lock(&self.leftovers);
            if leftovers.is_leaving {
                return leftovers.strangers.push(fronted);
            }
            lock(&self.table).offer(&fronted.first, begin, |client| is_open(&client.socket), is_waiting)
        };
        let Fronted { socket, remote, .. } = fronted;
        match offered {
            Ok(Some(Match { client, splice, displaced, .. })) => {
                self.end(displaced);
                let spliced = self.join(socket, client, splice);
                self.spawn_splice(spliced);
            }
            Ok(None) => {
                let most = lock(&self.table).limits().spares_per_address;
                if let Some(place) = self.sources.enter(remote.ip(), most) {
                    tokio::spawn(FutureExt::boxed(self.spare(socket, begun, Some(place))));
                    return;
                }
                tracing::debug!(%remote, refusal = %Refusal::EnoughSpares, "spare turned away");
                // The table takes it for one that has ended, unless a client has come for it meanwhile.
                begun.close();
                if let Ok(order) = begun.try_recv() {
                    let spliced = self.obey(socket, order);
                    self.spawn_splice(spliced);
                }
            }
            Err(refusal) => tracing::debug!(%remote, %refusal, "spare turned away"),
        }
    }

    fn spawn_splice(self: Arc<Self>, spliced: Option<Box<Spliced>>) {
        if let Some(spliced) = spliced {
            tokio::spawn(FutureExt::boxed(async move { self.splice(spliced, true).await }));
        }
    }

    /// Keeps a spare until a client comes for it, and then splices. It has its `place` until then.
    pub(super) async fn spare(
        self: Arc<Self>,
        socket: TcpStream,
        mut begun: oneshot::Receiver<Order>,
        place: Option<Place>,
    ) {
        let order = tokio::select! {
            biased;
            order = &mut begun => order,
            // Nothing is said on a spare before a client is there: it has ended, or is no spare.
            () = ended(&socket) => return,
        };
        drop(place);
        // Otherwise the server has left the address that it came from, or the reservation has ended. The
        // order is taken apart elsewhere: this future would keep room for it while what is spliced lasts.
        if let Some(spliced) = order.ok().and_then(|order| self.obey(socket, order)) {
            self.splice(spliced, true).await;
        }
    }

    /// Does what the task that has a spare is told. Returns what it is to splice.
    fn obey(&self, socket: TcpStream, order: Order) -> Option<Box<Spliced>> {
        match order {
            Order::Begin(client, splice) => self.join(socket, client, splice),
            Order::Leave(spare, gather) => {
                // If nobody gathers them the relay has ended meanwhile.
                let _ = gather.send((spare, socket));
                None
            }
        }
    }
}

/// Waits until something comes of a socket, its end or a break. That it is readable may be said without a
/// reason.
async fn ended(socket: &TcpStream) {
    while socket.readable().await.is_ok() {
        let read = socket.try_read(&mut [0]);
        if !read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock) {
            return;
        }
    }
}
