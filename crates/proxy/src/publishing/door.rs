//! Clients that come to a gateway, and how many at once.

use super::carry::{Carried, abort, carry};
use super::desk::{Publications, Unreached};
use super::message::Arrival;
use super::{through, tls};
use crate::Publication;
use crate::whole::keep_alive;
use futures_util::FutureExt;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// When no socket can be opened, those that are open have so long to end.
const NO_SOCKET: Duration = Duration::from_millis(100);

/// How it is told what a client wants.
#[derive(Clone)]
pub(super) enum Door {
    /// By the port that it came to.
    Port(Publication),
    /// By the server name of its TLS.
    Tls,
    /// By the host of its HTTP requests.
    Http,
}

impl Publications {
    /// Serves clients that say by TLS which host they want, until it is dropped.
    pub async fn serve_tls(&self, listener: TcpListener) {
        match self.accept(&listener, &Door::Tls).await {}
    }

    /// Serves clients that say by HTTP which host they want, until it is dropped.
    pub async fn serve_http(&self, listener: TcpListener) {
        match self.accept(&listener, &Door::Http).await {}
    }

    /// Clients that are there stay when this is dropped.
    pub(super) async fn accept(&self, listener: &TcpListener, door: &Door) -> Infallible {
        loop {
            match listener.accept().await {
                Ok((socket, from)) => self.let_in(socket, from, door.clone()),
                Err(error) => {
                    tracing::debug!(%error, "no client is accepted");
                    tokio::time::sleep(NO_SOCKET).await;
                }
            }
        }
    }

    fn let_in(&self, socket: TcpStream, from: SocketAddr, door: Door) {
        // From here on it counts, whatever it says and how slowly.
        let place = match self.come(from.ip()) {
            Ok(place) => place,
            Err(full) => {
                tracing::debug!(%from, %full, "a client is turned away");
                return abort(&socket);
            }
        };
        let publications = self.clone();
        tokio::spawn(FutureExt::boxed(async move {
            publications.visit(socket, from, door).await;
            drop(place);
        }));
    }

    async fn visit(&self, socket: TcpStream, from: SocketAddr, door: Door) {
        let Ok(at) = socket.local_addr() else { return };
        // What is passed on is not held back until there is more of it.
        let _ = socket.set_nodelay(true);
        keep_alive(&socket);
        match door {
            Door::Port(what) => {
                let arrival = Arrival::new(what, from, at);
                if let Err((socket, why)) = self.pass(socket, arrival, &[]).await {
                    tracing::debug!(%from, %why, "a client of a port is turned away");
                    abort(&socket);
                }
            }
            Door::Tls => tls::serve(self, socket, from, at).await,
            Door::Http => through::serve(self, socket, from, at).await,
        }
    }

    /// Carries the bytes between a client and the peer that it came to, from those on that were read already.
    ///
    /// # Errors
    /// When the peer was not reached. The client was told nothing yet.
    pub(super) async fn pass(
        &self,
        socket: TcpStream,
        arrival: Arrival,
        first: &[u8],
    ) -> Result<(), (TcpStream, Unreached)> {
        let to = arrival.to.clone();
        let opened = match self.open(arrival, first).await {
            Ok(opened) => opened,
            Err(why) => return Err((socket, why)),
        };
        let carried = carry(socket, opened.stream, self.settings().idle).await;
        drop(opened.place);
        match carried {
            Carried::Whole => Ok(()),
            Carried::Broken(error) => {
                tracing::debug!(%to, %error, "a client's connection broke");
                Ok(())
            }
            Carried::Unreached(socket, why) => Err((socket, why)),
        }
    }
}
