//! The trait that all policies share.

use crate::{Decision, Forecast, Sharing, Situation, UnderWay};

/// Chooses a way for each unit of communication: a message, a stream, or a whole connection.
///
/// Policies have no clock and no sockets; what they remember between decisions is their own affair, and
/// [`Policy::reset`] forgets it. A policy of one's own is registered in a [`crate::Registry`].
pub trait Policy: Send {
    /// The name by which it is registered.
    fn name(&self) -> &str;

    /// Rank the ways to carry the unit into `decision`, which is empty at first.
    ///
    /// Only [`Situation::usable`] paths and [`Situation::reusable`] connections may be chosen. An empty
    /// decision means that the unit has to wait.
    fn decide(&mut self, situation: &Situation<'_>, forecast: &mut dyn Forecast, decision: &mut Decision);

    /// Say whether the end of something that is under way should come another way: asked when a path or
    /// connection has become free. `situation` is as for a new unit of the size that is left. The parts of
    /// the decision say how many bytes move, and where to; none leaves it alone.
    fn reconsider(
        &mut self,
        _under_way: &UnderWay,
        _situation: &Situation<'_>,
        _forecast: &mut dyn Forecast,
        _decision: &mut Decision,
    ) {
    }

    /// Whether [`Policy::reconsider`] does anything.
    fn reconsiders(&self) -> bool {
        false
    }

    /// Whether it only works with servers that support multipath connections.
    fn needs_server_support(&self) -> bool {
        false
    }

    /// How forecasts from estimates are to count what is scheduled on a path already.
    fn sharing(&self) -> Sharing {
        Sharing::Objects
    }

    /// Forget everything, and draw random numbers from this seed from now on.
    fn reset(&mut self, _seed: u64) {}
}
