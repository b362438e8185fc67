//! Handing a connection over while it is used: from one endpoint to another one, over a connection between
//! them.
//!
//! ```text
//! old owner                                    new owner
//!   "WHL2" | connection id (16) | side (1)
//!     | peer (32) | length (2) | where that is: addresses in text ->
//!                                              (of a client's end: dials the peer, and says nothing there)
//!                                              <- length (2) | where it is: addresses in text
//!   (a client is told the new owner; everything stands still)
//!   length (4) | the connection, sealed ->
//!                                              (joins or calls the peer, which takes the new owner)
//!                                              <- 1, or 0 | length (2) | why not
//!   (ends, or goes on)
//! ```

use futures_util::FutureExt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_base::{ConnectionId, EndpointId, random_bytes};
use whimbrel_proto::{CloseCode, Connection as Engine, MAX_NOTICE_ADDRESSES, Side};

use super::sealed::Contents;
use super::wake;
use crate::connection::Connection;
use crate::endpoint::{Endpoint, start_listening};
use crate::error::{HandOverError, ResumeError};
use crate::locator::Locator;
use crate::manager::{Ahead, Kept};
use crate::shared::Shared;
use crate::stream::Stream;

const HELLO: &[u8; 4] = b"WHL2";
/// Of an owner that does not say whom to dial.
const FIRST_HELLO: &[u8; 4] = b"WHL1";
/// The largest connection that is taken from another endpoint.
const MAX_STATE: u32 = 1 << 30;
/// The new owner waits no longer than this for a carrier, nor than a quarter of the time that it has.
const AHEAD: Duration = Duration::from_secs(2);
/// The new owner's word to the old one is given this long to arrive.
const WORD: Duration = Duration::from_secs(10);

/// Goes on with the connection here, unless it was handed over.
struct Held<'a>(Option<&'a Arc<Shared>>);

impl Held<'_> {
    /// The other owner goes on.
    fn let_go(mut self) {
        if let Some(shared) = self.0.take() {
            shared.with(|state| state.engine.let_go());
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let Some(shared) = self.0 else { return };
        shared.with(|state| {
            // Whatever the other owner has of it is void once the peer has heard of this.
            state.engine.release(random_bytes());
            state.wakers.all_over();
        });
        shared.mover.start_anew();
    }
}

impl Connection {
    /// Hands this side of the connection over to the endpoint at the other end of `over`, which calls
    /// [`Endpoint::accept_hand_over`]: the peer is shown that this key has signed so, and goes on with the other
    /// one at the exact byte. Returns once it does; every handle here fails from then on, with
    /// [`CloseCode::HANDED_OVER`]. Until then nothing is read or written here, and what is called meanwhile
    /// waits.
    ///
    /// If the other endpoint fails, or this is dropped, the connection goes on here, over new paths. Of the
    /// two, the peer takes the first that comes, and the other is told.
    ///
    /// # Errors
    /// [`HandOverError`] says which of the three endpoints is to blame. [`HandOverError::TimedOut`] after
    /// `limit`.
    pub async fn hand_over(&self, over: &Connection, limit: Duration) -> Result<(), HandOverError> {
        within(limit, self.hand_over_by(over, limit)).await
    }

    async fn hand_over_by(&self, over: &Connection, limit: Duration) -> Result<(), HandOverError> {
        let start = Instant::now();
        let (shared, to) = (self.shared(), over.peer_id());
        let assignment = self.assign(to, limit).await?;
        let mut stream = over.open_stream().await.map_err(std::io::Error::other)?;
        let side = self.side();
        stream.write_all(&hello(self)).await?;
        let addresses = read_addresses(&mut stream).await?;
        if side == Side::Server {
            shared.with(|state| state.engine.announce_owner(assignment.clone(), addresses));
            // A client that is not in reach is called by the new owner.
            let patience = limit.saturating_sub(start.elapsed()) / 4;
            self.within(patience, |engine| !engine.is_announcing()).await;
        }
        // From here on it goes on in one way or the other, even if this is dropped.
        let contents = self.write_down(Engine::hold)?;
        let held = Held(Some(shared));
        let sealed = contents.seal_for(&shared.key, &assignment).ok_or(HandOverError::Other)?;
        let length = u32::try_from(sealed.len()).ok().filter(|length| *length <= MAX_STATE);
        stream.write_u32(length.ok_or(HandOverError::Other)?).await?;
        stream.write_all(&sealed).await?;
        if stream.read_u8().await? == 1 {
            held.let_go();
            return Ok(());
        }
        Err(HandOverError::Refused(read_text(&mut stream).await?))
    }
}

