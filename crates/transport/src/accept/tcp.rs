//! TCP connections that come in, up to their first whole segment.

use futures_util::FutureExt;
use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::RecvFlags;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use whimbrel_base::{EndpointId, RelayedAddr};
use whimbrel_proto::{CloseCode, PathId, refusal, segment};

use super::{Arrival, MAX_FIRST_PLAINTEXT, REFUSAL_TIMEOUT, admit};
use crate::attend::driving;
use crate::carrier::{CarrierKind, TcpCarrier, accept_who_speaks, hands_on, kind_of, spread, tune};
use crate::endpoint_core::EndpointCore;
use crate::front::{Front, Fronted, Look};
use crate::half_open::Place;
use crate::locator::Locator;
use crate::path_io::PathIo;
use crate::shared::Shared;
use crate::sockets::Accepting;
use crate::tls::{ArrivingSessions, TlsChannel};

/// What a socket has from its listener of the options that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SetUp {
    /// Not all, perhaps.
    Partly,
    /// What a path needs.
    ForPath,
    /// What one needs that the front takes.
    ForFront,
}

/// Enough for a handshake and a first flight.
const READ_SIZE: usize = 20 * 1024;
thread_local! {
    /// Lent to whoever reads, so that those who wait hold no more than they have been sent.
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_SIZE]);
}
/// After an error of accept(2), such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts until the listener's task is aborted.
pub(crate) async fn accept_tcp(endpoint: Arc<EndpointCore>, listener: Arc<Accepting>, kind: CarrierKind) {
    let mut handed_on = if hands_on(kind) { SetUp::ForPath } else { SetUp::Partly };
    loop {
        let accepted = listener.accept().await;
        if handed_on == SetUp::ForPath && prepare(&endpoint, &listener) {
            handed_on = SetUp::ForFront;
        }
        let set_up = if listener.is_even() { handed_on } else { SetUp::Partly };
        match accepted.and_then(|accepted| came(&endpoint, accepted, kind, set_up)) {
            Ok(came) => {
                if let Some(came) = unless_taken(&endpoint, came) {
                    let place = endpoint.half_open.add(came.remote.ip(), endpoint.config.max_half_open);
                    tokio::spawn(FutureExt::boxed(serve(endpoint.clone(), place, came)));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Sets on a listener what those need that the front takes, and says whether it has done so.
fn prepare(endpoint: &EndpointCore, listener: &Accepting) -> bool {
    let Some(front) = endpoint.front.get() else { return false };
    let prepared = listener.set(|listener| front.prepare(listener));
    // What a front takes needs neither a task nor a place, if it has said enough when it is accepted.
    let deferred = accept_who_speaks(listener);
    let _ = deferred.inspect_err(|error| tracing::debug!(%error, "who is silent is accepted at once"));
    prepared.inspect_err(|error| tracing::debug!(%error, "each connection is set up by itself")).is_ok()
}

/// Makes the runtime watch a connection that was accepted. What is there already for the front to look at is
/// read before: otherwise the runtime would tell of it afterwards, and whoever waits for more would look for
/// it.
fn came(
    endpoint: &EndpointCore,
    (socket, remote): (StdTcpStream, SocketAddr),
    kind: CarrierKind,
    set_up: SetUp,
) -> io::Result<Came> {
    let mut first = Vec::new();
    if kind != CarrierKind::Mptcp && endpoint.front.get().is_some() {
        read_present(&socket, &mut first);
    }
    Ok(Came { socket: TcpStream::from_std(socket)?, remote, relay: None, kind, set_up, first })
}

/// Gives a connection to the front if what it begins with is there already, and says that it is not for this
/// endpoint: it needs neither a task nor a place, nor a limit of time. Returns all others, with what was read
/// of them.
fn unless_taken(endpoint: &EndpointCore, came: Came) -> Option<Came> {
    let Some(front) = endpoint.front.get() else { return Some(came) };
    if came.first.is_empty() || front.look(&came.first) != Look::Take {
        return Some(came);
    }
    let Came { socket, remote, set_up, first, .. } = came;
    give(&**front, set_up, Fronted { socket, remote, first });
    None
}

/// Gives a connection to the front, with what its socket needs there.
fn give(front: &dyn Front, set_up: SetUp, fronted: Fronted) {
    let complete = || {
        tune((&fronted.socket).into())?;
        front.prepare(fronted.socket.as_fd())
    };
    if set_up != SetUp::ForFront && complete().is_err() {
        // It has broken by now.
        return;
    }
    front.take(fronted);
}

/// Sets what a path needs on a socket that is no front's.
fn own(socket: &TcpStream, set_up: SetUp) -> io::Result<()> {
    if set_up == SetUp::ForPath {
        return Ok(());
    }
    // A front may have set it on the listener. Paths have heartbeats of their own, no more than they need.
    SockRef::from(socket).set_keepalive(false)?;
    tune(SockRef::from(socket))
}

/// Reads what a socket has that was accepted just now. What goes wrong is found again by whoever reads next.
fn read_present(socket: &StdTcpStream, into: &mut Vec<u8>) {
    READ_BUFFER.with_borrow_mut(|buffer| {
        if let Ok((count, _)) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()) {
            into.extend_from_slice(&buffer[..count]);
        }
    });
}

/// Serves a connection that a relay passes on, whose socket has what a path needs.
pub(crate) fn accept_relayed(
    endpoint: &Arc<EndpointCore>,
    socket: TcpStream,
    remote: SocketAddr,
    relay: RelayedAddr,
) {
    let place = endpoint.half_open.add(remote.ip(), endpoint.config.max_half_open);
    let (kind, set_up) = (CarrierKind::Tcp, SetUp::ForPath);
    let came = Came { socket, remote, relay: Some(relay), kind, set_up, first: Vec::new() };
    tokio::spawn(FutureExt::boxed(serve(endpoint.clone(), place, came)));
}

/// Serves a connection that was let in before, and looked at as far as it could be.
pub(crate) fn accept_fronted(endpoint: &Arc<EndpointCore>, fronted: Fronted) {
    let Fronted { socket, remote, first } = fronted;
    let place = endpoint.half_open.add(remote.ip(), endpoint.config.max_half_open);
    let (kind, set_up) = (CarrierKind::Tcp, SetUp::Partly);
    let came = Came { socket, remote, relay: None, kind, set_up, first };
    tokio::spawn(FutureExt::boxed(serve(endpoint.clone(), place, came)));
}

/// Hears what the peer wants; if that is a connection, moves its bytes until it is over.
async fn serve(endpoint: Arc<EndpointCore>, place: Place, came: Came) {
    // Boxed, because what a handshake needs is not to be kept for as long as the connection lasts.
    let handshake = place.hold(Box::pin(handshake(endpoint.clone(), came)));
    // A task of its own for the driver would have another worker woken, to take it over.
    if let Some(Some(opened)) = handshake.await {
        driving(endpoint, opened).await;
    }
}

async fn handshake(endpoint: Arc<EndpointCore>, came: Came) -> Option<Arc<Shared>> {
    let Came { socket, remote, kind, set_up, relay, first } = came;
    let counted = endpoint.handshakes.begin();
    let limit = endpoint.config.handshake_timeout;
    let mut ciphertext = first;
    if let Some(front) = endpoint.front.get().filter(|_| relay.is_none()) {
        let looked = tokio::time::timeout(limit, look(&socket, &mut ciphertext, |first| front.look(first)));
        let looked = tokio::select! {
            looked = looked => looked,
            () = endpoint.life.left() => {
                counted.was_none();
                front.leave(Fronted { socket, remote, first: ciphertext });
                return None;
            }
        };
        match looked {
            Ok(Ok(Look::Take)) => {
                counted.was_none();
                give(&**front, set_up, Fronted { socket, remote, first: ciphertext });
                return None;
            }
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return None,
        }
    }
    own(&socket, set_up).ok()?;
    spread(&socket);
    let (config, sessions) = endpoint.tls.server.arriving();
    let tls = TlsChannel::server(config).ok()?;
    let plaintext = Vec::new();
    let mut incoming = Incoming { socket, remote, relay, kind, tls, sessions, ciphertext, plaintext };
    match tokio::time::timeout(limit, incoming.first_segment()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::debug!(%error, "handshake failed");
            // The peer may learn why from the alert.
            let _ = tokio::time::timeout(REFUSAL_TIMEOUT, incoming.write_out()).await;
            return None;
        }
        Err(_) => return None,
    }
    counted.done();
    admit(&endpoint, incoming).await
}

/// Reads until it can be told what is to be done.
async fn look(socket: &TcpStream, first: &mut Vec<u8>, tell: impl Fn(&[u8]) -> Look) -> io::Result<Look> {
    loop {
        if !first.is_empty() {
            match tell(first) {
                Look::More => {}
                told => return Ok(told),
            }
        }
        read_once(socket, first).await?;
    }
}

/// Adds to `into` what is there, as far as it finds room.
async fn read_once(socket: &TcpStream, into: &mut Vec<u8>) -> io::Result<()> {
    socket.readable().await?;
    let room = READ_SIZE.saturating_sub(into.len());
    if room == 0 {
        return Err(io::Error::other("record without end"));
    }
    READ_BUFFER.with_borrow_mut(|buffer| {
        let mut came = None;
        let read = socket.try_io(Interest::READABLE, || {
            let (count, _) = rustix::net::recv(socket, &mut buffer[..room], RecvFlags::empty())?;
            came = Some(count);
            // Less than there was room for: nothing is left, as a further read would find out.
            if (1..room).contains(&count) { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match (came, read) {
            (Some(0), _) => Err(io::ErrorKind::UnexpectedEof.into()),
            (Some(count), _) => {
                into.extend_from_slice(&buffer[..count]);
                Ok(())
            }
            (None, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            (None, read) => read,
        }
    })
}

/// A TCP connection that was accepted just now.
struct Came {
    socket: TcpStream,
    /// Where the peer is.
    remote: SocketAddr,
    /// The relay that passes it on.
    relay: Option<RelayedAddr>,
    /// What was listened for.
    kind: CarrierKind,
    set_up: SetUp,
    /// What was read of it already.
    first: Vec<u8>,
}

/// A peer that has not shown yet what it wants.
struct Incoming {
    socket: TcpStream,
    remote: SocketAddr,
    relay: Option<RelayedAddr>,
    /// What was listened for.
    kind: CarrierKind,
    tls: TlsChannel,
    sessions: Arc<ArrivingSessions>,
    ciphertext: Vec<u8>,
    plaintext: Vec<u8>,
}

impl Incoming {
    /// Reads and answers until a whole first segment is there.
    async fn first_segment(&mut self) -> io::Result<()> {
        // What was looked at comes first.
        self.decrypt()?;
        loop {
            // What the handshake still has to say then leaves together with the path's first answer.
            if segment::split(&self.plaintext).map_err(io::Error::other)?.is_some() {
                return Ok(());
            }
            self.write_out().await?;
            if self.plaintext.len() > MAX_FIRST_PLAINTEXT {
                return Err(io::Error::other("first segment too long"));
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> io::Result<()> {
        read_once(&self.socket, &mut self.ciphertext).await?;
        self.decrypt()
    }

    fn decrypt(&mut self) -> io::Result<()> {
        if self.ciphertext.is_empty() {
            return Ok(());
        }
        let plaintext = &mut self.plaintext;
        let used = self
            .tls
            .receive(&mut self.ciphertext, &mut |plain| plaintext.extend_from_slice(plain))
            .map_err(io::Error::other)?;
        self.ciphertext.drain(..used);
        Ok(())
    }

    async fn write_out(&mut self) -> io::Result<()> {
        let records = self.tls.outgoing();
        while !records.waiting().is_empty() {
            self.socket.ready(Interest::WRITABLE).await?;
            match self.socket.try_write(records.waiting()) {
                Ok(n) => records.wrote(n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Arrival for Incoming {
    fn peer(&self) -> Option<EndpointId> {
        self.tls.peer()
    }

    fn remote(&self) -> SocketAddr {
        self.remote
    }

    fn plaintext(&self) -> &[u8] {
        &self.plaintext
    }

    fn sessions(&self) -> &ArrivingSessions {
        &self.sessions
    }

    fn into_path(self, id: PathId, _: &EndpointCore) -> io::Result<(PathIo, Vec<u8>)> {
        let local = self.socket.local_addr()?;
        let kind = kind_of(&self.socket, self.kind);
        let carrier = TcpCarrier::new(id, kind, self.socket, self.tls, self.ciphertext);
        let remote = self.relay.map_or(self.remote.into(), Locator::Relayed);
        Ok((PathIo::tcp(id, local, remote, carrier), self.plaintext))
    }

    async fn refuse(mut self, code: CloseCode, reason: &str) -> io::Result<()> {
        if self.tls.is_open() {
            self.tls.encrypt(&refusal(code, reason)).map_err(io::Error::other)?;
            self.tls.close();
        }
        self.write_out().await?;
        SockRef::from(&self.socket).shutdown(std::net::Shutdown::Write)?;
        // Closing with unread bytes would reset the connection and take our answer with it.
        let mut sink = [0; 1024];
        loop {
            self.socket.readable().await?;
            match self.socket.try_read(&mut sink) {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write as _;
    use std::sync::Mutex;

    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;
    use crate::Endpoint;
    use crate::sockets::listener;

    /// More than a busy machine needs.
    const LIMIT: Duration = Duration::from_secs(20);

    /// Takes what begins with "take", and keeps it.
    #[derive(Default)]
    struct Taker(Mutex<Vec<Fronted>>);

    impl Front for Taker {
        fn look(&self, first: &[u8]) -> Look {
            match first {
                [b't', b'a', b'k', b'e', ..] => Look::Take,
                _ if b"take".starts_with(first) => Look::More,
                _ => Look::Pass,
            }
        }

        fn take(&self, fronted: Fronted) {
            self.0.lock().unwrap().push(fronted);
        }
    }

    /// A client, and its connection as it was accepted, with these bytes in the kernel.
    async fn accepted(bytes: &[u8]) -> (TcpStream, StdTcpStream, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(bytes).await.unwrap();
        let (socket, remote) = listener.accept().await.unwrap();
        if !bytes.is_empty() {
            tokio::time::timeout(LIMIT, socket.readable()).await.unwrap().unwrap();
        }
        (client, socket.into_std().unwrap(), remote)
    }

    #[tokio::test]
    async fn what_has_said_enough_when_it_is_accepted_is_taken_at_once_and_of_all_else_no_byte_is_lost() {
        let endpoint = Endpoint::builder().ip([127, 0, 0, 1].into()).bind().await.unwrap();
        let taker = Arc::new(Taker::default());
        endpoint.set_front(taker.clone());
        for bytes in [&b"take this"[..], b"ta", b"pass", b""] {
            let (_client, socket, remote) = accepted(bytes).await;
            let came = came(endpoint.inner(), (socket, remote), CarrierKind::Tcp, SetUp::ForPath).unwrap();
            let left = unless_taken(endpoint.inner(), came).map(|came| came.first);
            let taken = taker.0.lock().unwrap().pop().map(|fronted| fronted.first);
            match bytes {
                b"take this" => assert_eq!((left, taken.as_deref()), (None, Some(bytes))),
                _ => assert_eq!((left.as_deref(), taken), (Some(bytes), None)),
            }
        }
    }

    #[tokio::test]
    async fn who_speaks_goes_ahead_of_who_came_before_and_is_silent_who_is_accepted_a_little_later() {
        let accepting = listener("127.0.0.1:0".parse().unwrap(), CarrierKind::Tcp).unwrap();
        let at = socket2::SockRef::from(&accepting).local_addr().unwrap().as_socket().unwrap();
        let endpoint = Endpoint::builder().ip([127, 0, 0, 1].into()).bind().await.unwrap();
        endpoint.set_front(Arc::new(Taker::default()));
        assert!(prepare(endpoint.inner(), &accepting));
        // On a machine that stood still for a second, the silent one may be first.
        let mut went_ahead = false;
        for _ in 0..5 {
            let silent = StdTcpStream::connect(at).unwrap();
            let mut speaking = StdTcpStream::connect(at).unwrap();
            speaking.write_all(b"?").unwrap();
            let mut came = Vec::new();
            while came.len() < 2 {
                came.push(tokio::time::timeout(LIMIT, accepting.accept()).await.unwrap().unwrap().1);
            }
            let [silent, speaking] = [silent, speaking].map(|client| client.local_addr().unwrap());
            assert!(came.contains(&silent) && came.contains(&speaking));
            went_ahead |= came[0] == speaking;
        }
        assert!(went_ahead);
    }

    #[tokio::test]
    async fn what_was_read_already_is_looked_at_before_more_is_waited_for() {
        let taker = Taker::default();
        for (bytes, expected) in [(&b"take"[..], Look::Take), (&b"pass"[..], Look::Pass)] {
            let (_client, socket, _) = accepted(b"").await;
            let socket = TcpStream::from_std(socket).unwrap();
            let mut first = bytes.to_vec();
            let looking = look(&socket, &mut first, |first| taker.look(first));
            assert_eq!(tokio::time::timeout(LIMIT, looking).await.unwrap().unwrap(), expected);
        }
        let (mut client, socket, _) = accepted(b"ta").await;
        let socket = TcpStream::from_std(socket).unwrap();
        let mut first = Vec::new();
        let looking = look(&socket, &mut first, |first| taker.look(first));
        let (told, sent) = tokio::join!(tokio::time::timeout(LIMIT, looking), client.write_all(b"ke"));
        sent.unwrap();
        assert_eq!((told.unwrap().unwrap(), &first[..]), (Look::Take, &b"take"[..]));
    }

    #[tokio::test]
    async fn what_the_front_leaves_to_the_endpoint_is_kept_alive_by_no_kernel() {
        for (set_up, expected) in [(SetUp::ForFront, false), (SetUp::Partly, false), (SetUp::ForPath, true)] {
            let (_client, socket, _) = accepted(b"").await;
            let socket = TcpStream::from_std(socket).unwrap();
            SockRef::from(&socket).set_keepalive(true).unwrap();
            own(&socket, set_up).unwrap();
            assert_eq!(SockRef::from(&socket).keepalive().unwrap(), expected, "{set_up:?}");
            assert_eq!(socket.nodelay().unwrap(), set_up != SetUp::ForPath, "{set_up:?}");
        }
    }
}
