//! Whether the end of something that is under way should come another way.

use crate::protocol::UnderWay;
use whimbrel_access::{
    Analytic, BytesPerSecond, Choice, ConnectionId, Decision, Forecast, Part, PathId, Policy, Seconds,
    Situation,
};

/// A unit is slow for which its path would need less than this share of the time that it takes.
const MUCH_SLOWER: f64 = 0.5;

/// Asks the policy. The decision stays empty if all of it stays where it is.
pub(super) fn reconsider(
    policy: &mut dyn Policy,
    situation: &Situation<'_>,
    asked: &UnderWay,
    decision: &mut Decision,
) {
    if !policy.reconsiders() {
        return;
    }
    let connection = ConnectionId(asked.connection);
    let under_way = whimbrel_access::UnderWay {
        connection,
        left: situation.stated().received().unwrap_or(0),
        completes: situation.now + Seconds::from_millis(asked.completes_ms),
        stands: asked.stands,
    };
    let forecast = Analytic::new(*situation, policy.sharing(), 0);
    let on = path(situation, Choice::Reuse(connection));
    let from = on.filter(|path| asked.stands || !has_more_to_give(situation, *path, &under_way));
    let mut elsewhere = Elsewhere { forecast, situation, from };
    policy.reconsider(&under_way, situation, &mut elsewhere, decision);
}

/// Whether a second connection on the path of the unit may bring more than the one that it is on, of which
/// losses have made the window small: it comes much slower than the path carries, which nobody else uses.
fn has_more_to_give(situation: &Situation<'_>, path: PathId, under_way: &whimbrel_access::UnderWay) -> bool {
    let Some(estimate) = situation.paths.get(path.index()) else { return false };
    let takes = under_way.completes - situation.now;
    let is_slow = |best: BytesPerSecond| best.time_for(under_way.left as f64) < takes * MUCH_SLOWER;
    estimate.scheduled == 0 && estimate.down.best.is_some_and(is_slow)
}

/// Foretells nothing for the path that the unit is on, unless that has more to give. Where nothing comes of
/// it, that is the path's fault.
struct Elsewhere<'a> {
    forecast: Analytic<'a>,
    situation: &'a Situation<'a>,
    from: Option<PathId>,
}

impl Forecast for Elsewhere<'_> {
    fn completes(&mut self, choice: Choice, bound: Seconds) -> Option<Seconds> {
        self.forecast.completes(choice, bound)
    }

    fn completes_moved(
        &mut self,
        under_way: &whimbrel_access::UnderWay,
        part: Part,
        bound: Seconds,
    ) -> Option<Seconds> {
        if path(self.situation, part.choice) == self.from {
            return None;
        }
        self.forecast.completes_moved(under_way, part, bound)
    }
}

/// The first path of a choice. `None` if there is no such connection any more.
fn path(situation: &Situation<'_>, choice: Choice) -> Option<PathId> {
    match choice {
        Choice::Open { paths, .. } => Some(paths.first()),
        Choice::Reuse(id) => {
            let connection = situation.connections.iter().find(|connection| connection.id == id);
            connection.map(|connection| connection.paths.first())
        }
    }
}
