//! A forward goes on at another device: its connection with all the streams of programs here.

use std::io::{self, ErrorKind};
use std::time::Duration;

use tokio::time::Instant;
use whimbrel_proxy::UnderWay;
use whimbrel_transport::Connection;

use crate::lasting::Lasting;
use crate::local::LocalSocket;
use crate::moving::{Asked, Halves, MAX_STREAMS, Outcome, Session, Sessions, State, Way};
use crate::tunnel::direction::{Direction, MOST};
use crate::tunnel::{self, Halted, Tunnel};

/// For programs here to read what was written to them.
const TAKEN_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks at how far they are, and for a connection where there is none.
const LOOK: Duration = Duration::from_millis(10);
const AGAIN: Duration = Duration::from_secs(1);

/// What of a forward could move: its connection, as long as there is one.
pub(super) struct Moving<'a> {
    lasting: &'a Lasting,
    sessions: &'a Sessions,
    peer: String,
    session: Option<(Connection, Session)>,
}

impl<'a> Moving<'a> {
    pub(super) fn new(lasting: &'a Lasting, sessions: &'a Sessions, peer: String) -> Self {
        Self { lasting, sessions, peer, session: None }
    }

    /// A device that comes for the connection. Follows that where it was made anew. Cancel-safe.
    pub(super) async fn asked(&mut self) -> Asked {
        loop {
            if self.session.as_ref().is_none_or(|(connection, _)| connection.close_reason().is_some()) {
                self.session = None;
                if let Some(connection) = self.lasting.living().await.into_iter().next() {
                    let session = self.sessions.begin(&connection, &self.peer);
                    self.session = Some((connection, session));
                }
            }
            match &mut self.session {
                Some((connection, session)) => tokio::select! {
                    asked = session.asked() => return asked,
                    _ = connection.closed() => {}
                },
                None => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// Hands the connection over with all that was halted. Returns what the other device is called.
    ///
    /// # Errors
    /// Why it stays here, and all that has to go on then.
    pub(super) async fn give(
        &self,
        asked: Asked,
        mut halted: Vec<Halted>,
    ) -> Result<String, (String, Vec<Halted>)> {
        let (connection, all) = match self.all(&mut halted).await {
            Ok(all) => all,
            Err(why) => {
                asked.refuse(&why);
                return Err((why, halted));
            }
        };
        match asked.give(&connection, State::Forward(all)).await {
            Outcome::Moved(to) => {
                break_off(&halted);
                Ok(to)
            }
            Outcome::Stays(why) => Err((why, halted)),
            Outcome::Lost(why) => {
                break_off(&halted);
                Err((why, Vec::new()))
            }
        }
    }

    /// The connection, and how far each of its streams is.
    async fn all(&self, halted: &mut [Halted]) -> Result<(Connection, Vec<Halves>), String> {
        let living = self.lasting.living().await;
        let (Some((connection, _)), 1) = (&self.session, living.len()) else {
            return Err("it has not just one connection now".to_owned());
        };
        let until = Instant::now() + TAKEN_LIMIT;
        let mut all = Vec::new();
        for one in halted {
            if let Halted::Tunnel(tunnel) = one {
                all.push(halves(&self.peer, tunnel, until).await?);
            }
        }
        if all.is_empty() {
            // It would end for nothing: a new one there does the same.
            return Err("no program is connected to it just now; start `whimbrel forward` there".to_owned());
        }
        if all.len() > MAX_STREAMS {
            return Err(format!("it has more than {MAX_STREAMS} streams"));
        }
        Ok((connection.clone(), all))
    }
}

/// Has programs learn that more comes, and not here.
fn break_off(halted: &[Halted]) {
    for one in halted {
        if let Halted::Tunnel(Tunnel { socket, .. }) | Halted::Socket(socket) = one {
            tunnel::refuse(socket);
        }
    }
}

/// How far a stream is. Nothing is written to its program, which has read all that was.
async fn halves(peer: &str, tunnel: &mut Tunnel, until: Instant) -> Result<Halves, String> {
    let LocalSocket::Tcp(socket) = &tunnel.socket else {
        return Err("nobody can say what a program at a Unix socket has read".to_owned());
    };
    // What counts for its end is no byte.
    let end = u64::from(tunnel.back.has_ended());
    let under_way = loop {
        let under_way = UnderWay::of(socket).ok_or("nobody can say what its program has read")?;
        if under_way.to_program <= end {
            break under_way;
        }
        if Instant::now() >= until {
            return Err("a program does not read what was written to it".to_owned());
        }
        tokio::time::sleep(LOOK).await;
    };
    if !tunnel.out.has_ended() {
        let mut waiting = tunnel.out.waiting().to_vec();
        let more = usize::try_from(under_way.from_program).unwrap_or(usize::MAX);
        if more > MOST.saturating_sub(waiting.len()) {
            return Err("a program has sent more than goes along".to_owned());
        }
        let read = tokio::time::timeout_at(until, read_out(socket, &mut waiting, more)).await;
        // Also what was read before an error goes on here, or there.
        tunnel.out = Direction::going_on(waiting, false);
        match read {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(format!("a program ends just now: {error}")),
            Err(_) => return Err("a program does not send what it has".to_owned()),
        }
    }
    let way = |of: &Direction| Way { waiting: of.waiting().to_vec(), ended: of.has_ended() };
    Ok(Halves {
        peer: peer.to_owned(),
        stream: tunnel.write.stream().id(),
        out: way(&tunnel.out),
        back: way(&tunnel.back),
    })
}

/// Reads so many bytes that a program has sent. Cancel-safe: what was read is there.
async fn read_out(socket: &tokio::net::TcpStream, into: &mut Vec<u8>, mut more: usize) -> io::Result<()> {
    let mut bytes = [0; 4096];
    while more > 0 {
        socket.readable().await?;
        let most = more.min(bytes.len());
        match socket.try_read(&mut bytes[..most]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                into.extend_from_slice(&bytes[..n]);
                more -= n;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
