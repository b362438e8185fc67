//! What an instance hands over to a newer one, how it travels ([`wire`]), and who asks for it ([`give`]). The
//! newer one's side is [`takeover`](crate::takeover).

mod ends;
mod give;
mod wire;

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::time::SystemTime;

use anyhow::{Result, bail};
use whimbrel_base::{ConnectionId, TicketSecret};
use whimbrel_proxy::{HaltedSession, MAX_SESSION, SessionPiece};
use whimbrel_relay::estate::Piece;
use whimbrel_transport::{Connection, Leaving, OpenSockets, PassedOn, Stream, Suspended, TlsSessions};

pub(crate) use self::give::{Answer, Asker, Question};
pub(crate) use self::wire::{Item, Wire};

use self::wire::Way;
use crate::access::Before;
use crate::local::{LocalListener, LocalSocket, Place};
use crate::transfer::source::{self, Source};
use crate::transfer::underway::{SoFar, Underway};
use crate::tunnel::direction::{Direction, MOST};
use crate::tunnel::{Halted, Tunnel};

/// The versions of what is handed over that this program reads and writes, the best first.
pub(crate) const VERSIONS: [u32; 1] = [1];

/// Everything that another instance needs to go on.
pub(crate) struct Estate {
    pub(crate) sockets: Option<OpenSockets>,
    pub(crate) sessions: TlsSessions,
    pub(crate) connections: Vec<Suspended>,
    /// The peers that were let in.
    pub(crate) before: Before,
    /// Where local programs connect.
    pub(crate) listener: Option<LocalListener>,
    pub(crate) local: Vec<Local>,
    files: Vec<Incoming>,
    /// Of a gateway.
    gateway: Vec<GatewaySession>,
    /// Of a relay.
    pub(crate) relay: whimbrel_relay::Estate,
    /// Where those that were put to sleep here are among the connections.
    places: HashMap<ConnectionId, usize>,
}

/// A file on its way.
struct Incoming {
    stream: (usize, u64),
    so_far: SoFar,
    /// What came and was not used.
    unused: Vec<u8>,
}

/// A session of a gateway.
struct GatewaySession {
    piece: SessionPiece,
    streams: Vec<(usize, u64)>,
}

/// A local program's socket.
pub(crate) struct Local {
    pub(crate) socket: LocalSocket,
    /// The place of its connection among those handed over, and its stream there. `None` if it waits for one.
    stream: Option<(usize, u64)>,
    out: Direction,
    back: Direction,
}

/// What was woken.
#[derive(Default)]
pub(crate) struct Woken {
    /// Tunnels that go on.
    pub(crate) tunnels: Vec<Tunnel>,
    /// Streams without a local socket.
    pub(crate) streams: Vec<Stream>,
    /// Local sockets without a stream.
    pub(crate) sockets: Vec<LocalSocket>,
    /// Files that come.
    pub(crate) files: Vec<Underway>,
    /// Sessions of a gateway, with the streams of their devices.
    pub(crate) gateway: Vec<(SessionPiece, Vec<Stream>)>,
}

impl Estate {
    /// Puts `connections` of an endpoint to sleep, with what was halted of them, and ends the endpoint.
    pub(crate) async fn of(leaving: Leaving, connections: &[Connection], halted: Vec<Halted>) -> Self {
        let estate = Self::of_endpoint(leaving.pass_on(connections).await);
        let local = halted.into_iter().filter_map(|halted| match halted {
            Halted::Tunnel(tunnel) => {
                let id = tunnel.read.stream().connection().id();
                // Without its connection it is over, and its program is to see that.
                let Some(&place) = estate.places.get(&id) else {
                    crate::tunnel::refuse(&tunnel.socket);
                    return None;
                };
                let stream = Some((place, tunnel.read.stream().id()));
                Some(Local { socket: tunnel.socket, stream, out: tunnel.out, back: tunnel.back })
            }
            Halted::Socket(socket) => {
                let (out, back) = Default::default();
                Some(Local { socket, stream: None, out, back })
            }
            // It was kept so far, and is found in its connection again.
            Halted::Stream(stream) => {
                drop(stream);
                None
            }
        });
        let local = local.collect();
        Self { local, ..estate }
    }

    /// What a relay has left, which was all that its endpoint did.
    pub(crate) fn of_relay(left: whimbrel_relay::Left) -> Self {
        let whimbrel_relay::Left { passed_on, estate, .. } = left;
        Self { relay: estate, ..Self::of_endpoint(passed_on) }
    }

