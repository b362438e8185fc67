//! A connection that waits for its peer without any path, packed into the bytes of its snapshot: an endpoint
//! may keep thousands of them.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use super::Connection;
use super::contact::Contact;
use super::reach::Reach;
use super::sharing::Sharing;
use crate::config::Config;
use crate::content::Content;
use crate::event::Events;
use crate::ids::Side;
use crate::path::Path;
use crate::session::streams::Limits;
use crate::stream::Pool;

/// What is due within this keeps it awake: whoever looks after those that rest may look that seldom.
const LEAST_REST: Duration = Duration::from_secs(600);

/// A peer that was written down has said that it will be away for longer than a move takes. The least that
/// [`rest_after`](crate::Timeouts::rest_after) may be.
const AFTER_SUSPENDED: Duration = Duration::from_millis(100);

/// A point in time, or none, as nanoseconds since the connection began: half as large as an [`Instant`].
#[derive(Debug, Clone, Copy)]
struct Moment(Option<NonZeroU64>);

impl Moment {
    fn of(at: Option<Instant>, origin: Instant) -> Self {
        Self(at.and_then(|at| {
            let nanos = at.saturating_duration_since(origin).as_nanos();
            // One more, because none was before.
            NonZeroU64::new(u64::try_from(nanos).unwrap_or(u64::MAX).saturating_add(1))
        }))
    }

    fn at(self, origin: Instant) -> Option<Instant> {
        self.0.and_then(|nanos| origin.checked_add(Duration::from_nanos(nanos.get() - 1)))
    }
}

/// A connection that rests: its [snapshot](Connection::snapshot), and what is not in there.
#[derive(Debug)]
pub struct Resting {
    snapshot: Box<[u8]>,
    /// What the configuration says: the largest window, what may wait unsent, and the buffers for sending.
    limits: [u64; 4],
    pool: Pool,
    contact: [Moment; 2],
    reach: [Moment; 3],
    /// Somebody follows outages.
    followed: bool,
    sharing: Sharing,
    /// When the connection was how old. (When it was told the time last is in the snapshot.)
    origin: Instant,
    age: Duration,
    joined: u64,
    buffered: u64,
    deadline: Moment,
}

impl Connection {
    /// From when on the connection may [rest](Self::rest), if nothing happens until then. `None` if there is
    /// a path, or something to be told or remembered that a snapshot does not hold. Only a server rests,
    /// since a client dials.
    #[must_use]
    pub fn rests_from(&self) -> Option<Instant> {
        // What the peer says it had of a lost path goes no second time.
        let is_idle = |path: &Path| !path.is_live() && !path.outgoing.contents().any(Content::is_data);
        let detached = self.contact.detached_since()?;
        let may_rest = self.side() == Side::Server
            && !self.held
            && self.is_confirmed()
            && self.session.may_rest()
            && self.events.is_empty()
            && self.paths.values().all(is_idle);
        let after = match self.session.identity.tenure.is_peer_away() {
            true => AFTER_SUSPENDED,
            false => self.timeouts.rest_after,
        };
        may_rest.then(|| detached.checked_add(after)).flatten()
    }

    /// Whether the connection may rest at `now`: nothing is due within ten minutes either.
    #[must_use]
    pub fn may_rest(&self, now: Instant) -> bool {
        let is_due_soon = |at: Instant| at.saturating_duration_since(now) < LEAST_REST;
        self.rests_from().is_some_and(|from| from <= now) && !self.poll_timeout().is_some_and(is_due_soon)
    }

    /// Packs the connection, if it [may rest](Self::may_rest). It goes on from what this returns.
    #[must_use]
    pub fn rest(&self, now: Instant) -> Option<Resting> {
        if !self.may_rest(now) {
            return None;
        }
        let snapshot = self.snapshot()?.into_boxed_slice();
        // Another owner may have handed over counts that are too high by now.
        let was_read_back = self.session.identity.tenure.generation() > 0;
        if was_read_back && Self::read_back(Config::default(), &snapshot, now, |_| true).is_err() {
            return None;
        }
        let Limits { window, unsent, ref pool, .. } = *self.session.streams.limits();
        let [stream_send_buffer, send_buffer] = self.session.streams.send_limits();
        let origin = self.clock.origin();
        let moment = |at| Moment::of(at, origin);
        Some(Resting {
            snapshot,
            limits: [window, unsent, stream_send_buffer, send_buffer],
            pool: pool.clone(),
            contact: self.contact.moments().map(moment),
            reach: self.reach.moments().map(moment),
            followed: self.reach.is_followed(),
            sharing: self.sharing,
            origin,
            age: self.clock.since_begin(origin),
            joined: self.joined,
            buffered: self.buffered(),
            deadline: moment(self.poll_timeout()),
        })
    }
}

impl Resting {
    /// The connection as it was. Its events are gone: the driver looks at everything anew.
    #[must_use]
    pub fn wake(&self) -> Connection {
        let [stream_window, stream_unsent, stream_send_buffer, send_buffer] = self.limits;
        let config = Config {
            stream_window,
            stream_unsent,
            stream_send_buffer,
            send_buffer,
            scheduler: self.sharing.kind(),
            pool: self.pool.clone(),
            ..Config::default()
        };
        let read = Connection::read_back(config, &self.snapshot, self.origin, |_| true);
        #[expect(clippy::expect_used, reason = "nobody else had the bytes since they were written")]
        let mut connection = read.expect("a snapshot of this process");
        connection.contact = Contact::knowing(self.contact.map(|moment| moment.at(self.origin)));
        let moments = self.reach.map(|moment| moment.at(self.origin));
        connection.reach = Reach::knowing(self.origin, moments, self.followed);
        connection.sharing = self.sharing;
        connection.clock.begin_again(self.origin, self.age);
        (connection.joined, connection.events) = (self.joined, Events::default());
        connection
    }

    /// When it has to be woken, whatever happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadline.at(self.origin)
    }

    /// As [`Connection::detached_since`].
    #[must_use]
    pub fn detached_since(&self) -> Option<Instant> {
        let [detached_since, _] = self.contact;
        detached_since.at(self.origin)
    }

    /// As [`Connection::buffered`].
    #[must_use]
    pub fn buffered(&self) -> u64 {
        self.buffered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_the_same_to_the_nanosecond_and_none_stays_none() {
        let origin = Instant::now();
        for nanos in [0, 1, 999_999_999, u64::MAX / 4] {
            let at = origin + Duration::from_nanos(nanos);
            assert_eq!(Moment::of(Some(at), origin).at(origin), Some(at));
        }
        assert_eq!(Moment::of(None, origin).at(origin), None);
    }

    #[test]
    fn what_rests_takes_three_cache_lines_beside_its_snapshot() {
        assert!(size_of::<Resting>() <= 192, "{}", size_of::<Resting>());
    }
}
