//! Meetings by code: what two machines say to each other once they know that both have it.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use whimbrel_base::{Delegation, EndpointId, Name, Ticket};
use whimbrel_names::{AskError, Code, ErrorCode, Introduced, Meeting, Role, introduce};

use crate::lan::Place;
use crate::network::Network;
use crate::output;
use crate::plain::plain;

/// How long one that holds the meeting itself waits for the other side to end it.
const END_LIMIT: Duration = Duration::from_secs(5);

/// What the two are to do with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Purpose {
    /// The opener sends a file.
    File,
    /// Two users introduce themselves.
    Users,
    /// The opener gives the joiner a device's name.
    Device,
    /// The two chat; the opener calls the joiner.
    Chat,
}

/// What one says to the other, after the introduction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// The first of each side.
    Greeting {
        purpose: Purpose,
        /// The sender's user name, if it has one to tell.
        user: Option<Name>,
        /// Where the sender can be reached, if it waits for a connection.
        ticket: Option<Ticket>,
    },
    /// The right to use a device's name.
    Delegation(String),
    /// The end, when all is done.
    Done,
    /// The end without success, and why.
    Refuse(String),
}

/// Somebody who knew the code.
pub(crate) struct Acquaintance {
    introduced: Introduced,
    /// What holds the meeting if no name service does.
    place: Option<Place>,
    /// One side has refused, and the other one knows.
    is_refused: bool,
}

impl Acquaintance {
    /// Makes a code, has it told by `tell`, and waits until somebody uses it: ten minutes at most.
    pub(crate) async fn wait(network: &Network, tell: impl FnOnce(&Code) -> Result<()>) -> Result<Self> {
        let met = enter(network, None).await.context("cannot open a meeting")?;
        let code = Code::new(met.0.slot());
        tell(&code)?;
        Self::introduce(network, met, Role::Opener, &code).await
    }

    /// Uses a code that somebody told.
    pub(crate) async fn join(network: &Network, code: &Code) -> Result<Self> {
        let met = enter(network, Some(code.slot()))
            .await
            .context("cannot join; was the code mistyped, used before, or made more than ten minutes ago?")?;
        Self::introduce(network, met, Role::Joiner, code).await
    }

    async fn introduce(
        network: &Network,
        (meeting, place): (Meeting, Option<Place>),
        role: Role,
        code: &Code,
    ) -> Result<Self> {
        match introduce(meeting, role, code, network.id()).await {
            Ok(introduced) => Ok(Self { introduced, place, is_refused: false }),
            Err(error) => {
                if let Some(place) = place {
                    place.close().await;
                }
                Err(error.into())
            }
        }
    }

    /// The other side's key.
    pub(crate) fn id(&self) -> EndpointId {
        self.introduced.peer()
    }

    pub(crate) async fn say(&mut self, message: &Message) -> Result<()> {
        Ok(self.introduced.send(&postcard::to_stdvec(message)?).await?)
    }

    pub(crate) async fn hear(&mut self) -> Result<Message> {
        let bytes = self.introduced.recv().await?;
        match postcard::from_bytes(&bytes) {
            Ok(Message::Refuse(reason)) => {
                self.is_refused = true;
                bail!("the other side refuses: {}", plain(&reason, 200))
            }
            Ok(message) => Ok(message),
            Err(_) => {
                bail!("the other side says what this program does not understand; update the older one")
            }
        }
    }

    /// The other side's greeting.
    pub(crate) async fn greeting(&mut self, wanted: &[Purpose]) -> Result<Greeting> {
        let Message::Greeting { purpose, user, ticket } = self.hear().await? else {
            bail!("the other side does not introduce itself; update the older program");
        };
        if !wanted.contains(&purpose) {
            let hint = match purpose {
                Purpose::File => "it is for a file: use it with `whimbrel receive CODE`",
                Purpose::Chat => "it is for a chat: use it with `whimbrel chat CODE`",
                Purpose::Users | Purpose::Device => "it is an invitation: use it with `whimbrel join CODE`",
            };
            self.refuse(hint).await;
            bail!("the code is for something else: {hint}");
        }
        Ok(Greeting { purpose, user, ticket })
    }

