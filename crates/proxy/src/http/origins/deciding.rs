//! Which way a message is to go: the manager is asked.

use super::{Lease, Origins, offer};
use crate::http::decided::{Decided, Offer};
use crate::upstream::unreached;
use crate::{Destination, UpstreamError};
use std::sync::Arc;
use std::time::Instant;
use whimbrel_access::Intents;
use whimbrel_multiaccess::protocol::Verdict;
use whimbrel_multiaccess::{Candidate, Client};

/// What the manager is asked of a message.
enum Question {
    /// The way of one that goes then. Only where it `may_split` parts may be the answer.
    Goes { may_split: bool },
    /// The way of the rest of one that counts as this unit until now, in parts or in one.
    Rest { unit: Option<u64> },
    /// The way of one that has another already. It does not count as scheduled.
    Weighed,
}

impl Origins {
    /// Asks which way a message is to go. Only where it `may_split` parts may be the answer.
    pub(in crate::http) async fn decide(
        self: &Arc<Self>,
        to: &Destination,
        intents: Intents,
        may_split: bool,
    ) -> Result<Decided, UpstreamError> {
        match self.upstream.manager(to) {
            // On the heap: where there is nobody to ask, a message has no need of the memory.
            Some(client) => {
                let question = Question::Goes { may_split };
                Box::pin(self.ask(client, to, intents, question, self.offers(to))).await
            }
            None => Ok(Decided::default()),
        }
    }

    /// Asks which way what is behind the first bytes of a message is to go. These come on this connection,
    /// which is offered too where nothing else is open over its network: what goes on another one does not
    /// wait for their end.
    pub(in crate::http) async fn decide_behind(
        self: &Arc<Self>,
        lease: &Lease,
        first: u64,
        left: Intents,
        may_split: bool,
    ) -> Result<Decided, UpstreamError> {
        let to = lease.line.to();
        let Some(client) = self.upstream.manager(to) else { return Ok(Decided::default()) };
        let mut offers = self.offers(to);
        let own = offer(&lease.line).filter(|_| !lease.line.is_closed()).map(|mut own| {
            own.open.scheduled = first;
            own
        });
        let is_there = |other: &Offer| Some(other.open.source) == lease.line.source();
        offers.extend(own.filter(|_| !offers.iter().any(is_there)));
        // Its own first bytes are in nobody's way.
        let question = match may_split {
            true => Question::Rest { unit: lease.unit() },
            false => Question::Goes { may_split },
        };
        self.ask(client, to, left, question, offers).await
    }

    /// Asks which way the rest of a message is to go that counts as this unit until now, in parts or in one.
    pub(in crate::http) async fn decide_rest(
        self: &Arc<Self>,
        to: &Destination,
        left: u64,
        unit: Option<u64>,
    ) -> Result<Decided, UpstreamError> {
        let Some(client) = self.upstream.manager(to) else { return Ok(Decided::default()) };
        let (intents, question) = (Intents::receive(left), Question::Rest { unit });
        self.ask(client, to, intents, question, self.offers(to)).await
    }

    /// Asks which way a message would go that has another one already. It does not count as scheduled.
    pub(in crate::http) async fn weigh(
        self: &Arc<Self>,
        to: &Destination,
        intents: Intents,
    ) -> Result<Decided, UpstreamError> {
        let Some(client) = self.upstream.manager(to) else { return Ok(Decided::default()) };
        self.ask(client, to, intents, Question::Weighed, self.offers(to)).await
    }

    /// Whether a connection is idle that goes the way that was decided, if that was one that is open.
    pub(in crate::http) fn is_there(&self, to: &Destination, decided: &Decided) -> bool {
        let Some(best) = decided.routes.first().filter(|best| best.way.reuse.is_some()) else { return true };
        let mut idle = self.lock();
        idle.good(to).iter().any(|(line, since)| line.has_room() && best.takes(line.by(), *since))
    }

    /// Decides once more for a message that has a connection and was not sent yet. `None`: it stays on that.
    pub(in crate::http) async fn decide_again(
        self: &Arc<Self>,
        to: &Destination,
        intents: Intents,
        lease: &mut Lease,
    ) -> Result<Option<Decided>, UpstreamError> {
        let Some(client) = self.upstream.manager(to) else { return Ok(None) };
        if let Some(unit) = lease.unit.take() {
            unit.end().await;
        }
        let mut offers = self.offers(to);
        // One that carries several messages is offered to each.
        if offers.iter().all(|offer| offer.open.id != lease.line.id()) {
            offers.extend(offer(&lease.line));
        }
        let question = Question::Goes { may_split: false };
        let mut decided = self.ask(client, to, intents, question, offers).await?;
        let network = lease.by().and_then(|by| by.interface.as_deref());
        if decided.routes.is_empty() || network == Some(decided.network()) {
            lease.unit = decided.unit.take();
            return Ok(None);
        }
        Ok(Some(decided))
    }

    async fn ask(
        self: &Arc<Self>,
        client: &Client,
        to: &Destination,
        intents: Intents,
        question: Question,
        offers: Vec<Offer>,
    ) -> Result<Decided, UpstreamError> {
        let (asked, host, port) = (Instant::now(), to.host(), to.port());
        let open = offers.iter().map(|offer| offer.open).collect();
        let routed = match question {
            Question::Goes { may_split } => client.route(host, port, intents, open, may_split).await,
            Question::Rest { unit } => client.route_rest(host, port, intents, open, unit).await,
            Question::Weighed => client.weigh(host, port, intents, open).await,
        };
        let Some(mut verdict) = routed.map_err(|error| unreached(to, error))? else {
            return Ok(Decided::default());
        };
        if let Some(by) = verdict.warm.take().and_then(Candidate::of_way) {
            self.open_ahead(to, by);
        }
        Ok(self.decided(verdict, asked, &offers, client))
    }

    pub(super) fn decided(
        &self,
        verdict: Verdict,
        asked: Instant,
        offers: &[Offer],
        client: &Client,
    ) -> Decided {
        let parts = verdict.parts.iter().map(|part| &part.way);
        verdict.ways.iter().chain(parts).for_each(|way| self.rooms.know(&way.interface, way.holds));
        Decided::of(verdict, asked, offers, client)
    }
}