impl Endpoint {
    /// Takes the next connection that the endpoint at the other end of `over` hands over by
    /// [`Connection::hand_over`], and returns once its peer has taken this endpoint for the owner. Its
    /// streams are in [`Connection::streams`].
    ///
    /// # Errors
    /// [`HandOverError`]; the connection goes on at the other endpoint then. [`HandOverError::TimedOut`]
    /// after `limit`.
    pub async fn accept_hand_over(
        &self,
        over: &Connection,
        limit: Duration,
    ) -> Result<Connection, HandOverError> {
        let start = Instant::now();
        let stream = async { Ok(over.accept_stream().await.map_err(std::io::Error::other)?) };
        let mut stream = within(limit, stream).await?;
        let left = limit.saturating_sub(start.elapsed());
        let taken = within(left, self.take(&mut stream, left)).await;
        let word = match &taken {
            Ok(_) => vec![1],
            Err(error) => [&[0][..], &text(&error.to_string())].concat(),
        };
        // Nothing here waits for it. If it does not arrive the other one finds out by itself, because the
        // peer knows who goes on.
        tokio::spawn(FutureExt::boxed(tokio::time::timeout(WORD, async move {
            stream.write_all(&word).await?;
            stream.finish()?;
            stream.drained().await
        })));
        taken
    }

    async fn take(&self, stream: &mut Stream, limit: Duration) -> Result<Connection, HandOverError> {
        let core = self.inner();
        let offer = read_offer(stream).await?;
        // The client is told to come here before the connection is.
        let on_its_way = core.coming.announce(offer.connection);
        let mut ahead = match offer.end {
            End::Server => {
                start_listening(core).map_err(ResumeError::from)?;
                None
            }
            End::Client(peer) => peer.and_then(|(id, places)| Ahead::begin(core, id, &places)),
        };
        if let Some(ahead) = &mut ahead {
            // Until it hears of this the owner goes on, and nobody misses anything.
            let _ = tokio::time::timeout(AHEAD.min(limit / 4), ahead.stands()).await;
        }
        stream.write_all(&text(&listed(&core.stated(MAX_NOTICE_ADDRESSES)))).await?;
        let sealed = match &mut ahead {
            Some(ahead) => ahead.during(read_state(stream)).await?,
            None => read_state(stream).await?,
        };
        let (contents, assignment) = Contents::open_any(&sealed, &core.key)?;
        let connection = wake(core, contents, assignment, ahead.map(Kept::new).unwrap_or_default()).await?;
        drop(on_its_way);
        let claimant = Claimant(Some(connection));
        claimant.taken().await?;
        claimant.keep().ok_or(HandOverError::TimedOut)
    }
}

/// A copy that the peer has not taken yet. It leaves no trace unless it is kept.
struct Claimant(Option<Connection>);

impl Claimant {
    async fn taken(&self) -> Result<(), HandOverError> {
        let Some(connection) = &self.0 else { return Ok(()) };
        let patience = Duration::from_secs(u64::from(u32::MAX));
        // A client that has shown itself here goes on with nobody else, though it may have to ask for the
        // answer again.
        connection.within(patience, |engine| !engine.is_untaken()).await;
        match connection.close_reason() {
            Some(reason) => Err(HandOverError::NotTaken(reason)),
            None => Ok(()),
        }
    }

    fn keep(mut self) -> Option<Connection> {
        self.0.take()
    }
}

impl Drop for Claimant {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            // Its peer hears nothing of it: the old owner goes on.
            connection.shared().give_up(CloseCode::SUPERSEDED, "the connection goes on where it was");
        }
    }
}

async fn within<T>(
    limit: Duration,
    what: impl Future<Output = Result<T, HandOverError>>,
) -> Result<T, HandOverError> {
    tokio::time::timeout(limit, what).await.unwrap_or(Err(HandOverError::TimedOut))
}

/// What is handed over.
struct Offer {
    connection: ConnectionId,
    end: End,
}

