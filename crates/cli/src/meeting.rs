//! Meetings by code: what two machines say to each other once they know that both have it.

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use whimbrel_base::{Delegation, EndpointId, Name, Ticket};
use whimbrel_names::{Code, Introduced, Role, introduce};

use crate::network::Network;
use crate::output;
use crate::plain::plain;

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
}

impl Acquaintance {
    /// Makes a code, has it told by `tell`, and waits until somebody uses it: ten minutes at most.
    pub(crate) async fn wait(network: &Network, tell: impl FnOnce(&Code) -> Result<()>) -> Result<Self> {
        let meeting = network.resolver()?.open_meeting().await.context("cannot open a meeting")?;
        let code = Code::new(meeting.slot());
        tell(&code)?;
        Self::introduce(network, meeting, Role::Opener, &code).await
    }

    /// Uses a code that somebody told.
    pub(crate) async fn join(network: &Network, code: &Code) -> Result<Self> {
        let meeting =
            network.resolver()?.join_meeting(code.slot()).await.context(
                "cannot join; was the code mistyped, used before, or made more than ten minutes ago?",
            )?;
        Self::introduce(network, meeting, Role::Joiner, code).await
    }

    async fn introduce(
        network: &Network,
        meeting: whimbrel_names::Meeting,
        role: Role,
        code: &Code,
    ) -> Result<Self> {
        Ok(Self { introduced: introduce(meeting, role, code, network.id()).await? })
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
            Ok(Message::Refuse(reason)) => bail!("the other side refuses: {}", plain(&reason, 200)),
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

    /// Ends without success. The other side is told why.
    pub(crate) async fn refuse(&mut self, reason: &str) {
        // If it can't be told, it notices the end.
        let _ = self.say(&Message::Refuse(reason.to_owned())).await;
    }

    /// Ends, once the service has what was said last. The other side may have heard that and be gone already.
    pub(crate) async fn end(self) {
        // That is the only way in which this can fail now and mean nothing; otherwise, what follows fails.
        let _ = self.introduced.close().await;
    }
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
