//! What the TCP connections of one address say of its path.

use std::net::IpAddr;
use std::time::Duration;
use whimbrel_access::{PathEstimate, Seconds};

/// What the kernel says of an established TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpConnection {
    /// Its local address.
    pub local: IpAddr,
    /// The smoothed round-trip time. `None`: nothing was acknowledged yet.
    pub srtt: Option<Duration>,
    /// How long ago something last came from the peer.
    pub heard: Duration,
    /// Segments that were sent with data, those that were sent again included.
    pub sent: u32,
    /// Segments that were sent again.
    pub sent_again: u32,
}

/// The round-trip times over one path: the smallest and the median (§V-E1), and what else its connections
/// tell.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RoundTrips {
    /// The smallest.
    pub min: Option<Duration>,
    /// The median; of two in the middle the smaller one.
    pub median: Option<Duration>,
    /// Connections, with or without a round-trip time.
    pub connections: u32,
    /// The share of segments that were sent again, 0 to 1. `None`: nothing was sent.
    pub loss: Option<f64>,
    /// How long ago one of them was last heard of.
    pub heard: Option<Duration>,
}

impl RoundTrips {
    /// Of these connections: all that one path has.
    pub fn of<'a>(connections: impl Iterator<Item = &'a TcpConnection>) -> Self {
        let mine: Vec<_> = connections.collect();
        let mut known: Vec<Duration> = mine.iter().filter_map(|one| one.srtt).collect();
        known.sort_unstable();
        let sum = |what: fn(&TcpConnection) -> u32| mine.iter().map(|one| u64::from(what(one))).sum::<u64>();
        let (sent, again) = (sum(|one| one.sent), sum(|one| one.sent_again));
        Self {
            min: known.first().copied(),
            median: known.get(known.len().saturating_sub(1) / 2).copied(),
            connections: u32::try_from(mine.len()).unwrap_or(u32::MAX),
            loss: (sent > 0).then(|| (again as f64 / sent as f64).min(1.0)),
            heard: mine.iter().filter(|one| one.srtt.is_some()).map(|one| one.heard).min(),
        }
    }

    /// The same as an estimate, without rates.
    pub fn estimate(&self) -> PathEstimate {
        let seconds = |time: Option<Duration>| time.map(|time| Seconds(time.as_secs_f64()));
        PathEstimate {
            srtt_min: seconds(self.min),
            srtt_median: seconds(self.median),
            connections: self.connections,
            loss: self.loss,
            age: seconds(self.heard),
            ..PathEstimate::default()
        }
    }
}

/// What the connections of a path told last. It counts while none of them tells anything: most networks are
/// idle most of the time, and what is large must not be kept off one for that.
#[cfg(any(target_os = "linux", test))]
#[derive(Debug, Clone, Default)]
pub(crate) struct Remembered {
    addresses: Vec<IpAddr>,
    /// What they told, and when.
    told: Option<(Duration, RoundTrips)>,
}

#[cfg(any(target_os = "linux", test))]
impl Remembered {
    /// Takes in what the connections of a path with these addresses tell now, and returns what is known. How
    /// long ago one was heard last goes on to grow. The time is of a clock that never goes back.
    pub(crate) fn take(&mut self, now: Duration, addresses: &[IpAddr], found: RoundTrips) -> RoundTrips {
        if self.addresses != addresses {
            // Where none of them stays it is another network.
            let stays = addresses.iter().any(|address| self.addresses.contains(address));
            *self = Self { addresses: addresses.to_vec(), told: self.told.filter(|_| stays) };
        }
        if found.min.is_some() {
            self.told = Some((now, found));
            return found;
        }
        let Some((at, RoundTrips { min, median, heard, .. })) = self.told else { return found };
        let heard = heard.map(|heard| heard.saturating_add(now.saturating_sub(at)));
        RoundTrips { min, median, heard, ..found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(host: u8, srtt: Option<u64>, sent: u32, sent_again: u32) -> TcpConnection {
        TcpConnection {
            local: IpAddr::from([10, 0, 0, host]),
            srtt: srtt.map(Duration::from_millis),
            heard: Duration::from_secs(u64::from(sent)),
            sent,
            sent_again,
        }
    }

    #[test]
    fn the_smallest_the_median_and_the_newest_count_and_losses_by_what_was_sent() {
        let all = [
            connection(1, Some(30), 100, 1),
            connection(1, Some(10), 50, 0),
            connection(3, Some(20), 50, 1),
            connection(1, None, 0, 0),
        ];
        let found = RoundTrips::of(all.iter());
        assert_eq!(found.min, Some(Duration::from_millis(10)));
        assert_eq!(found.median, Some(Duration::from_millis(20)));
        assert_eq!((found.connections, found.loss), (4, Some(0.01)));
        assert_eq!(found.heard, Some(Duration::from_secs(50)));
    }

    #[test]
    fn a_path_without_connections_is_unknown() {
        let found = RoundTrips::of([].iter());
        assert_eq!(found, RoundTrips::default());
        assert!(found.estimate().needs_exploring());
    }

    #[test]
    fn what_was_told_counts_until_the_path_has_other_addresses_and_grows_old() {
        let addresses = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let (old, both, new) = (&addresses[..1], &addresses[..], &addresses[1..]);
        let told = RoundTrips::of([connection(1, Some(30), 2, 1)].iter());
        let mut remembered = Remembered::default();
        let mut at = |seconds, addresses: &[IpAddr], found| {
            remembered.take(Duration::from_secs(seconds), addresses, found)
        };
        let nothing = RoundTrips::default();
        assert_eq!(at(0, old, nothing), nothing);
        assert_eq!(at(1, old, told), told);
        let later = at(11, old, nothing);
        assert_eq!((later.min, later.median), (told.min, told.median));
        // It had been heard two seconds before.
        assert_eq!(later.heard, Some(Duration::from_secs(12)));
        assert_eq!((later.connections, later.loss), (0, None));
        // One of which nothing was acknowledged yet tells nothing.
        let beside = at(12, old, RoundTrips::of([connection(1, None, 0, 0)].iter()));
        assert_eq!((beside.min, beside.connections), (told.min, 1));
        assert_eq!(at(13, both, nothing).min, told.min);
        assert_eq!(at(14, new, nothing).min, told.min);
        assert_eq!(at(15, old, nothing), nothing);
    }

    #[test]
    fn the_median_of_two_is_the_smaller_one() {
        let all = [connection(1, Some(30), 1, 0), connection(1, Some(10), 1, 0)];
        let found = RoundTrips::of(all.iter());
        assert_eq!(found.median, Some(Duration::from_millis(10)));
    }
}