    fn of_endpoint(passed_on: PassedOn) -> Self {
        let PassedOn { sockets, connections, sessions, .. } = passed_on;
        let places = connections.iter().enumerate().map(|(place, (id, _))| (*id, place)).collect();
        Self {
            sockets,
            sessions,
            connections: connections.into_iter().map(|(_, asleep)| asleep).collect(),
            before: Before::default(),
            listener: None,
            local: Vec::new(),
            files: Vec::new(),
            gateway: Vec::new(),
            relay: whimbrel_relay::Estate::default(),
            places,
        }
    }

    /// With what is known of those who may connect.
    pub(crate) fn with_access(self, before: Before) -> Self {
        Self { before, ..self }
    }

    /// With the place where local programs connect.
    pub(crate) fn with_listener(self, listener: LocalListener) -> Self {
        Self { listener: Some(listener), ..self }
    }

    /// With files that were halted on connections that were put to sleep.
    pub(crate) fn with_files(mut self, halted: Vec<Underway>) -> Self {
        let incoming = halted.into_iter().filter_map(|Underway { read, so_far, .. }| {
            let place = *self.places.get(&read.stream().connection().id())?;
            Some(Incoming { stream: (place, read.stream().id()), so_far, unused: read.unused().to_vec() })
        });
        self.files = incoming.collect();
        self
    }

    /// With sessions that were halted on connections that were put to sleep.
    pub(crate) fn with_sessions(mut self, halted: Vec<HaltedSession>) -> Self {
        let sessions = halted.into_iter().map(|halted| {
            let at = |stream: &Stream| Some((*self.places.get(&stream.connection().id())?, stream.id()));
            let streams = halted.streams().filter_map(at).collect();
            GatewaySession { piece: halted.into_piece(), streams }
        });
        self.gateway = sessions.collect();
        self
    }

    /// Another instance has all this: it is let go of, and nothing of it ends.
    pub(crate) fn leave(mut self) {
        if let Some(listener) = self.listener.take() {
            listener.leave();
        }
    }

    /// Whether another process may have it.
    ///
    /// # Errors
    /// When there is more of anything than may be handed over.
    fn check(&self) -> Result<()> {
        Ok(self.relay.check()?)
    }

    async fn send(&self, wire: &mut Wire) -> io::Result<()> {
        let fixed = self.sockets.as_ref().is_some_and(OpenSockets::is_fixed);
        let secret = self.before.secret.map(|secret| *secret.as_bytes());
        let (followed, ends) = ends::written(&self.before.followed);
        wire.say(&Item::Begin { fixed, secret, followed, ends: Some(ends) }).await?;
        if let Some(sockets) = &self.sockets {
            for socket in sockets.tcp() {
                wire.send(&Item::Tcp, &[], &[socket]).await?;
            }
            for socket in sockets.udp() {
                wire.send(&Item::Udp, &[], &[socket]).await?;
            }
        }
        if let Some(listener) = &self.listener {
            let unix = match listener.place()? {
                Place::Tcp(_) => None,
                Place::Unix(path) => Some(path),
            };
            wire.send(&Item::Listener { unix }, &[], &[listener.as_fd()]).await?;
        }
        for connection in &self.connections {
            wire.send(&Item::Connection, connection.as_bytes(), &[]).await?;
        }
        wire.send(&Item::Sessions, self.sessions.as_bytes(), &[]).await?;
        for local in &self.local {
            let way = |of: &Direction| Way { waiting: of.waiting().len(), ended: of.has_ended() };
            let (out, back) = (way(&local.out), way(&local.back));
            let item = Item::Local { unix: local.socket.is_unix(), stream: local.stream, out, back };
            let waiting = [local.out.waiting(), local.back.waiting()].concat();
            wire.send(&item, &waiting, &[local.socket.as_fd()]).await?;
        }
        for file in &self.files {
            let item = Item::File { stream: file.stream, so_far: file.so_far.clone() };
            wire.send(&item, &file.unused, &[]).await?;
        }
        for GatewaySession { piece, streams } in &self.gateway {
            let item = Item::Session { head: Box::new(piece.head.clone()), streams: streams.clone() };
            wire.send(&item, &piece.body, &[piece.socket.as_fd()]).await?;
        }
        for Piece { head, body, sockets } in self.relay.pieces() {
            let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            wire.send(&Item::Relay(head.clone()), body, &sockets).await?;
        }
        wire.say(&Item::End).await
    }

