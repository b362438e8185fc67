//! The sessions that this device has at a gateway, and may take.

use super::SessionId;
use super::asking::{LIMIT, Said, SessionError, ask, explained, said, within};
use super::attached::{Attached, leave};
use super::entry::Entry;
use super::message::{Asked, GOES_ON, How, Listed, Takers, read_granted, read_list};
use super::words::Hearing;
use crate::{Destination, Status, Streams, UpstreamError};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use whimbrel_base::EndpointId;
use whimbrel_transport::Stream;

/// The sessions that a gateway has for this device. Cheap to clone.
#[derive(Clone)]
pub struct SessionsAt {
    streams: Arc<dyn Streams>,
}

impl SessionsAt {
    /// At the gateway that these streams lead to.
    pub fn new(streams: Arc<dyn Streams>) -> Self {
        Self { streams }
    }

    /// Those that this device has, and those that it may take.
    ///
    /// # Errors
    /// When the gateway is not reached, or older.
    pub async fn list(&self) -> Result<Vec<Listed>, SessionError> {
        within(&self.streams, "for its sessions", async {
            let mut stream = ask(&self.streams, &Asked::List).await?.1;
            Ok(read_list(&mut stream).await?)
        })
        .await
    }

    /// Hears of each session that is handed over to this device from now on. What was before is in the list.
    ///
    /// # Errors
    /// [`SessionError::Older`] if the gateway tells nobody: then the list is what there is to look at.
    pub async fn hear(&self) -> Result<Hearing, SessionError> {
        let asking =
            async { ask(&self.streams, &Asked::Words).await.map(|(_, stream)| Hearing::new(stream)) };
        within(&self.streams, "to tell of sessions", asking).await
    }

    /// Lets another device take a session of this one, which was moved so often until now, for some time.
    ///
    /// # Errors
    /// [`SessionError::None`] if this device has no such session.
    pub async fn hand_off(
        &self,
        (id, moves): (SessionId, u32),
        to: EndpointId,
        limit: Duration,
    ) -> Result<(), SessionError> {
        let asked = Asked::HandOff { id, moves, to, limit };
        let asking = async { ask(&self.streams, &asked).await.map(drop) };
        within(&self.streams, "to let another device take a session", asking).await
    }

    /// Lets these devices, and no others, take all sessions of this one without being asked to. What one that
    /// may no more has taken by the rule within an hour comes back.
    ///
    /// # Errors
    /// When the gateway is not reached, or older.
    pub async fn set_rule(&self, rule: Takers) -> Result<(), SessionError> {
        let asking = async { ask(&self.streams, &Asked::Rule { rule }).await.map(drop) };
        within(&self.streams, "to let other devices take sessions", asking).await
    }

    /// Takes a session that was moved so often until now, as [`Listed`] says. From then on, devices of the
    /// rule may take it without being asked to.
    ///
    /// # Errors
    /// [`SessionError::None`] if this device may not, if another one is taking it, or took it meanwhile.
    pub async fn take(&self, id: SessionId, moves: u32, rule: Takers) -> Result<Attached, SessionError> {
        let asked = |how| Asked::Take { id, moves, rule: rule.clone(), how };
        match self.take_as(asked(How::Ahead)).await {
            Err(SessionError::Older) => self.take_as(asked(How::Plain)).await,
            taken => taken,
        }
    }

    /// The same for a player that asks for a film anew, with [`Attached::rest_by_time`].
    ///
    /// # Errors
    /// As [`SessionsAt::take`], and [`SessionError::KnowsNoFilms`] if the gateway is older.
    pub async fn take_by_time(
        &self,
        id: SessionId,
        moves: u32,
        rule: Takers,
    ) -> Result<Attached, SessionError> {
        let taken = self.take_as(Asked::Take { id, moves, rule, how: How::Enters }).await;
        taken.map_err(|error| match error {
            SessionError::Older => SessionError::KnowsNoFilms,
            error => error,
        })
    }

    async fn take_as(&self, asked: Asked) -> Result<Attached, SessionError> {
        within(&self.streams, "for the session", async {
            let (Said { answer, ahead }, mut stream) = ask(&self.streams, &asked).await?;
            let granted = read_granted(&mut stream).await?;
            let entry = match asked {
                Asked::Take { how: How::Enters, .. } => Entry::read(&mut stream).await?,
                _ => None,
            };
            let attached = Attached::new(granted, stream, self.streams.clone());
            let attached = attached.with_entry(entry).with_ahead(ahead);
            Ok(if answer.text == GOES_ON { attached } else { attached.with_warning(answer.plain()) })
        })
        .await
    }
}

/// A connection through a gateway.
pub(crate) enum Opened {
    Session(Box<Attached>, String),
    /// It keeps none: version 1 is what it speaks.
    Older,
}

/// Opens a session.
pub(crate) async fn open(
    streams: &Arc<dyn Streams>,
    to: &Destination,
    rule: &Takers,
) -> Result<Opened, UpstreamError> {
    let unreachable = |source| UpstreamError::Unreachable { to: to.to_string(), source };
    let opened = async {
        let opened = streams.open().await;
        let stream = opened.map_err(|why| UpstreamError::NoWay { to: to.to_string(), why })?;
        let mut wanted = Wanted(Some(stream));
        let asked = Asked::Open { to: to.clone(), rule: rule.clone() };
        let answer = said(wanted.stream().map_err(unreachable)?, &asked).await;
        let answer = answer.map_err(|error| unreachable(explained(error)))?.answer;
        let by = format!("through the gateway, to {}", answer.plain());
        if answer.status == Status::NotUnderstood {
            wanted.0 = None;
            return Ok(Opened::Older);
        }
        if let Some(error) = answer.error(to) {
            wanted.0 = None;
            return Err(error);
        }
        let granted = read_granted(wanted.stream().map_err(unreachable)?).await.map_err(unreachable)?;
        let stream = wanted.0.take().ok_or_else(|| unreachable(io::ErrorKind::NotConnected.into()))?;
        Ok(Opened::Session(Box::new(Attached::new(granted, stream, streams.clone())), by))
    };
    let opened = tokio::time::timeout(LIMIT, opened).await;
    opened.unwrap_or_else(|_| {
        let why = io::Error::new(io::ErrorKind::TimedOut, "the gateway does not answer");
        Err(unreachable(why))
    })
}

/// A stream on which a session was asked for. A program may be gone before the answer comes, and what waits
/// for that is dropped: the gateway is told then.
struct Wanted(Option<Stream>);

impl Wanted {
    fn stream(&mut self) -> io::Result<&mut Stream> {
        self.0.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        if let Some(stream) = self.0.take() {
            leave(stream);
        }
    }
}
