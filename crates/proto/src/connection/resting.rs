//! A connection that waits for its peer without any path, packed into the bytes of its snapshot: an endpoint
//! may keep thousands of them.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use super::Connection;
use super::contact::Contact;
use super::packed::Packed;
use super::reach::Reach;
use super::sharing::Sharing;
use crate::config::Config;
use crate::content::Content;
use crate::error::DecodeError;
use crate::event::Events;
use crate::ids::Side;
use crate::path::Path;
use crate::scheduler::SchedulerKind;
use crate::session::streams::Limits;
use crate::snapshot;
use crate::stream::Pool;
use crate::varint::Reader;

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
            // One more, because none was before.
            NonZeroU64::new(nanos(at.saturating_duration_since(origin)).saturating_add(1))
        }))
    }

    fn at(self, origin: Instant) -> Option<Instant> {
        self.0.and_then(|nanos| origin.checked_add(Duration::from_nanos(nanos.get() - 1)))
    }

    fn write_down(self, out: &mut Vec<u8>) {
        snapshot::number(out, self.0.map_or(0, NonZeroU64::get));
    }

    fn read_back(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self(NonZeroU64::new(reader.varint()?)))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A connection that rests.
#[derive(Debug)]
pub struct Resting {
    /// What is neither in its [snapshot](Connection::snapshot) nor here, and behind that the snapshot.
    bytes: Packed,
    pool: Pool,
    scheduler: SchedulerKind,
    /// Somebody follows outages.
    followed: bool,
    /// What moments count from.
    origin: Instant,
    detached_since: Moment,
    deadline: Moment,
    buffered: u64,
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
        let mut bytes = Vec::new();
        self.write_beside(&mut bytes);
        let beside = bytes.len();
        if !self.write_snapshot(&mut bytes) {
            return None;
        }
        // Another owner may have handed over counts that are too high by now.
        let was_read_back = self.session.identity.tenure.generation() > 0;
        if was_read_back && Self::read_back(Config::default(), &bytes[beside..], now, |_| true).is_err() {
            return None;
        }
        let origin = self.clock.origin();
        Some(Resting {
            bytes: Packed::new(bytes),
            pool: self.session.streams.limits().pool.clone(),
            scheduler: self.sharing.kind(),
            followed: self.reach.is_followed(),
            origin,
            detached_since: Moment::of(self.contact.detached_since(), origin),
            deadline: Moment::of(self.poll_timeout(), origin),
            buffered: self.buffered(),
        })
    }

    /// Writes down what a connection of this process needs beside its snapshot: what its configuration says,
    /// since when it is without paths and answers, what it has counted, and how old it was at its origin.
    fn write_beside(&self, out: &mut Vec<u8>) {
        let Limits { window, unsent, .. } = *self.session.streams.limits();
        let [stream_send_buffer, send_buffer] = self.session.streams.send_limits();
        snapshot::numbers(out, [window, unsent, stream_send_buffer, send_buffer]);
        let origin = self.clock.origin();
        let moments = self.contact.moments().into_iter().chain(self.reach.moments());
        moments.for_each(|at| Moment::of(at, origin).write_down(out));
        snapshot::numbers(out, self.sharing.counts());
        let age = self.clock.since_begin(origin);
        snapshot::numbers(out, [age.as_secs(), age.subsec_nanos().into(), self.joined]);
    }
}

impl Resting {
    /// The connection as it was. Its events are gone: the driver looks at everything anew.
    #[must_use]
    #[expect(clippy::expect_used, reason = "nobody else had the bytes since they were written")]
    pub fn wake(&self) -> Connection {
        let bytes = self.bytes.unpack().expect("what this process packed");
        self.read_back(&bytes).expect("a connection of this process")
    }

    fn read_back(&self, bytes: &[u8]) -> Result<Connection, DecodeError> {
        let mut reader = Reader::new(bytes);
        let [stream_window, stream_unsent, stream_send_buffer, send_buffer] =
            snapshot::read_numbers(&mut reader)?;
        let config = Config {
            stream_window,
            stream_unsent,
            stream_send_buffer,
            send_buffer,
            scheduler: self.scheduler,
            pool: self.pool.clone(),
            ..Config::default()
        };
        let mut moment = || Moment::read_back(&mut reader).map(|moment| moment.at(self.origin));
        let contact = Contact::knowing([moment()?, moment()?]);
        let reach = Reach::knowing(self.origin, [moment()?, moment()?, moment()?], self.followed);
        let sharing = Sharing::knowing(self.scheduler, snapshot::read_numbers(&mut reader)?);
        let [age_secs, age_nanos, joined] = snapshot::read_numbers(&mut reader)?;
        let age = Duration::from_secs(age_secs) + Duration::from_nanos(age_nanos);
        let mut connection = Connection::read_back(config, reader.rest(), self.origin, |_| true)?;
        (connection.contact, connection.reach, connection.sharing) = (contact, reach, sharing);
        connection.clock.begin_again(self.origin, age);
        (connection.joined, connection.events) = (joined, Events::default());
        Ok(connection)
    }

    /// When it has to be woken, whatever happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadline.at(self.origin)
    }

    /// As [`Connection::detached_since`].
    #[must_use]
    pub fn detached_since(&self) -> Option<Instant> {
        self.detached_since.at(self.origin)
    }

    /// As [`Connection::buffered`].
    #[must_use]
    pub fn buffered(&self) -> u64 {
        self.buffered
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn kept(moment: Moment) -> Moment {
        let mut out = Vec::new();
        moment.write_down(&mut out);
        Moment::read_back(&mut Reader::new(&out)).unwrap()
    }

    #[test]
    fn a_moment_is_the_same_to_the_nanosecond_and_none_stays_none() {
        let origin = Instant::now();
        for nanos in [0, 1, 999_999_999, u64::MAX / 4 - 1] {
            let at = origin + Duration::from_nanos(nanos);
            assert_eq!(kept(Moment::of(Some(at), origin)).at(origin), Some(at));
        }
        assert_eq!(kept(Moment::of(None, origin)).at(origin), None);
    }

    #[test]
    fn what_rests_takes_little_beside_its_bytes() {
        assert!(size_of::<Resting>() <= 72, "{}", size_of::<Resting>());
    }
}
