//! "What would happen if": the question that informed policies ask before they choose.

use crate::{Choice, Part, Seconds, UnderWay};

/// Answers when the unit at hand would be complete, were a choice carried out now.
///
/// The simulator answers by simulating (Socket Intents §VI-D); live traffic by [`crate::Analytic`], from
/// estimates.
pub trait Forecast {
    /// The moment of completion, or `None` if that is not strictly before `bound`. A tight bound saves work.
    fn completes(&mut self, choice: Choice, bound: Seconds) -> Option<Seconds>;

    /// The same if the unit is split: when all parts are complete. `None` also where splitting is impossible.
    fn completes_split(&mut self, _parts: &[Part], _bound: Seconds) -> Option<Seconds> {
        None
    }

    /// When all of what is under way would be complete if the end of it, `part`, came another way from now
    /// on: what stays as well as what moves. `None` also where that is impossible.
    fn completes_moved(&mut self, _under_way: &UnderWay, _part: Part, _bound: Seconds) -> Option<Seconds> {
        None
    }

    /// A moment before which the unit cannot be complete by this choice, if that is cheap to say. It only
    /// decides what is asked first.
    fn no_earlier_than(&mut self, _choice: Choice) -> Seconds {
        Seconds::ZERO
    }
}