/// Which end of it.
enum End {
    /// Of a connection that this side would have dialled: with whom, and where that is, if it is said.
    Client(Option<(EndpointId, Vec<SocketAddr>)>),
    Server,
}

fn hello(connection: &Connection) -> Vec<u8> {
    let (shared, side) = (connection.shared(), connection.side());
    let mut places: Vec<SocketAddr> = match side {
        Side::Client => shared.remote().iter().filter_map(Locator::direct).collect(),
        Side::Server => Vec::new(),
    };
    places.truncate(MAX_NOTICE_ADDRESSES);
    let (id, peer, places) = (connection.id(), shared.peer(), text(&listed(&places)));
    [&HELLO[..], id.as_bytes(), &[u8::from(side == Side::Server)], peer.as_bytes(), &places].concat()
}

async fn read_offer(stream: &mut Stream) -> Result<Offer, HandOverError> {
    let mut hello = [0; 4 + 16 + 1];
    stream.read_exact(&mut hello).await?;
    let is_first = hello.starts_with(FIRST_HELLO);
    if !is_first && !hello.starts_with(HELLO) {
        return Err(HandOverError::Other);
    }
    let peer = match is_first {
        true => None,
        false => {
            let mut id = [0; 32];
            stream.read_exact(&mut id).await?;
            Some((EndpointId::from_bytes(&id), read_addresses(stream).await?))
        }
    };
    let mut connection = [0; 16];
    connection.copy_from_slice(&hello[4..20]);
    let end = if hello[20] == 1 { End::Server } else { End::Client(peer) };
    Ok(Offer { connection: ConnectionId::from_bytes(&connection), end })
}

/// The connection, sealed.
async fn read_state(stream: &mut Stream) -> Result<Vec<u8>, HandOverError> {
    let length = stream.read_u32().await?;
    if length > MAX_STATE {
        return Err(HandOverError::Other);
    }
    let mut sealed = Vec::new();
    stream.take(length.into()).read_to_end(&mut sealed).await?;
    Ok(sealed)
}

fn listed(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Behind its length; cut where that takes more than two bytes.
fn text(text: &str) -> Vec<u8> {
    let bytes = &text.as_bytes()[..text.len().min(usize::from(u16::MAX))];
    let mut out = (bytes.len() as u16).to_be_bytes().to_vec();
    out.extend_from_slice(bytes);
    out
}

async fn read_text(stream: &mut Stream) -> Result<String, HandOverError> {
    let mut bytes = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut bytes).await?;
    Ok(words(&bytes))
}

async fn read_addresses(stream: &mut Stream) -> Result<Vec<SocketAddr>, HandOverError> {
    addresses(&read_text(stream).await?).ok_or(HandOverError::Other)
}

/// What the other owner wrote, as far as it is UTF-8.
fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Where the next owner says that it is: the first sixteen count. `None` if one of these is no address.
fn addresses(text: &str) -> Option<Vec<SocketAddr>> {
    text.split_whitespace().take(MAX_NOTICE_ADDRESSES).map(|at| at.parse().ok()).collect()
}

/// Decodes whatever comes as what the two owners say to each other; what is understood is the same when it is
/// said again. For fuzzers.
#[cfg(feature = "fuzzing")]
pub(super) fn decode_anything(bytes: &[u8]) {
    if let Some(known) = addresses(&words(bytes)) {
        assert!(known.len() <= MAX_NOTICE_ADDRESSES);
        let said = text(&listed(&known));
        assert_eq!(addresses(&words(&said[2..])), Some(known));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sixteen_addresses_count_and_each_has_to_be_one() {
        let at = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let all: Vec<SocketAddr> = (1..=20).map(at).collect();
        assert_eq!(addresses(&listed(&all)), Some(all[..16].to_vec()));
        assert_eq!(addresses(" \n"), Some(Vec::new()));
        assert_eq!(addresses("192.0.2.1:1 192.0.2.1"), None);
    }

    #[test]
    fn a_text_is_cut_where_its_length_would_not_fit() {
        let said = text(&"x".repeat(70_000));
        assert_eq!((&said[..2], said.len()), (&[0xff, 0xff][..], 2 + 0xffff));
        // What was cut within a letter is read all the same.
        assert_eq!(words(&"ü".as_bytes()[..1]), "\u{fffd}");
    }
}
