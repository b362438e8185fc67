//! The side that has a session: it waits for the device that may have it, and hands the connection over.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;
use whimbrel_base::EndpointId;
use whimbrel_proxy::WebObject;
use whimbrel_relay::Keeper;
use whimbrel_transport::{CloseCode, CloseReason, Connection, HandOverError, Listener, PathState, Stream};

use super::bytes::{self, Read};
use super::wire::{self, Answer, Ask, Elsewhere, HELLO, MAX_ASK, Offer, State};
use super::{GONE, LIMIT, WORD_LIMIT};

/// Between two looks at whose a connection is.
const LOOK: Duration = Duration::from_millis(20);
/// The other device hears that nothing comes.
const NOT_GIVEN: CloseCode = CloseCode::application(4);
const STAYS: &str = "the session stays where it is";

/// A device that has come for a session.
#[derive(Debug)]
pub(crate) struct Asked {
    over: Connection,
    stream: Stream,
    called: String,
    /// The relays through which it may have come, until it has what it came for.
    keeper: Option<Keeper>,
}

/// What became of a session that was asked for.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It goes on at the device that is called so.
    Moved(String),
    /// It stays here, and why.
    Stays(String),
    /// The connection is over, and nobody can say whether the other device had it: what waits is not to be
    /// written.
    Lost(String),
}

/// Waits for the device that the listener lets in, until it has asked for the session with this id. Then the
/// word was used, whatever becomes of it.
pub(super) async fn wait(
    (mut listener, keeper): (Listener, Option<Keeper>),
    (id, called): (String, String),
    tell: mpsc::Sender<Asked>,
) {
    while let Some(over) = listener.accept().await {
        let Some(question) = Question::hear(over).await else { continue };
        if question.session().is_some_and(|wanted| !wanted.is_empty() && id.starts_with(wanted)) {
            let Question { over, stream, .. } = question;
            // If the command has ended, the other device hears of that as the end of its connection.
            let _ = tell.send(Asked { over, stream, called, keeper }).await;
            return;
        }
        question.refuse("there is no such session here").await;
    }
}

/// What a device asks that has come.
pub(crate) struct Question {
    over: Connection,
    stream: Stream,
    ask: Ask,
}

impl Question {
    /// Hears it; `None` if nothing is asked in time. Its connection ends then.
    pub(crate) async fn hear(over: Connection) -> Option<Self> {
        let hearing = async {
            let mut stream = over.accept_stream().await.map_err(std::io::Error::other)?;
            let mut hello = [0; HELLO.len()];
            stream.read_exact(&mut hello).await?;
            if hello != *HELLO {
                return Err(std::io::Error::other("it does not want a session"));
            }
            let ask = wire::hear(&mut stream, MAX_ASK).await?;
            Ok((stream, ask))
        };
        match tokio::time::timeout(WORD_LIMIT, hearing).await {
            Ok(Ok((stream, ask))) => return Some(Self { over, stream, ask }),
            Ok(Err(error)) => tracing::info!(%error, "a device asks for nothing"),
            Err(_) => tracing::info!("a device asks for nothing"),
        }
        over.abort(NOT_GIVEN, "nothing was asked");
        None
    }

    /// The device.
    pub(crate) fn device(&self) -> EndpointId {
        self.over.peer_id()
    }

    /// How the id of the session begins that it wants; `None` if it asks what there is.
    pub(crate) fn session(&self) -> Option<&str> {
        match &self.ask {
            Ask::Session(wanted) => Some(wanted),
            Ask::List | Ask::Offer(_) => None,
        }
    }

    /// What it offers, if it asks for nothing.
    pub(crate) fn offered(&self) -> Option<&Offer> {
        match &self.ask {
            Ask::Offer(offer) => Some(offer),
            Ask::Session(_) | Ask::List => None,
        }
    }

    /// Says that what was offered is here.
    pub(crate) async fn taken(self) {
        self.answer(&Answer::Taken).await;
    }

    /// Says no.
    pub(crate) async fn refuse(self, why: &str) {
        self.answer(&Answer::Refused(why.to_owned())).await;
    }

