//! What another device of the user has running, and offers to this one: a forward goes on in a program of the
//! user's list, or at ports. No gateway is between.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use serde_json::json;
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::time::Instant;
use whimbrel_base::{EndpointId, Ticket};

use super::Means;
use super::apps::{App, Apps};
use super::consent::Answer;
use super::launch::{Left, connects, prepare};
use super::news::News;
use crate::commands::sessions::Names;
use crate::commands::take::{How, LAST, Waiting, ended, go_on_at_ports, start};
use crate::moving::{self, Offer, Question, Taken};
use crate::network::{Network, Peer};
use crate::plain::plain;
use crate::{aside, failure};

/// Characters of a question.
const LONGEST: usize = 300;
/// Of a session's id.
const DIGITS: usize = 32;
/// The only command that goes on without a terminal.
const FORWARD: &str = "forward";

/// Takes what is offered.
pub(super) struct Receiver {
    pub(super) network: Arc<Network>,
    pub(super) means: Means,
    pub(super) news: News,
}

/// A program that has connected, and waits for its session.
struct Program {
    socket: TcpStream,
    child: Option<Child>,
}

impl Receiver {
    /// Takes what a device offers that may, unless the user does not wish it, and goes on with it until it
    /// ends.
    pub(super) async fn serve(&self, question: Question) {
        let Some(offer) = question.offered().cloned() else { return };
        let device = question.device();
        let called = self.name(device).await;
        let by = json!({ "by": device.to_string() });
        self.tell(&offer, "handed", &format!("handed over by {called}"), by);
        // It counts from here to its end.
        let place = self.means.bounds.take(Instant::now());
        let taken = match &place {
            Ok(_) => self.take(&offer, (device, &called)).await,
            Err(busy) => Err(Left::Busy(*busy)),
        };
        match taken {
            Ok((taken, program)) => {
                self.tell(&offer, "taken", "goes on here", json!({}));
                tokio::join!(question.taken(), self.go_on(&offer, taken, program));
            }
            Err(left) => {
                self.tell(&offer, "left", &left.to_string(), json!({ "reason": left.reason() }));
                question.refuse(&left.to_string()).await;
            }
        }
    }

    /// Has the program ready, if the list has one, and then the session.
    async fn take(
        &self,
        offer: &Offer,
        (device, called): (EndpointId, &str),
    ) -> Result<(Taken, Option<Program>), Left> {
        if offer.command != FORWARD {
            return Err(Left::Terminal(offer.command.clone()));
        }
        let ticket =
            place_of(offer, device).ok_or_else(|| Left::NotGiven("it is somewhere else".to_owned()))?;
        let apps = self.means.apps.as_deref();
        let app = apps.and_then(|apps| apps.find_peer(&offer.peer));
        if app.map_or(apps.is_some_and(Apps::asks), |(_, asks)| asks) {
            self.ask((offer, &ticket), app.map(|(app, _)| app), called).await?;
        }
        let program = match app {
            Some((app, _)) => Some(self.start(offer, app).await.map_err(Left::program)?),
            None => None,
        };
        let holder = Peer::Ticket(ticket);
        let taken = moving::take_forward(&self.network, &holder, &offer.session).await;
        let taken = taken.map_err(|error| Left::NotGiven(failure::line(&error)))?;
        Ok((taken, program))
    }

    async fn ask(
        &self,
        (offer, ticket): (&Offer, &Ticket),
        app: Option<&App>,
        called: &str,
    ) -> Result<(), Left> {
        // However long that is, what would be started is seen.
        let (id, peer) = (&offer.session, plain(&offer.peer, LONGEST / 2));
        let how = format!("whimbrel take {} --from {ticket}", id.get(..8).unwrap_or(id));
        let what = app.map_or_else(|| "take it to ports".to_owned(), |app| format!("start {}", app.name()));
        let question = format!("{called} hands over a forward of {peer}: {what}?");
        match self.means.consent.ask(&plain(&question, LONGEST), &how).await {
            Answer::Yes => Ok(()),
            Answer::No => Err(Left::Declined),
            Answer::Nobody => Err(Left::Asks(how)),
        }
    }

