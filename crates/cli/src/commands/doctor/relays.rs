//! Whether relays would relay for this host.

use std::fmt::Display;
use std::future::Future;
use std::io;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};
use whimbrel_base::{EndpointAddr, Name};
use whimbrel_relay::{ProbeError, Roster as _, probe};
use whimbrel_transport::{CarrierKind, CloseCode, ConnectError};

use super::{Finding, LIMIT, blocked};
use crate::failure;
use crate::network::Network;
use crate::relaying::RelayTarget;
use crate::roster::NamedRelays;

/// Members of a group that are tried: a command takes four of them at most.
const MOST: usize = 16;

/// All at once, each as the first would be: they have the same time.
pub(super) async fn to_relays(network: &Network, kind: CarrierKind, relays: &[RelayTarget]) -> Vec<Finding> {
    let trial = &Trial { network, kind, end: Instant::now() + LIMIT };
    let each = relays.iter().map(|relay| async move {
        match relay {
            RelayTarget::At(address) => vec![trial.one(address.id().short(), address.resolve()).await],
            RelayTarget::Named(name) => trial.named(name).await,
        }
    });
    join_all(each).await.into_iter().flatten().collect()
}

/// How relays are tried.
struct Trial<'a> {
    network: &'a Network,
    kind: CarrierKind,
    end: Instant,
}

impl Trial<'_> {
    /// The relay of that name, or those of the group.
    async fn named(&self, name: &Name) -> Vec<Finding> {
        let check = format!("relay {name} over {}", self.kind);
        let roster = match timeout_at(self.end, NamedRelays::follow(self.network, name)).await {
            Ok(Ok((roster, None))) => roster,
            Ok(Ok((_, Some(error)))) => {
                let remedy = "check the name, and have its owner register it for --readers any";
                return vec![Finding::bad(check, error.to_string(), remedy)];
            }
            Ok(Err(error)) => {
                let remedy = "give a name service with --names SERVICE, or the relay's ticket";
                return vec![Finding::bad(check, failure::line(&error), remedy)];
            }
            Err(_) => {
                return vec![Finding::bad(check, "its name is not looked up in time", blocked(self.kind))];
            }
        };
        let members = roster.members().current().unwrap_or_default();
        if members.is_empty() {
            let remedy = format!("have its owner run `whimbrel names group add {name} RELAY --readers any`");
            return vec![Finding::bad(check, "no relay belongs to it", remedy)];
        }
        let roster = &roster;
        let tried = members.iter().take(MOST).map(|member| {
            self.one(member, async move { roster.member(member).await.map(|listed| listed.addr) })
        });
        let mut found = join_all(tried).await;
        if members.len() > MOST {
            found.push(Finding::note(check, format!("{MOST} of its {} relays were tried", members.len())));
        }
        found
    }

    /// Whether a relay gives this key a reservation. What a command that runs has reserved for it stays.
    async fn one(&self, of: impl Display, at: impl Future<Output = io::Result<EndpointAddr>>) -> Finding {
        let (kind, start) = (self.kind, Instant::now());
        let check = format!("relay {of} over {kind}");
        let probed = timeout_at(self.end, async {
            let at = at.await.map_err(|error| (error.to_string(), not_located(&error, kind)))?;
            let probed = probe(self.network.endpoint.transport(), &at).await;
            probed.map_err(|error| (error.to_string(), remedy(&error, kind)))
        });
        match probed.await {
            Ok(Ok(())) => Finding::good(
                check,
                format!("would relay for this key, known after {} ms", start.elapsed().as_millis()),
            ),
            Ok(Err((why, remedy))) => Finding::bad(check, why, remedy),
            Err(_) => Finding::bad(check, "no answer", blocked(kind)),
        }
    }
}

/// What to do about a relay of which it is not known where it is.
fn not_located(error: &io::Error, kind: CarrierKind) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "check the name; the relay registers it while it runs, with `whimbrel relay serve --group`"
                .to_owned()
        }
        _ => blocked(kind),
    }
}

/// What to do about a relay that cannot be used.
fn remedy(error: &ProbeError, kind: CarrierKind) -> String {
    match error {
        ProbeError::NoRelay => {
            "check --relay: it is what `whimbrel relay serve` or `whimbrel serve` prints, or a relay's name"
                .to_owned()
        }
        ProbeError::WantsProof => {
            "nothing, if the name that is exposed is of a domain that the relay serves".to_owned()
        }
        ProbeError::Refused(_) => "use another relay, or have its operator raise --reservations".to_owned(),
        ProbeError::Connect(ConnectError::Refused { code: CloseCode::NOT_ALLOWED, .. }) => {
            "have its operator allow this key, which `whimbrel id` prints; or check that it is a relay"
                .to_owned()
        }
        _ => blocked(kind),
    }
}
