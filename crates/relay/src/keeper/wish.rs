//! Tokens for single clients: the relay is asked for some as long as there is room for more.

use whimbrel_base::{RelayToken, RelayedAddr};
use whimbrel_transport::Endpoint;

use super::crossing::Crossing;
use crate::wire::{MAX_ALIASES, Message};

/// Fewer are not asked for.
const LEAST: usize = 32;

/// What is asked for. A relay of an older version never answers, and is asked once.
#[derive(Debug, Default)]
pub(super) struct Wish {
    awaited: bool,
}

impl Wish {
    /// What to say now, if anything.
    pub(super) fn next(
        &mut self,
        endpoint: &Endpoint,
        places: &[RelayedAddr],
        crossing: &Crossing,
    ) -> Option<Message> {
        if self.awaited {
            return None;
        }
        let of_places = places.iter().map(|place| endpoint.missing_aliases(*place)).sum::<usize>();
        let missing = (crossing.missing_aliases() + of_places).min(MAX_ALIASES);
        self.awaited = missing >= LEAST;
        let count = u16::try_from(missing).ok()?;
        self.awaited.then_some(Message::WantAliases(count))
    }

    /// The relay has made these.
    pub(super) fn came(
        &mut self,
        mut aliases: Vec<RelayToken>,
        endpoint: &Endpoint,
        places: &[RelayedAddr],
        crossing: &Crossing,
    ) {
        if !std::mem::take(&mut self.awaited) {
            return;
        }
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