    /// Receives what the running instance sends.
    ///
    /// # Errors
    /// When that ends, or sends something else than it should.
    pub(crate) async fn receive(wire: &mut Wire) -> Result<Self> {
        let (Item::Begin { fixed, secret, followed, ends }, _) = wire.receive().await? else {
            bail!(unexpected())
        };
        let followed = ends::read(followed, ends, SystemTime::now().into())?;
        let (mut tcp, mut udp) = (Vec::new(), Vec::new());
        let mut estate = Self {
            sockets: None,
            sessions: TlsSessions::from_bytes([]),
            connections: Vec::new(),
            before: Before { secret: secret.map(|secret| TicketSecret::from_bytes(&secret)), followed },
            listener: None,
            local: Vec::new(),
            files: Vec::new(),
            gateway: Vec::new(),
            relay: whimbrel_relay::Estate::default(),
            places: HashMap::new(),
        };
        loop {
            match wire.receive().await? {
                (Item::Tcp, _) => tcp.push(wire.descriptor()?.into()),
                (Item::Udp, _) => udp.push(wire.descriptor()?.into()),
                (Item::Listener { unix }, _) => {
                    let place = unix.map_or(Place::Tcp(([0, 0, 0, 0], 0).into()), Place::Unix);
                    estate.listener = Some(LocalListener::handed_over(wire.descriptor()?, place)?);
                }
                (Item::Connection, body) => estate.connections.push(Suspended::from_bytes(body)),
                (Item::Sessions, body) => estate.sessions = TlsSessions::from_bytes(body),
                (Item::Local { unix, stream, out, back }, mut waiting) => {
                    let fits = out.waiting <= MOST && back.waiting <= MOST;
                    if !fits || waiting.len() != out.waiting + back.waiting {
                        bail!(unexpected());
                    }
                    let socket = LocalSocket::handed_over(wire.descriptor()?, unix)?;
                    let behind = waiting.split_off(out.waiting);
                    let out = Direction::going_on(waiting, out.ended);
                    let back = Direction::going_on(behind, back.ended);
                    estate.local.push(Local { socket, stream, out, back });
                }
                (Item::File { stream, so_far }, unused) if unused.len() <= source::MOST => {
                    estate.files.push(Incoming { stream, so_far, unused });
                }
                (Item::Session { head, streams }, body) if body.len() <= MAX_SESSION => {
                    let socket = std::net::TcpStream::from(wire.descriptor()?);
                    socket.set_nonblocking(true)?;
                    let piece = SessionPiece { head: *head, body, socket };
                    estate.gateway.push(GatewaySession { piece, streams });
                }
                (Item::Relay(head), body) => {
                    let sockets =
                        (0..head.sockets()).map(|_| wire.descriptor()).collect::<io::Result<_>>()?;
                    estate.relay.add(Piece { head, body, sockets })?;
                }
                (Item::End, _) => break,
                (
                    Item::Begin { .. } | Item::File { .. } | Item::Session { .. } | Item::Ready | Item::Go,
                    _,
                ) => bail!(unexpected()),
            }
        }
        if !udp.is_empty() {
            estate.sockets = Some(OpenSockets::inherited(tcp, udp, fixed)?);
        }
        Ok(estate)
    }
}

/// Decodes whatever comes as an item of what is handed over; what is understood can be said again.
#[cfg(feature = "fuzzing")]
pub(crate) fn decode_anything(bytes: &[u8]) {
    if let Ok(item) = serde_json::from_slice::<Item>(bytes) {
        let said = serde_json::to_vec(&item).unwrap_or_default();
        assert_eq!(serde_json::from_slice::<Item>(&said).ok(), Some(item));
    }
}

fn unexpected() -> &'static str {
    "the running instance hands over something else than it should; restart it instead"
}

impl Woken {
    /// Joins local sockets and streams that were joined before. `connections` are those that were handed
    /// over, awake.
    pub(crate) fn of(connections: &[Connection], estate: Estate) -> Self {
        let mut streams: HashMap<(usize, u64), Stream> = HashMap::new();
        for (place, connection) in connections.iter().enumerate() {
            streams.extend(connection.streams().into_iter().map(|stream| ((place, stream.id()), stream)));
        }
        let mut woken = Self::default();
        for Local { socket, stream, out, back } in estate.local {
            match stream.map(|at| streams.remove(&at)) {
                None => woken.sockets.push(socket),
                Some(Some(stream)) => woken.tunnels.push(Tunnel::going_on(socket, stream, out, back)),
                // The peer has broken it: its program is to see that.
                Some(None) => crate::tunnel::refuse(&socket),
            }
        }
        for Incoming { stream, so_far, unused } in estate.files {
            if let Some(stream) = streams.remove(&stream) {
                let (read, write) = stream.into_split();
                woken.files.push(Underway { read: Source::going_on(read, unused), write, so_far });
            }
        }
        for GatewaySession { piece, streams: at } in estate.gateway {
            let found = at.iter().map_while(|at| streams.remove(at)).collect();
            woken.gateway.push((piece, found));
        }
        woken.streams = streams.into_values().collect();
        woken
    }
}