    /// Ends without success. The other side is told why, once.
    pub(crate) async fn refuse(&mut self, reason: &str) {
        if std::mem::replace(&mut self.is_refused, true) {
            return;
        }
        // If it can't be told, it notices the end.
        let _ = self.say(&Message::Refuse(reason.to_owned())).await;
    }

    /// Ends, once the service has what was said last. The other side may have heard that and be gone already.
    pub(crate) async fn end(mut self) {
        if self.place.as_ref().is_some_and(Place::is_here) {
            // Until the other side has ended: what was said last is kept nowhere else.
            let _ = tokio::time::timeout(END_LIMIT, self.introduced.recv()).await;
        }
        // That is the only way in which this can fail now and mean nothing; otherwise, what follows fails.
        let _ = self.introduced.close().await;
        if let Some(place) = self.place {
            place.close().await;
        }
    }
}

/// Opens a meeting, or joins the one in a slot: at the name service; in the local network, if that is looked
/// at, where there is no service, it does not answer, or it knows no such meeting.
async fn enter(network: &Network, slot: Option<u16>) -> Result<(Meeting, Option<Place>)> {
    let at_service = match (network.resolver(), slot) {
        (Ok(names), None) => Some(names.open_meeting().await),
        (Ok(names), Some(slot)) => Some(names.join_meeting(slot).await),
        (Err(_), _) if network.lan.is_some() => None,
        (Err(error), _) => return Err(error),
    };
    let Some(lan) = &network.lan else {
        return match at_service {
            Some(entered) => Ok((entered?, None)),
            None => bail!("there is no place to meet"),
        };
    };
    match at_service {
        Some(Ok(meeting)) => return Ok((meeting, None)),
        Some(Err(error)) if !is_elsewhere(&error) => return Err(error.into()),
        Some(Err(_)) | None => {}
    }
    let own = network.endpoint.transport();
    let (meeting, place) = match slot {
        None => lan.open_meeting(own).await?,
        Some(slot) => lan.join_meeting(own, slot).await?,
    };
    Ok((meeting, Some(place)))
}

/// Whether a meeting may be held elsewhere than at the name service that said so.
fn is_elsewhere(error: &AskError) -> bool {
    matches!(error, AskError::Unreachable(_)) || error.code() == Some(ErrorCode::NoMeeting)
}

/// What the other side said first.
pub(crate) struct Greeting {
    pub(crate) purpose: Purpose,
    pub(crate) user: Option<Name>,
    pub(crate) ticket: Option<Ticket>,
}

/// Prints a code, and says what to do with it.
pub(crate) fn show(quiet: bool, command: &str, code: &Code) -> Result<()> {
    output::note(quiet, format!("on the other machine, within ten minutes: whimbrel {command} {code}"));
    output::line(code.to_string())
}

/// A delegation that the other side gives, for this key.
pub(crate) fn delegation(text: &str, from: EndpointId, to: EndpointId) -> Result<Delegation> {
    let delegation: Delegation = text.parse().context("the other side gives no delegation")?;
    delegation.verify()?;
    if delegation.id() != to || delegation.issuer() != from {
        bail!("the other side gives a delegation that is not its own, or not for this key");
    }
    Ok(delegation)
}

/// Decodes whatever comes as what the other side says, which can be said again. For fuzzers.
#[cfg(feature = "fuzzing")]
pub(crate) fn decode_anything(bytes: &[u8]) {
    let Ok(message) = postcard::from_bytes::<Message>(bytes) else { return };
    let said = postcard::to_stdvec(&message).unwrap_or_default();
    let again: Option<Message> = postcard::from_bytes(&said).ok();
    assert_eq!(again.as_ref(), Some(&message));
    match &message {
        Message::Refuse(reason) => assert!(!plain(reason, 200).chars().any(char::is_control)),
        Message::Delegation(text) => {
            let own = whimbrel_base::SecretKey::from_bytes(&[7; 32]).id();
            assert!(delegation(text, own, own).is_err(), "nobody signed it");
        }
        Message::Greeting { .. } | Message::Done => {}
    }
}
