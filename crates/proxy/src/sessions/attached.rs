//! A session that this device has, for a program to be hooked up to.

use super::SessionId;
use super::anew::{Anew, NoBeginning};
use super::asking::control;
use super::beginning::Begun;
use super::carrying::{Carrying, Outcome};
use super::entry::Entry;
use super::frame::Frame;
use super::http::{NoRest, Rest};
use super::line::{LAST, Line};
use super::message::Granted;
use super::program::has_arrived;
use super::window::Window;
use crate::{Destination, Streams};
use futures_util::FutureExt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use whimbrel_transport::Stream;

/// Sessions that are shorter have no second stream.
const SHORT: Duration = Duration::from_millis(300);
/// For a program to take the head of an answer.
const LIMIT: Duration = Duration::from_secs(30);

/// A session that this device has. If it is dropped before it is carried, one that was opened ends, and one
/// that was taken goes back.
pub struct Attached {
    granted: Granted,
    /// Until it is carried.
    stream: Option<Stream>,
    streams: Arc<dyn Streams>,
    warning: Option<String>,
    /// Where a player can go on, if it asked for that.
    entry: Option<Entry>,
    /// What came before the gateway knew where the session goes on.
    ahead: Window,
}

impl Attached {
    pub(super) fn new(granted: Granted, stream: Stream, streams: Arc<dyn Streams>) -> Self {
        Self { granted, stream: Some(stream), streams, warning: None, entry: None, ahead: Window::default() }
    }

    pub(super) fn with_entry(mut self, entry: Option<Entry>) -> Self {
        self.entry = entry;
        self
    }

    pub(super) fn with_ahead(mut self, ahead: Window) -> Self {
        self.ahead = ahead;
        self
    }

    pub(super) fn with_warning(mut self, warning: String) -> Self {
        self.warning = Some(warning);
        self
    }

    /// What the gateway has to say, for people, to the device that took it: that bytes of the program before
    /// may be missing, which the server cannot notice.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// What it is called.
    pub fn id(&self) -> SessionId {
        self.granted.id
    }

    /// Where it leads.
    pub fn to(&self) -> &Destination {
        &self.granted.to
    }

    /// The offset of the first byte that comes, among all that the server sends.
    pub fn offset(&self) -> u64 {
        self.granted.offset
    }

    /// The head of HTTP that the server's words began with, if they did.
    pub fn head(&self) -> &[u8] {
        if Begun::is_in(&self.granted.head) { &[] } else { &self.granted.head }
    }

    /// Carries bytes between the session and a program until either is over, or the session moves. These were
    /// read of the program before. Where the session breaks or moves, the program's connection is reset: half
    /// a file must not look like a whole one.
    ///
    /// # Errors
    /// When the program, the server or the gateway breaks it.
    pub async fn carry(self, program: TcpStream, early: Vec<u8>) -> io::Result<Outcome> {
        self.carry_from(program, &early, 0).await
    }

    /// The same for a program that has asked for something by HTTP: it gets the rest of what was asked for by
    /// another one, behind a head of its own.
    ///
    /// # Errors
    /// As [`Attached::carry`].
    pub async fn carry_rest(self, mut program: TcpStream, rest: Rest) -> io::Result<Outcome> {
        // All of it, before what counts: it may be more than the program's kernel has room for.
        let giving = async {
            program.write_all(&rest.head).await?;
            has_arrived(&program).await
        };
        let given = tokio::time::timeout(LIMIT, giving).await;
        given.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the program does not read"))??;
        self.carry_from(program, &[], rest.skip).await
    }

    /// The rest of an answer of HTTP, for a program that has said this.
    ///
    /// # Errors
    /// When what is under way is no answer of HTTP of which a rest can be given.
    pub fn rest(&self, request: &[u8]) -> Result<Rest, NoRest> {
        Rest::new(self.head(), self.granted.offset, request)
    }

    /// The same of a film that was taken by [`take_by_time`](super::SessionsAt::take_by_time): what a player
    /// must read first, and the rest from a place on from which it can go on. That is the last one before the
    /// program before, or the next one.
    ///
    /// # Errors
    /// When it is no film that can be entered in the middle, or where is not known.
    pub fn rest_by_time(&self, request: &[u8]) -> Result<Rest, NoRest> {
        Rest::by_time(self.head(), self.granted.offset, self.entry.as_ref(), request)
    }

    /// What a program hears that begins a protocol of lines anew. So many first lines are its own beginning,
    /// which the server does not hear again; those of IRC are known. What is returned by [`Anew::begin`] is
    /// carried as what was read of the program before.
    ///
    /// # Errors
    /// When it is not known how the session began.
    pub fn anew(&self, own_lines: u16) -> Result<Anew, NoBeginning> {
        Anew::new(&self.granted.head, self.granted.offset, own_lines)
    }

    async fn carry_from(mut self, program: TcpStream, early: &[u8], skip: u64) -> io::Result<Outcome> {
        let stream = self.stream.take().ok_or(io::ErrorKind::NotConnected)?;
        let (streams, id, moves) = (self.streams.clone(), self.granted.id, self.granted.moves);
        let (sender, second) = oneshot::channel();
        let asking = tokio::spawn(FutureExt::boxed(async move {
            tokio::time::sleep(SHORT).await;
            match control(&streams, id, moves).await {
                // It may be over.
                Ok(stream) => drop(sender.send(stream)),
                Err(error) => tracing::debug!(%error, "a session goes on without a second stream"),
            }
        }));
        let ahead = std::mem::take(&mut self.ahead);
        let carrying = Carrying::new(&self.granted, stream, program, skip).with_ahead(ahead);
        let result = carrying.run(early, second).await;
        asking.abort();
        result
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            leave(stream);
        }
    }
}

/// Tells a gateway that a session has no program, on the stream on which it was asked for. It would hold one
/// whose stream just ends.
pub(super) fn leave(stream: Stream) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let mut line = Line::new(stream, &[]);
    line.say_first(&Frame::Broken);
    // A gateway that does not listen is left.
    let leaving = async move { drop(tokio::time::timeout(LAST, line.abandon()).await) };
    runtime.spawn(FutureExt::boxed(leaving));
}
