//! One conversation: what is typed goes out, what arrives and what happens is shown.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context as _, Result};
use whimbrel_transport::{
    Class, CloseCode, Connection, ConnectionEvent, Events, Flow, FlowOptions, Outcome, SendError,
    SendOptions, Sent,
};

use super::message::Message;
use super::{MAX_LINE, News, Partner, Show, Typed, parting_words};
use crate::failure::Failure;
use crate::moving::{Asked, Outcome as Move, Sessions, State, Talk};
use crate::plain::plain;

/// How long the end may take: what was typed is delivered first.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// Characters of what the other side is called, where another device tells it.
const MAX_NAME: usize = 200;
/// Lines that are shown of those that were typed too late.
const UNSENT: usize = 64;

/// How a conversation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The user here has ended it.
    Here,
    /// The other side has gone.
    There,
    /// It goes on at another device.
    Elsewhere,
}

/// A conversation on a connection.
pub(crate) struct Conversation {
    connection: Connection,
    flow: Flow,
    events: Events,
    partner: Partner,
    /// Lines that the other side does not have yet.
    under_way: VecDeque<(u64, Sent)>,
    number: u64,
    /// It was shown that the other side is there.
    greeted: bool,
}

impl Conversation {
    /// Says hello.
    ///
    /// # Errors
    /// When the other side takes no messages, or is gone.
    pub(crate) async fn begin(
        connection: Connection,
        known_as: Option<String>,
        nick: Option<String>,
    ) -> Result<Self> {
        let events = connection.events();
        let flow = connection.open_flow(FlowOptions::new(Class::RELIABLE_SEQUENCED)).await;
        // The other side may have said why it does not.
        let flow = flow.with_context(|| match connection.close_reason() {
            Some(reason) => format!("cannot chat with the other side ({})", plain(&reason.to_string(), 200)),
            None => "cannot chat with the other side".to_owned(),
        })?;
        let partner = Partner::new(connection.peer_id(), known_as);
        let mut this =
            Self { connection, flow, events, partner, under_way: VecDeque::new(), number: 0, greeted: false };
        this.send(&Message::Hello { name: nick })?;
        Ok(this)
    }

    /// Goes on with one that was at another device.
    ///
    /// # Errors
    /// When the connection came without what was begun on it.
    pub(crate) fn going_on(connection: Connection, talk: Talk) -> Result<Self> {
        let events = connection.events();
        let flow = connection.flows().into_iter().next();
        let flow = flow.context("the connection came without its conversation")?;
        let known_as = talk.known_as.map(|name| plain(&name, MAX_NAME));
        let mut partner = Partner::new(connection.peer_id(), known_as);
        partner.call(talk.nick);
        // Another device says the number, and lines are counted on from it.
        let (under_way, number) = (VecDeque::new(), talk.number.min(u64::MAX / 2));
        let greeted = talk.greeted;
        Ok(Self { connection, flow, events, partner, under_way, number, greeted })
    }

    /// Goes on until one side ends it, or it has gone to another device by `sessions`. Dropped, it leaves the
    /// connection as it is.
    ///
    /// # Errors
    /// When something cannot be shown, or lines were lost at the end.
    pub(crate) async fn run(mut self, show: &mut impl Show, sessions: &Sessions) -> Result<End> {
        let mut session = sessions.begin(&self.connection, &self.partner.name());
        if self.greeted {
            show.show(&News::Here(self.partner.clone()))?;
        }
        loop {
            tokio::select! {
                typed = show.typed() => match typed {
                    Typed::Line(text) if text.is_empty() => {}
                    Typed::Line(text) => self.say(text, show)?,
                    Typed::TooLong => show.show(&News::Note(format!(
                        "a line has at most {MAX_LINE} bytes; this one was not sent"
                    )))?,
                    Typed::End => return self.end(show).await.map(|()| End::Here),
                },
                (number, outcome) = next_end(&mut self.under_way) => {
                    if outcome == Outcome::Delivered && number > 0 {
                        show.show(&News::Delivered(number))?;
                    }
                }
                message = self.connection.recv_message() => match message {
                    Ok(message) => self.hear(&message.data, show)?,
                    Err(_) => return self.left(show),
                },
                asked = session.asked() => {
                    if self.give(asked, show).await? {
                        return Ok(End::Elsewhere);
                    }
                }
                // Behind their end, what has arrived is still heard.
                Some(event) = self.events.next() => match event {
                    ConnectionEvent::Unreachable { lasts } => show.show(&News::Away(lasts))?,
                    ConnectionEvent::Reachable { after } => show.show(&News::Back(after))?,
                    _ => {}
                },
            }
        }
    }

