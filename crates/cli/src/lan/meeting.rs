//! Meetings by code without a name service: the machine that makes the code holds the meeting itself, for as
//! long as it lasts, and the network is told where.
//!
//! The rules are those of a name service's meetings, and so is what others in the network can do: one guess
//! at the code's secret words, which ends the meeting.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use whimbrel_base::{EndpointAddr, Name, SecretKey};
use whimbrel_lan::Announcement;
use whimbrel_names::{Admission, Limits, Meeting, MemoryStore, NameResolver, Service};
use whimbrel_transport::Endpoint;

use super::Lan;

/// How long the end may take.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);

/// What a meeting needs for as long as it lasts.
pub(crate) struct Place {
    /// Asks the one who holds the meeting.
    _resolver: NameResolver,
    held: Option<Held>,
}

/// A meeting that is held here.
struct Held {
    service: Service,
    endpoint: Endpoint,
    _announcement: Announcement,
}

/// The name that the network is told of one who holds the meeting in a slot.
fn name_of(slot: u16) -> Result<Name> {
    Ok(format!("meeting-{slot}@whimbrel.invalid").parse()?)
}

impl Lan {
    /// Holds a meeting here, for one who is told its slot.
    pub(crate) async fn open_meeting(&self, own: &Endpoint) -> Result<(Meeting, Place)> {
        // Its own key: nobody learns from it who waits.
        let key = SecretKey::generate();
        let endpoint = Endpoint::builder().secret_key(key.clone()).config(Service::config()).bind().await?;
        let (store, nobody) = (MemoryStore::new(), Admission::invited());
        let service = Service::start(endpoint.clone(), store, nobody, Limits::default()).await?;
        let resolver = NameResolver::new(own.clone(), service.addr());
        let meeting = resolver.open_meeting().await?;
        let announcement = self.neighbours.announce(endpoint.clone(), key, name_of(meeting.slot())?);
        let held = Some(Held { service, endpoint, _announcement: announcement });
        Ok((meeting, Place { _resolver: resolver, held }))
    }

    /// Joins the meeting in a slot that somebody in this network holds.
    pub(crate) async fn join_meeting(&self, own: &Endpoint, slot: u16) -> Result<(Meeting, Place)> {
        let claims = self.neighbours.claims(&name_of(slot)?).await;
        // Each that is tried has a guess at the code.
        let holder = match &claims[..] {
            [] => bail!("nobody in this network waits for this code"),
            [only] => only.record(),
            _ => bail!("several machines in this network say that they wait for this code; make another one"),
        };
        let at = EndpointAddr::new(holder.id, holder.addrs.iter().copied());
        let resolver = NameResolver::new(own.clone(), at);
        let meeting = resolver.join_meeting(slot).await.context("the machine that waits for this code")?;
        Ok((meeting, Place { _resolver: resolver, held: None }))
    }
}

impl Place {
    /// Whether the meeting is held here: the other side has what was said last only while this lasts.
    pub(crate) fn is_here(&self) -> bool {
        self.held.is_some()
    }

    /// Ends what was there for the meeting.
    pub(crate) async fn close(self) {
        if let Some(held) = self.held {
            held.service.shutdown(CLOSE_LIMIT).await;
            held.endpoint.close(CLOSE_LIMIT).await;
        }
    }
}
