//! Tokens for single clients: the relay is asked for some as long as there is room for more.

use std::time::{Duration, Instant};

use whimbrel_base::{RelayToken, RelayedAddr};
use whimbrel_transport::Endpoint;

use super::crossing::Crossing;
use crate::wire::{MAX_ALIASES, Message};

/// Fewer are not asked for.
const LEAST: usize = 32;
/// A relay that gave fewer than it was asked for is left alone for so long.
const PAUSE: Duration = Duration::from_secs(1);

/// What is asked for. A relay of an older version never answers, and is asked once.
#[derive(Debug, Default)]
pub(super) struct Wish {
    /// So many, and no answer has come.
    awaited: Option<usize>,
    not_before: Option<Instant>,
}

impl Wish {
    /// What to say now, if anything.
    pub(super) fn next(
        &mut self,
        endpoint: &Endpoint,
        places: &[RelayedAddr],
        crossing: &Crossing,
    ) -> Option<Message> {
        let is_early = self.not_before.is_some_and(|at| at > Instant::now());
        if self.awaited.is_some() || is_early {
            return None;
        }
        let of_places = places.iter().map(|place| endpoint.missing_aliases(*place)).sum::<usize>();
        let missing = (crossing.missing_aliases() + of_places).min(MAX_ALIASES);
        self.awaited = Some(missing).filter(|missing| *missing >= LEAST);
        let count = u16::try_from(self.awaited?).ok()?;
        Some(Message::WantAliases(count))
    }

    /// The relay has made these.
    pub(super) fn came(
        &mut self,
        mut aliases: Vec<RelayToken>,
        endpoint: &Endpoint,
        places: &[RelayedAddr],
        crossing: &Crossing,
    ) {
        let Some(awaited) = self.awaited.take() else { return };
        self.not_before = (aliases.len() < awaited).then(|| Instant::now() + PAUSE);
        crossing.add_aliases(first(&mut aliases, crossing.missing_aliases()));
        for place in places {
            endpoint.add_aliases(*place, first(&mut aliases, endpoint.missing_aliases(*place)));
        }
    }
}

/// Takes at most so many.
fn first(aliases: &mut Vec<RelayToken>, count: usize) -> Vec<RelayToken> {
    let rest = aliases.split_off(count.min(aliases.len()));
    std::mem::replace(aliases, rest)
}