    /// Says which of this device's commands waits for it.
    pub(crate) async fn send_to(self, ticket: String) {
        self.answer(&Answer::At(ticket)).await;
    }

    /// Says what there is.
    pub(crate) async fn tell(self, listed: Vec<Elsewhere>) {
        self.answer(&Answer::Listed(listed)).await;
    }

    async fn answer(mut self, answer: &Answer) {
        last_word(&self.over, &mut self.stream, answer).await;
    }
}

/// Says something. The other device ends the connection once it has read that; one that does not is not
/// waited for.
async fn last_word(over: &Connection, stream: &mut Stream, answer: &Answer) {
    let saying = async {
        wire::say(stream, answer).await?;
        stream.finish()?;
        over.closed().await;
        Ok::<(), std::io::Error>(())
    };
    if !matches!(tokio::time::timeout(WORD_LIMIT, saying).await, Ok(Ok(()))) {
        tracing::debug!("the other device does not hear the answer");
    }
    over.abort(NOT_GIVEN, STAYS);
}

impl Asked {
    /// Keeps the session. Does not wait for the other device to hear it.
    pub(crate) fn refuse(mut self, why: &str) {
        let answer = Answer::Refused(why.to_owned());
        tokio::spawn(FutureExt::boxed(async move {
            last_word(&self.over, &mut self.stream, &answer).await;
            drop(self.keeper);
        }));
    }

    /// Hands the connection over, with what else is to be known of it. Nothing of it may be read, written or
    /// shown from the moment on at which `state` was so, until this returns.
    pub(crate) async fn give(mut self, connection: &Connection, state: State) -> Outcome {
        let said = tokio::time::timeout(WORD_LIMIT, wire::say(&mut self.stream, &Answer::Given(state))).await;
        if !matches!(said, Ok(Ok(()))) {
            return Outcome::Stays(GONE.to_owned());
        }
        self.hand_over(connection).await
    }

    /// The same for a connection on which a file is on its way: so many bytes that are here go first, as
    /// `read` brings them, and the peer waits meanwhile.
    pub(crate) async fn give_file(
        mut self,
        connection: &Connection,
        (state, length): (State, u64),
        read: &mut Read<'_>,
    ) -> Outcome {
        match bytes::bring(&mut self.stream, (state, length), read).await {
            Ok(()) => self.hand_over(connection).await,
            Err(why) => {
                self.over.abort(NOT_GIVEN, STAYS);
                Outcome::Stays(why)
            }
        }
    }

    /// Tells what is needed to ask a server for the rest of an object, and waits until the other device has
    /// that. Nothing of it may be given to the program here meanwhile.
    pub(crate) async fn give_object(mut self, object: WebObject) -> Outcome {
        match bytes::bring(&mut self.stream, (State::Web(object), 0), &mut |_| Ok(0)).await {
            Ok(()) => Outcome::Moved(self.called),
            Err(why) => {
                self.over.abort(NOT_GIVEN, STAYS);
                Outcome::Stays(why)
            }
        }
    }

    async fn hand_over(self, connection: &Connection) -> Outcome {
        let Err(error) = connection.hand_over(&self.over, LIMIT).await else {
            return Outcome::Moved(self.called);
        };
        self.over.abort(NOT_GIVEN, STAYS);
        // The other device may have it all the same, and not have been heard: what waits here must not be
        // written before the peer has said who goes on.
        match settled(connection).await {
            Some(reason) if [CloseCode::SUPERSEDED, CloseCode::HANDED_OVER].contains(&reason.code) => {
                Outcome::Moved(self.called)
            }
            Some(_) if matches!(error, HandOverError::Broken(_) | HandOverError::TimedOut) => {
                Outcome::Lost(error.to_string())
            }
            _ => Outcome::Stays(error.to_string()),
        }
    }
}

/// Waits until the peer goes on with this side, or the connection is over. It is over at the latest when it
/// was out of reach for as long as it may be.
async fn settled(connection: &Connection) -> Option<CloseReason> {
    loop {
        if let Some(reason) = connection.close_reason() {
            return Some(reason);
        }
        if connection.stats().paths.iter().any(|path| path.state == PathState::Active) {
            return None;
        }
        tokio::time::sleep(LOOK).await;
    }
}