    /// Hands the conversation over to the device that has come for it. False if it stays here.
    async fn give(&self, asked: Asked, show: &mut impl Show) -> Result<bool> {
        let Partner { known_as, nick, .. } = self.partner.clone();
        let talk = Talk { known_as, nick, number: self.number, greeted: self.greeted };
        match asked.give(&self.connection, State::Chat(talk)).await {
            Move::Moved(to) => {
                tell_unsent(show).await?;
                show.show(&News::Note(format!("went on at {to}")))?;
                Ok(true)
            }
            // Nothing of it could be shown twice.
            Move::Stays(why) | Move::Lost(why) => {
                show.show(&News::Note(format!("this stays here: {why}")))?;
                Ok(false)
            }
        }
    }

    fn send(&mut self, message: &Message) -> Result<bool> {
        let sent = self.flow.try_send(serde_json::to_vec(message)?, SendOptions::default());
        match sent {
            Ok(sent) => {
                self.under_way.push_back((self.number, sent));
                Ok(true)
            }
            // The end is heard of elsewhere.
            Err(refused) if matches!(refused.error, SendError::ConnectionClosed(_)) => Ok(false),
            Err(refused) if refused.error == SendError::Full => Ok(false),
            Err(refused) => Err(refused.error.into()),
        }
    }

    fn say(&mut self, text: String, show: &mut impl Show) -> Result<()> {
        self.number += 1;
        if self.send(&Message::Line { text: text.clone() })? {
            return show.show(&News::Sent(self.number, text));
        }
        self.number -= 1;
        show.show(&News::Note("too much waits to be sent; this line was not".to_owned()))
    }

    fn hear(&mut self, data: &[u8], show: &mut impl Show) -> Result<()> {
        match Message::decode(data) {
            Some(Message::Hello { name }) if !self.greeted => {
                self.partner.call(name);
                self.greet(show)
            }
            Some(Message::Line { text }) => {
                self.greet(show)?;
                show.show(&News::Said(plain(&text, MAX_LINE)))
            }
            Some(Message::Hello { .. } | Message::Other) => Ok(()),
            None => {
                tracing::info!("the other side says what no chat says");
                Ok(())
            }
        }
    }

    fn greet(&mut self, show: &mut impl Show) -> Result<()> {
        if std::mem::replace(&mut self.greeted, true) {
            return Ok(());
        }
        show.show(&News::Here(self.partner.clone()))
    }

    fn left(&self, show: &mut impl Show) -> Result<End> {
        show.show(&News::Left(parting_words(&self.connection)))?;
        Ok(End::There)
    }

    /// Delivers what was typed, and ends.
    async fn end(mut self, show: &mut impl Show) -> Result<()> {
        let closing = self.connection.close(CloseCode::NONE, "", CLOSE_LIMIT);
        // What was not delivered is counted, whyever.
        let _ = closing.await;
        let mut lost = 0;
        for (number, sent) in self.under_way.drain(..) {
            let outcome = tokio::time::timeout(Duration::ZERO, sent).await;
            match outcome {
                Ok(Outcome::Delivered) if number > 0 => show.show(&News::Delivered(number))?,
                Ok(Outcome::Delivered) => {}
                _ => lost += u64::from(number > 0),
            }
        }
        match lost {
            0 => Ok(()),
            1 => Err(Failure::new(Failure::UNREACHABLE, "the last line was not delivered").into()),
            _ => Err(Failure::new(Failure::UNREACHABLE, format!("the last {lost} lines were not delivered"))
                .into()),
        }
    }
}

/// Shows what was typed while the conversation went to another device.
async fn tell_unsent(show: &mut impl Show) -> Result<()> {
    for _ in 0..UNSENT {
        match tokio::time::timeout(Duration::ZERO, show.typed()).await {
            Ok(Typed::Line(text)) if !text.is_empty() => {
                show.show(&News::Note(format!("this came too late, and was not sent: {text}")))?;
            }
            Ok(Typed::Line(_)) => {}
            Ok(Typed::TooLong | Typed::End) | Err(_) => break,
        }
    }
    Ok(())
}

/// What becomes of the first line that has no end yet. Cancel-safe.
async fn next_end(under_way: &mut VecDeque<(u64, Sent)>) -> (u64, Outcome) {
    match under_way.front_mut() {
        Some((number, sent)) => {
            let ended = (*number, sent.await);
            under_way.pop_front();
            ended
        }
        None => std::future::pending().await,
    }
}
