//! Which reservation makes room when a relay is full: the one that holds most of what is used up.

use whimbrel_base::RelayToken;

use super::{Reservations, Splice};

impl<S, C> Reservations<S, C> {
    /// The reservation with the most splices, and how many these are.
    fn most_spliced(&self) -> Option<(RelayToken, usize)> {
        let counts = self.splices.iter().map(|(token, splices)| (*token, splices.len()));
        counts.max_by_key(|(_, count)| *count)
    }

    /// The reservation for which most clients wait, and how many these are.
    fn most_awaited(&self) -> Option<(RelayToken, usize)> {
        let counts = self.by_token.iter().map(|(token, reservation)| (*token, reservation.clients.len()));
        counts.max_by_key(|(_, count)| *count)
    }

    /// Makes room for a splice, if there is none: the oldest one of the reservation with the most is
    /// forgotten.
    pub(super) fn displace(&mut self) -> Option<Splice> {
        if self.spliced < self.limits.splices {
            return None;
        }
        let (crowd, _) = self.most_spliced()?;
        let oldest = self.splices.get(&crowd)?.iter().min_by_key(|splice| (splice.generation, splice.number));
        let oldest = *oldest?;
        self.ended(&oldest, 0);
        Some(oldest)
    }

    /// Makes room for a client that waits, if there is none: the oldest one of the reservation with the most
    /// is dropped, unless the newcomer's has as many, which is `own`. Returns whether there is room.
    pub(super) fn make_room_to_wait(&mut self, own: usize) -> bool {
        if self.waiting < self.limits.waiting_in_all {
            return true;
        }
        let crowd = self.most_awaited().filter(|(_, most)| gives_way(*most, own));
        let crowd = crowd.and_then(|(token, _)| self.by_token.get_mut(&token));
        let is_dropped = crowd.is_some_and(|crowd| crowd.clients.pop_front().is_some());
        if is_dropped {
            self.waiting -= 1;
            self.stats.clients_refused += 1;
        }
        is_dropped
    }

    /// Whether there is a place for another splice of one that has `own`, or somebody gives way.
    pub(super) fn has_room_to_splice(&self, own: usize) -> bool {
        self.spliced < self.limits.splices
            || self.most_spliced().is_some_and(|(_, most)| gives_way(most, own))
    }
}

/// Whether one that has `most` of what is used up gives way to one that has `own`: not if the latter would
/// then have more.
fn gives_way(most: usize, own: usize) -> bool {
    most > own + 1
}
