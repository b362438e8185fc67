//! Batches that a user's devices leave for each other: how many are kept, and which make room for newer ones.
//! What is in one, nobody here can read.

use whimbrel_base::{EndpointId, UnixTime};

/// The most bytes of a batch.
pub const MAX_BATCH: usize = 12 * 1024;
/// The most batches of one device. A further one takes the place of its oldest, and of nobody else's.
pub const MAX_OF_DEVICE: usize = 32;
/// The most bytes of all batches of a user. What is more takes the place of the oldest.
pub const MAX_OF_USER: usize = 512 * 1024;
/// A smaller batch counts for so many bytes: a user has 256 at most, and few users do not fill the service.
const LEAST: usize = 2 * 1024;
/// The most batches of all users.
pub const MAX_BATCHES: usize = 65_536;

/// What a device left for the others of its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its place among those of its user: higher than that of all earlier ones, those that are gone too.
    pub number: u64,
    /// Which key left it.
    pub by: EndpointId,
    /// When it is forgotten.
    pub expires: UnixTime,
    /// What was left.
    pub bytes: Vec<u8>,
}

/// A batch that is to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBatch {
    /// For the devices of this user.
    pub user: EndpointId,
    /// Which key leaves it.
    pub by: EndpointId,
    /// When it is forgotten.
    pub expires: UnixTime,
    /// What is left: at most [`MAX_BATCH`].
    pub bytes: Vec<u8>,
}

/// What becomes of a new batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Placing {
    /// It is there already, until then.
    Known(UnixTime),
    /// It gets this number, and those with these are forgotten.
    New { number: u64, forgotten: Vec<u64> },
}

/// Decides on a new batch beside all that the user has, in the order of their numbers.
pub(super) fn place(known: &[Batch], new: &NewBatch, now: UnixTime) -> Placing {
    let mut stays: Vec<&Batch> = known.iter().filter(|known| known.expires > now).collect();
    // It was not heard that it was taken.
    if let Some(same) = stays.iter().find(|known| known.by == new.by && known.bytes == new.bytes) {
        return Placing::Known(same.expires);
    }
    let own = stays.iter().filter(|known| known.by == new.by).count();
    let mut over = (own + 1).saturating_sub(MAX_OF_DEVICE);
    stays.retain(|known| {
        let goes = known.by == new.by && over > 0;
        over -= usize::from(goes);
        !goes
    });
    let size = |bytes: &[u8]| bytes.len().max(LEAST);
    let mut bytes = size(&new.bytes) + stays.iter().map(|known| size(&known.bytes)).sum::<usize>();
    stays.retain(|known| {
        let goes = bytes > MAX_OF_USER;
        bytes -= if goes { size(&known.bytes) } else { 0 };
        !goes
    });
    let is_kept = |number: u64| stays.iter().any(|known| known.number == number);
    let forgotten = known.iter().map(|known| known.number).filter(|number| !is_kept(*number)).collect();
    // By the clock, so that numbers grow also when nothing was left for a while, or the store is a new one.
    let next = known.last().map_or(0, |last| last.number.saturating_add(1));
    Placing::New { number: next.max(now.as_millis()), forgotten }
}

/// The first ones, until they have more bytes together than one may have.
pub(super) fn page(all: impl Iterator<Item = Batch>) -> Vec<Batch> {
    let (mut page, mut bytes) = (Vec::new(), 0);
    for batch in all {
        bytes += batch.bytes.len();
        page.push(batch);
        if bytes > MAX_BATCH {
            break;
        }
    }
    page
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::SecretKey;

    use super::*;

    fn id(seed: u8) -> EndpointId {
        SecretKey::from_bytes(&[seed; 32]).id()
    }

    fn at(seconds: u64) -> UnixTime {
        UnixTime::from_secs(seconds)
    }

    fn new(by: u8, bytes: Vec<u8>) -> NewBatch {
        NewBatch { user: id(1), by: id(by), expires: at(1000), bytes }
    }

    /// As a store does it.
    fn keep(known: &mut Vec<Batch>, new: NewBatch, now: UnixTime) {
        if let Placing::New { number, forgotten } = place(known, &new, now) {
            known.retain(|known| !forgotten.contains(&known.number));
            known.push(Batch { number, by: new.by, expires: new.expires, bytes: new.bytes });
        }
    }

    #[test]
    fn a_device_that_leaves_many_displaces_its_own_oldest_and_nobody_elses() {
        let mut known = Vec::new();
        keep(&mut known, new(2, vec![2]), at(1));
        for number in 0..100 {
            keep(&mut known, new(3, vec![3, number]), at(2));
        }
        assert_eq!(known.len(), 1 + MAX_OF_DEVICE);
        assert_eq!(known[0].by, id(2));
        assert_eq!(known[1].bytes, [3, 100 - MAX_OF_DEVICE as u8]);
        assert!(known.is_sorted_by_key(|known| known.number));
    }

    #[test]
    fn what_all_devices_leave_is_bounded_and_the_oldest_makes_room() {
        let mut known = Vec::new();
        for by in 2..9 {
            for number in 0..MAX_OF_DEVICE {
                keep(&mut known, new(by, vec![number as u8; MAX_BATCH]), at(1));
            }
        }
        let bytes: usize = known.iter().map(|known| known.bytes.len()).sum();
        assert!(bytes <= MAX_OF_USER && bytes > MAX_OF_USER - MAX_BATCH, "{bytes}");
        assert_eq!((known.first().unwrap().by, known.last().unwrap().by), (id(7), id(8)));
        // Keys without end, with next to nothing each.
        for by in 9..29 {
            for number in 0..MAX_OF_DEVICE {
                keep(&mut known, new(by, vec![number as u8]), at(1));
            }
        }
        assert_eq!(known.len(), MAX_OF_USER / LEAST);
    }

    #[test]
    fn the_same_again_changes_nothing_what_has_ended_goes_and_numbers_only_grow() {
        let mut known = Vec::new();
        keep(&mut known, new(2, vec![1]), at(1));
        let first = known[0].number;
        assert_eq!(place(&known, &new(2, vec![1]), at(5)), Placing::Known(at(1000)));
        // A clock that was set back.
        let next = Placing::New { number: first + 1, forgotten: Vec::new() };
        assert_eq!(place(&known, &new(2, vec![2]), at(0)), next);
        let over = Placing::New { number: at(1000).as_millis(), forgotten: vec![first] };
        assert_eq!(place(&known, &new(2, vec![1]), at(1000)), over);
    }
}