    /// Starts the program, and waits until it connects.
    async fn start(&self, offer: &Offer, app: &App) -> anyhow::Result<Program> {
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let waiting = Waiting::new(local, (How::Raw, 0)).await?;
        let mut child = start(app.words(), &waiting.place()?, prepare)?;
        let pid = child.as_ref().and_then(Child::id);
        let more = json!({ "program": app.name(), "pid": pid });
        self.tell(offer, "started", &format!("{} was started", app.name()), more);
        let (socket, _) = connects(waiting, &mut child).await?;
        Ok(Program { socket, child })
    }

    /// Goes on until all is over, also its program.
    async fn go_on(&self, offer: &Offer, taken: Taken, program: Option<Program>) {
        let (socket, mut child) = program.map_or((None, None), |of| (Some(of.socket), of.child));
        let tell = |at: SocketAddr, peer: &str| {
            let text = format!("{peer} waits for a program on {at}");
            self.tell(offer, "port", &text, json!({ "listening": at.to_string() }));
            Ok(())
        };
        let carried = go_on_at_ports(taken.connection, taken.streams, socket, tell).await;
        let status = match (&child, &carried) {
            (None, _) => None,
            (Some(_), Ok(())) => ended(&mut child).await.ok(),
            // It has a break to read, and is ended if it does not end.
            (Some(_), Err(_)) => {
                tokio::time::timeout(LAST, ended(&mut child)).await.ok().and_then(Result::ok)
            }
        };
        let (how, text) = match &carried {
            Ok(()) => ("ended", "it is over".to_owned()),
            Err(error) => ("broken", failure::line(error)),
        };
        let code = status.and_then(|status| status.code());
        self.tell(offer, "ended", &text, json!({ "how": how, "code": code }));
    }

    fn tell(&self, offer: &Offer, event: &str, text: &str, more: serde_json::Value) {
        let session = plain(&offer.session, DIGITS);
        self.news.about((&session, &offer.peer), event, text, more);
    }

    /// What a device is called here.
    async fn name(&self, device: EndpointId) -> String {
        let key = self.network.key.clone();
        let named = aside::run(move || Names::of_key(key).of_device(device)).await;
        named.ok().flatten().unwrap_or_else(|| device.short())
    }
}

/// Where the session of an offer waits, if the offer is one: people are told to type its id, so that it is
/// one; and a device sends nobody to another one.
fn place_of(offer: &Offer, device: EndpointId) -> Option<Ticket> {
    let is_id = offer.session.len() == DIGITS && offer.session.bytes().all(|byte| byte.is_ascii_hexdigit());
    let ticket: Ticket = offer.ticket.parse().ok()?;
    (is_id && ticket.id() == device && ticket.name().is_none()).then_some(ticket)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::{Name, SecretKey};

    use super::*;

    #[test]
    fn an_offer_sends_nobody_to_another_device_and_its_id_is_nothing_else() {
        let [device, other] = [1, 2].map(|number| SecretKey::from_bytes(&[number; 32]).id());
        let at = |id: EndpointId, name: Option<&str>| {
            let name = name.map(|name| name.parse::<Name>().unwrap());
            Ticket::new(id, ["192.0.2.1:443".parse::<SocketAddr>().unwrap()], name).to_string()
        };
        let is_one = |session: &str, ticket: String| {
            let (command, peer) = (FORWARD.to_owned(), "p".to_owned());
            place_of(&Offer { session: session.to_owned(), command, peer, ticket }, device).is_some()
        };
        let id = "5f".repeat(16);
        assert!(is_one(&id, at(device, None)));
        assert!(!is_one(&id, at(other, None)));
        assert!(!is_one(&id, at(device, Some("web.home.ada@example.org"))));
        assert!(!is_one(&id, "x".to_owned()));
        // What a person is told to type would run it.
        let hidden = format!("`id`{}", &id[4..]);
        for session in ["", "5f2c", "$(reboot)", hidden.as_str()] {
            assert!(!is_one(session, at(device, None)), "{session}");
        }
    }
}
