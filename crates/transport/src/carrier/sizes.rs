//! Between which addresses large packets may vanish.
//!
//! Where a link carries smaller packets than others on the way, and the message that says so is dropped (RFC
//! 2923), small segments pass and large ones do not: a path is answered, and then stands still. TCP can be
//! told to keep its segments small only before it connects, and then keeps both directions small.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::lock;

/// The size of a segment that passes wherever IPv6 does, with room for options and tunnels.
pub(crate) const SMALL_SEGMENT: u32 = 1160;

/// What was learnt is worth asking again after this.
const EXPIRY: Duration = Duration::from_secs(600);
const MAX_PAIRS: usize = 256;

/// What is known of all pairs of addresses: where a path that had been answered fell silent, and when.
#[derive(Debug, Default)]
pub(crate) struct Sizes(Mutex<HashMap<(IpAddr, IpAddr), Instant>>);

impl Sizes {
    /// A path between these that had been answered has fallen silent. It may be dead altogether: then small
    /// segments do no harm to the next one.
    pub(crate) fn silent(&self, local: IpAddr, remote: IpAddr, now: Instant) {
        let mut pairs = lock(&self.0);
        pairs.retain(|_, at| now.saturating_duration_since(*at) < EXPIRY);
        if pairs.len() >= MAX_PAIRS {
            pairs.clear();
        }
        pairs.insert((local.to_canonical(), remote.to_canonical()), now);
    }

    /// Whether segments to there should be small. Without a local address, whichever it will be.
    pub(crate) fn are_doubtful(&self, local: Option<IpAddr>, remote: SocketAddr, now: Instant) -> bool {
        let (local, remote) = (local.map(|ip| ip.to_canonical()), remote.ip().to_canonical());
        lock(&self.0).iter().any(|((from, to), at)| {
            *to == remote
                && local.is_none_or(|local| local == *from)
                && now.saturating_duration_since(*at) < EXPIRY
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn segments_are_small_where_a_path_fell_silent_until_that_is_long_ago() {
        let (sizes, now) = (Sizes::default(), Instant::now());
        let port = SocketAddr::new(THERE, 1);
        assert!(!sizes.are_doubtful(None, port, now));
        sizes.silent(HERE, THERE, now);
        assert!(sizes.are_doubtful(None, port, now));
        assert!(sizes.are_doubtful(Some(HERE), port, now));
        assert!(!sizes.are_doubtful(Some(THERE), port, now), "another network");
        assert!(!sizes.are_doubtful(Some(HERE), SocketAddr::new(HERE, 1), now), "another peer");
        assert!(!sizes.are_doubtful(Some(HERE), port, now + EXPIRY));
    }

    #[test]
    fn what_is_known_is_bounded() {
        let (sizes, now) = (Sizes::default(), Instant::now());
        for number in 0..1000u32 {
            sizes.silent(HERE, IpAddr::V4(Ipv4Addr::from(number)), now);
        }
        assert!(lock(&sizes.0).len() <= MAX_PAIRS);
    }
}
