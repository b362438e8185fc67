//! Which host a client's TLS is for. That is read in the ClientHello and passed on with it: TLS is between
//! the client and the peer's server, whose key no gateway has.

use super::carry::abort;
use super::desk::{Publications, Unreached};
use super::message::Arrival;
use crate::publication::{Publication, host};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use whimbrel_relay::hello::{self, Hello, MAX_HELLO};

/// For a ClientHello to come whole.
const HELLO: Duration = Duration::from_secs(5);
/// What is read at once: most have less.
const PIECE: usize = 2 * 1024;
/// A client takes an alert, and closes, within this.
const ALERT: Duration = Duration::from_secs(2);
/// A record's content type: handshake.
const HANDSHAKE: u8 = 22;

/// Alerts of TLS (RFC 8446, §6.2), all of them fatal.
const UNRECOGNIZED_NAME: u8 = 112;
const INTERNAL_ERROR: u8 = 80;

/// Serves one client.
pub(super) async fn serve(publications: &Publications, socket: TcpStream, from: SocketAddr, at: SocketAddr) {
    let mut first = Vec::new();
    let read = tokio::time::timeout(HELLO, first_words(&socket, &mut first)).await;
    let name = match read {
        Ok(Ok(Hello::Named(name))) => name,
        // TLS for nobody in particular.
        Ok(Ok(_)) if first.first() == Some(&HANDSHAKE) => return refuse(socket, UNRECOGNIZED_NAME).await,
        Ok(Ok(_) | Err(_)) | Err(_) => return abort(&socket),
    };
    let Ok(host) = host(&name) else { return refuse(socket, UNRECOGNIZED_NAME).await };
    let arrival = Arrival::new(Publication::Tls(host), from, at);
    let Err((socket, why)) = publications.pass(socket, arrival, &first).await else { return };
    tracing::debug!(%from, %name, %why, "a client's TLS is turned away");
    let alert = if matches!(why, Unreached::Unknown) { UNRECOGNIZED_NAME } else { INTERNAL_ERROR };
    refuse(socket, alert).await;
}

/// Reads until it can be told whom the client wants.
async fn first_words(socket: &TcpStream, first: &mut Vec<u8>) -> io::Result<Hello> {
    let mut piece = [0; PIECE];
    loop {
        socket.readable().await?;
        // `hello::read` comes to an end at the latest when there is no more room.
        let room = piece.len().min(MAX_HELLO.saturating_sub(first.len()).max(1));
        match socket.try_read(&mut piece[..room]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => first.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        match hello::read(first) {
            Hello::Partial => {}
            told => return Ok(told),
        }
    }
}

/// Says why, as a server would that has not agreed on a version yet.
async fn refuse(mut socket: TcpStream, alert: u8) {
    let told = async {
        socket.write_all(&[21, 3, 3, 0, 2, 2, alert]).await?;
        socket.shutdown().await?;
        // Closing with unread bytes would reset the connection, and take the alert with it.
        let mut sink = [0; 512];
        for _ in 0..MAX_HELLO / 512 {
            if socket.read(&mut sink).await? == 0 {
                break;
            }
        }
        io::Result::Ok(())
    };
    // A client that does not wait for it learns less.
    let _ = tokio::time::timeout(ALERT, told).await;
}
