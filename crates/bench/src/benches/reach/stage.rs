//! A system with its relays and a server behind them, and clients that come one after the other.

use std::any::Any;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{talk, whimbrel_stage};
use crate::lab::Homes;
use crate::system::Channel;

/// How often it is looked whether a connection is direct.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A system whose relayed connections become direct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    Whimbrel,
    /// With its own relay, which serves address discovery over QUIC as well.
    Iroh,
}

impl System {
    /// What was compiled in.
    pub(super) fn all() -> &'static [Self] {
        if cfg!(feature = "peers") { &[Self::Whimbrel, Self::Iroh] } else { &[Self::Whimbrel] }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Whimbrel => "whimbrel",
            Self::Iroh => "iroh",
        }
    }

    /// Starts a relay at port 443, and a server behind it. Whimbrel's relay is on the first relay's host, iroh's on
    /// the last one's.
    pub(super) fn stage(self, homes: &Homes) -> Result<Box<dyn Stage>> {
        match self {
            Self::Whimbrel => Ok(Box::new(whimbrel_stage::Whimbrel::start(homes)?)),
            #[cfg(feature = "peers")]
            Self::Iroh => Ok(Box::new(super::iroh_stage::Iroh::start(homes)?)),
            #[cfg(not(feature = "peers"))]
            Self::Iroh => anyhow::bail!("iroh is not compiled in"),
        }
    }
}

/// Starts all systems that were compiled in.
pub(super) fn all(homes: &Homes) -> Result<Vec<(System, Box<dyn Stage>)>> {
    let start = |system: &System| {
        let stage = system.stage(homes).with_context(|| format!("{} cannot start", system.name()))?;
        anyhow::Ok((*system, stage))
    };
    System::all().iter().map(start).collect()
}

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
