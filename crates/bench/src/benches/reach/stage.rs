//! A relay with a server behind it, of any system, and clients that come one after the other.

use std::any::Any;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::talk;
use crate::lab::Homes;
use crate::system::Channel;

/// How often it is looked whether a connection is direct.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A relay and a server behind it, running.
pub(super) trait Stage {
    /// Connects from a fresh endpoint that is ready to, and waits for the server's first word.
    fn connect(&self, homes: &Homes) -> Result<Connected>;
}

/// A client's connection.
pub(super) struct Connected {
    channel: Channel,
    /// When the client began to dial.
    began: Instant,
    /// When the connection was there.
    since: Instant,
    is_direct: Box<dyn Fn() -> bool + Send>,
    /// What has to live as long.
    _kept: Box<dyn Any + Send>,
}

impl Connected {
    pub(super) fn new(
        channel: Channel,
        [began, since]: [Instant; 2],
        is_direct: impl Fn() -> bool + Send + 'static,
        kept: impl Any + Send,
    ) -> Self {
        Self { channel, began, since, is_direct: Box::new(is_direct), _kept: Box::new(kept) }
    }

    pub(super) fn is_direct(&self) -> bool {
        (self.is_direct)()
    }

    /// How long after it was dialled the connection was there.
    pub(super) fn connected_after(&self) -> Duration {
        self.since - self.began
    }

    /// How long after it was there the connection was direct; `None` if it is not within the limit.
    pub(super) fn direct_after(&self, limit: Duration) -> Option<Duration> {
        while !self.is_direct() {
            if self.since.elapsed() > limit {
                return None;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Some(self.since.elapsed())
    }

    /// When the first word was heard that was spoken at `since` or later; `None` if none is within the limit.
    pub(super) fn first_since(
        &mut self,
        homes: &Homes,
        since: u64,
        limit: Duration,
    ) -> Result<Option<Instant>> {
        let channel = &mut self.channel;
        let hearing = async move { tokio::time::timeout(limit, talk::first_since(channel, since)).await };
        match homes.client.wait("hear", hearing)? {
            Ok(heard) => Ok(Some(heard?)),
            Err(_) => Ok(None),
        }
    }
}
