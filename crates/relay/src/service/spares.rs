//! Spares: connections of servers that wait until clients come for them.

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::oneshot;
use whimbrel_transport::Fronted;

use super::{Order, Shared, Spare, is_open, lock};
use crate::reservations::{Match, Refusal};
use crate::sources::Place;

impl Shared {
    /// Takes a spare, if it is one.
    pub(super) async fn offered(self: Arc<Self>, fronted: Fronted) {
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
                self.begin(socket, client, splice).await;
            }
            Ok(None) => {
                let most = lock(&self.table).limits().spares_per_address;
                if let Some(place) = self.sources.enter(remote.ip(), most) {
                    return self.spare(socket, begun, Some(place)).await;
                }
                tracing::debug!(%remote, refusal = %Refusal::EnoughSpares, "spare turned away");
                // The table takes it for one that has ended, unless a client has come for it meanwhile.
                begun.close();
                if let Ok(order) = begun.try_recv() {
                    self.obey(socket, order).await;
                }
            }
            Err(refusal) => tracing::debug!(%remote, %refusal, "spare turned away"),
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
        // Otherwise the server has left the address that it came from, or the reservation has ended.
        if let Ok(order) = order {
            self.obey(socket, order).await;
        }
    }

    async fn obey(&self, socket: TcpStream, order: Order) {
        match order {
            Order::Begin(client, splice) => self.begin(socket, client, splice).await,
            // If nobody gathers them the relay has ended meanwhile.
            Order::Leave(spare, gather) => drop(gather.send((spare, socket))),
        }
    }
}

/// Waits until something comes of a socket, its end or a break. That it is readable may be said without a reason.
async fn ended(socket: &TcpStream) {
    while socket.readable().await.is_ok() {
        let read = socket.try_read(&mut [0]);
        if !read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock) {
            return;
        }
    }
}
