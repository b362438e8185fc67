//! How carrying a session ends.

use super::super::frame::Frame;
use super::super::line::{Heard, Line};
use std::io::{self, ErrorKind};

/// How carrying a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Both directions ended.
    Ended,
    /// It goes on at another device.
    Moved,
}

/// Waits for the gateway to say that a session has moved whose program is gone. If it does not move after
/// all, there is none that could go on: the gateway holds it.
pub(super) async fn last_word(mut line: Line) -> io::Result<Outcome> {
    loop {
        match line.next().await {
            Heard::Frame(Frame::Moved) => return Ok(Outcome::Moved),
            Heard::Frame(Frame::Resume) | Heard::Gone => {
                return Err(broken("it was to move and did not, and its program was gone already"));
            }
            Heard::Frame(Frame::Broken) => return Err(broken("the server, or the gateway, broke it")),
            Heard::Frame(_) | Heard::Nothing => {}
        }
    }
}

/// An error that says why a session broke.
pub(super) fn broken(why: &str) -> io::Error {
    io::Error::new(ErrorKind::ConnectionReset, format!("a session broke: {why}"))
}
