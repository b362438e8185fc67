//! The program that a session is taken for: the first of this user's that connects, and asks as it should.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde::Deserialize;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use whimbrel_proxy::{read_request, user_of};

use super::program::Place;

/// Connections that have not said yet what they want.
const MOST: usize = 16;
/// For an answer to be taken.
const LAST: Duration = Duration::from_secs(2);
/// To a connection that does not know the path, or comes of a web page.
const NOT_FOUND: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// How a program begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum How {
    /// It takes the bytes as they are.
    Raw,
    /// It asks by HTTP, and gets the rest.
    Http,
    /// The same, for a film: it gets what a player must read first, and the rest from a place where it can.
    HttpTime,
    /// It begins a protocol of lines anew, such as IRC, and is answered as the first one was.
    Line,
}

/// A program's connection, and how it begins.
pub(crate) type Asking = (TcpStream, Begins);

/// How a program begins, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Begins {
    Raw,
    /// It asks for this.
    Http(Vec<u8>),
    /// It asks for this, and is a player.
    HttpTime(Vec<u8>),
    /// So many lines of it are its own beginning, if it does not speak IRC.
    Line(u16),
}

/// Where a program is waited for.
pub(crate) struct Waiting {
    listener: TcpListener,
    how: How,
    own_lines: u16,
    /// Only the program that is started, and the user, know it.
    path: String,
}

impl Waiting {
    /// Listens at this address of this host, for a program that begins so; of lines, with so many of its own.
    pub(crate) async fn new(at: SocketAddr, (how, own_lines): (How, u16)) -> Result<Self> {
        let listener = TcpListener::bind(at).await.with_context(|| format!("cannot listen on {at}"))?;
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).context("there is no randomness")?;
        let path = format!("/{:032x}/", u128::from_be_bytes(secret));
        Ok(Self { listener, how, own_lines, path })
    }

    /// Where a program finds it.
    pub(crate) fn place(&self) -> Result<Place> {
        let at = self.listener.local_addr().context("cannot tell where it listens")?;
        let url = match self.how {
            How::Raw | How::Line => format!("tcp://{at}"),
            How::Http | How::HttpTime => format!("http://{at}{}", self.path),
        };
        Ok(Place { at, url })
    }

    /// The program. Whatever else connects is closed, and nothing that it does keeps others waiting.
    pub(crate) async fn program(self) -> Result<Asking> {
        let mut asking = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if asking.len() < MOST => {
                    let (socket, _) = accepted.context("cannot accept a program's connection")?;
                    if !is_own(&socket) {
                        tracing::info!("a program of another user was closed");
                        continue;
                    }
                    let path = self.path.clone();
                    match self.how {
                        How::Raw => return Ok((socket, Begins::Raw)),
                        How::Line => return Ok((socket, Begins::Line(self.own_lines))),
                        How::Http => drop(asking.spawn(asked(socket, path, Begins::Http))),
                        How::HttpTime => drop(asking.spawn(asked(socket, path, Begins::HttpTime))),
                    }
                }
                Some(asked) = asking.join_next() => match asked {
                    Ok(Ok(found)) => return Ok(found),
                    Ok(Err(error)) => tracing::debug!(%error, "a connection asks for nothing"),
                    Err(error) => tracing::debug!(%error, "a connection asks for nothing"),
                },
            }
        }
    }
}

/// Whether the program at the other end is this user's, as far as that is known.
fn is_own(socket: &TcpStream) -> bool {
    user_of(socket).is_none_or(|user| user == rustix::process::getuid().as_raw())
}

async fn asked(mut socket: TcpStream, path: String, begins: fn(Vec<u8>) -> Begins) -> io::Result<Asking> {
    let request = read_request(&mut socket).await?;
    if is_for(&request, &path) {
        return Ok((socket, begins(request)));
    }
    let answering = async {
        socket.write_all(NOT_FOUND).await?;
        socket.shutdown().await
    };
    // It may not listen.
    let _ = tokio::time::timeout(LAST, answering).await;
    Err(io::Error::other("it does not know the path, or a web page asks"))
}

/// Whether a request is for this path, and not a web page's: those say so.
fn is_for(request: &[u8], path: &str) -> bool {
    let text = String::from_utf8_lossy(request);
    let mut lines = text.split("\r\n");
    let target = lines.next().and_then(|first| first.split(' ').nth(1)).unwrap_or_default();
    let of_page = lines.filter_map(|line| line.split_once(':')).any(|(name, value)| {
        let is_none = value.trim().eq_ignore_ascii_case("none");
        name.eq_ignore_ascii_case("origin") || name.eq_ignore_ascii_case("sec-fetch-site") && !is_none
    });
    target.starts_with(path) && !of_page
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::io::AsyncReadExt as _;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_web_page_and_who_does_not_know_the_path_are_refused() {
        let is = |target: &str, fields: &str| {
            is_for(format!("GET {target} HTTP/1.1\r\nHost: x\r\n{fields}\r\n").as_bytes(), "/5f/")
        };
        assert!(is("/5f/", "") && is("/5f/film", "Sec-Fetch-Site: none\r\n"));
        assert!(!is("/", "") && !is("/5", "") && !is("/x/5f/", ""));
        assert!(
            !is("/5f/", "origin: http://evil.example\r\n") && !is("/5f/", "Sec-Fetch-Site: cross-site\r\n")
        );
    }

    #[tokio::test]
    async fn connections_that_ask_for_nothing_are_closed_and_the_program_is_waited_for() {
        let waiting = Waiting::new("127.0.0.1:0".parse().unwrap(), (How::Http, 0)).await.unwrap();
        let (Place { at, url }, path) = (waiting.place().unwrap(), waiting.path.clone());
        assert_eq!(url, format!("http://{at}{path}"));
        let program = tokio::spawn(waiting.program());
        // One that only looks whether there is something, one that says nothing, and a guess.
        drop(TcpStream::connect(at).await.unwrap());
        let _silent = TcpStream::connect(at).await.unwrap();
        let mut guess = TcpStream::connect(at).await.unwrap();
        guess.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut said = Vec::new();
        tokio::time::timeout(LIMIT, guess.read_to_end(&mut said)).await.unwrap().unwrap();
        assert_eq!(said, NOT_FOUND);
        let mut own = TcpStream::connect(at).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        own.write_all(request.as_bytes()).await.unwrap();
        let found = tokio::time::timeout(LIMIT, program).await.unwrap().unwrap().unwrap();
        assert_eq!(found.1, Begins::Http(request.into_bytes()));
        assert_eq!(found.0.peer_addr().unwrap(), own.local_addr().unwrap());
    }

    #[tokio::test]
    async fn a_player_asks_by_http_as_others_do() {
        let waiting = Waiting::new("127.0.0.1:0".parse().unwrap(), (How::HttpTime, 0)).await.unwrap();
        let (Place { at, url }, path) = (waiting.place().unwrap(), waiting.path.clone());
        assert_eq!(url, format!("http://{at}{path}"));
        let program = tokio::spawn(waiting.program());
        let mut player = TcpStream::connect(at).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        player.write_all(request.as_bytes()).await.unwrap();
        let found = tokio::time::timeout(LIMIT, program).await.unwrap().unwrap().unwrap();
        assert_eq!(found.1, Begins::HttpTime(request.into_bytes()));
    }

    #[tokio::test]
    async fn the_user_of_a_program_is_known() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _program = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let accepted = listener.accept().await.unwrap().0;
        if cfg!(target_os = "linux") {
            assert_eq!(user_of(&accepted), Some(rustix::process::getuid().as_raw()));
        }
        assert!(is_own(&accepted));
    }
}
