//! Whether the end of what is under way should come another way: the manager is asked.

use super::Origins;
use crate::Destination;
use crate::http::assembly::Rest;
use crate::http::decided::Decided;
use std::time::{Duration, Instant};
use whimbrel_access::Intents;
use whimbrel_multiaccess::protocol::{OpenConnection, UnderWay};

/// What takes longer is said to take so long.
const LONGEST: Duration = Duration::from_secs(3600);
/// The manager answers within this time, or all stays as it is.
const ANSWER: Duration = Duration::from_secs(1);

impl Origins {
    /// Asks about a range that is under way, of this unit, and will be complete after so long if nothing
    /// changes. Where it `stands` all of it is to come over another network too. `None`: all of it stays;
    /// else the decision has parts.
    pub(in crate::http) async fn reconsider(
        &self,
        to: &Destination,
        longest: &Rest,
        unit: Option<u64>,
        completes: Duration,
        stands: bool,
    ) -> Option<Decided> {
        let client = self.upstream.manager(to)?;
        let asked = Instant::now();
        let offers = self.offers(to);
        let mut open: Vec<OpenConnection> = offers.iter().map(|offer| offer.open).collect();
        // One that carries several messages may be offered too.
        let on = longest.on;
        open.retain(|one| one.id != on.id);
        open.push(OpenConnection { id: on.id, source: on.source, scheduled: longest.left });
        let completes_ms = completes.min(LONGEST).as_secs_f64() * 1000.0;
        let under_way = UnderWay { connection: on.id, completes_ms, stands };
        let intents = Intents::receive(longest.left);
        let asking = client.reconsider(to.host(), to.port(), intents, open, under_way, unit);
        let verdict = tokio::time::timeout(ANSWER, asking).await.ok().flatten()?;
        Some(self.decided(verdict, asked, &offers, client))
    }
}
