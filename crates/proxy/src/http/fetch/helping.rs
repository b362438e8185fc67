//! Ranges that stand still: a second worker fetches what is left of one over another network, too. A radio
//! network may stand still for a second and then go on: whichever of the two brings a byte first has it, and
//! nothing is lost by a guess that was wrong but what came twice.

use super::{First, LEAST_LEFT, Start, Team};
use crate::http::assembly::Standing;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::timeout;

/// How often it is looked whether one stands still. The manager answers within this time, or is asked later.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// A range stands still of which nothing came for so long: what was lost mostly comes again before, after a
/// round trip.
const STILL: Duration = Duration::from_millis(200);

impl Team {
    /// Has a second worker fetch the range that has stood still for longest, if the policy wants that: it is
    /// to bring all of it before the range has stood still for twice as long.
    pub(super) async fn help(&mut self) {
        let Some(standing) = self.standing() else { return };
        self.helped = Some(standing);
        let Standing { rest, still, .. } = standing;
        let (origins, to) = (&self.object.origins, &self.object.to);
        let asking = origins.reconsider(to, &rest, self.unit, still, true);
        let Ok(Some(mut decided)) = timeout(LOOK, asking).await else { return };
        let Some(part) = decided.parts.pop() else { return };
        let network = part.route.way.interface.clone();
        tracing::debug!(%to, at = rest.at, network, "what stands still is asked for there too");
        self.units.extend(decided.unit);
        self.hear();
        self.workers.fetch_add(1, Ordering::Relaxed);
        self.add(network, Start::by(part.route), Some(First::Rest(rest)), None);
    }

    /// A range that stands still, of an object of which little is to come: with more, a network is left alone
    /// for longer. Before its head it may be the server that takes its time. What was asked about and stays
    /// is asked about again once it has stood still for twice as long.
    fn standing(&self) -> Option<Standing> {
        let may_help = self.object.may_split && self.assembly.left() < LEAST_LEFT;
        let standing = self.assembly.standing().filter(|_| may_help)?;
        let least = if standing.has_begun { STILL } else { STILL.max(self.object.late) };
        let before = self.helped.filter(|before| before.rest == standing.rest);
        let least = before.map_or(least, |before| before.still * 2);
        (standing.still >= least).then_some(standing)
    }
}
