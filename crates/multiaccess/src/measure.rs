//! Measures for as long as the manager runs: often while there is traffic, seldom at rest, and at once when
//! the kernel tells of a change.

use crate::paths::Numbers;
use crate::shared::Shared;
use crate::watch::Watch;
use crate::{Paths, Survey};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A host that moves less than this, in bytes per second, is at rest: name look-ups, clocks, keepalives.
const AT_REST: f64 = 16_384.0;
/// For so long after a question more are expected.
const EXPECTED: Duration = Duration::from_secs(1);
/// Asking for all TCP connections takes milliseconds where there are thousands. At most one part in so many
/// of the time is spent on it.
const SHARE: u32 = 50;
/// Between attempts to open the kernel's sockets anew.
const PAUSE: Duration = Duration::from_secs(1);

/// Measures one host.
pub(crate) struct Measuring {
    survey: Survey,
    watch: Watch,
    numbers: Numbers,
    sockets_due: Instant,
}

impl Measuring {
    /// Opens the sockets to the kernel, and measures once.
    pub(crate) async fn begin(shared: &Shared) -> io::Result<Self> {
        let mut measuring = Self {
            // Before the first look, so that nothing is missed in between.
            watch: Watch::open()?,
            survey: Survey::open()?,
            numbers: Numbers::new(&shared.settings),
            sockets_due: Instant::now(),
        };
        measuring.once(shared).await?;
        Ok(measuring)
    }

    /// Measures until it is dropped.
    pub(crate) async fn run(mut self, shared: Arc<Shared>) {
        let mut is_busy = true;
        let mut asked = Instant::now();
        loop {
            let now = Instant::now();
            let is_expected = now.duration_since(asked) < EXPECTED;
            let due = now + shared.settings.pause(is_busy || is_expected);
            let changed = tokio::select! {
                () = tokio::time::sleep_until(due) => Ok(false),
                changed = self.watch.changed() => changed.map(|()| true),
                () = shared.asked.notified(), if !is_expected => {
                    asked = Instant::now();
                    Ok(false)
                }
            };
            let measured = match changed {
                Ok(changed) => {
                    if changed {
                        self.survey.routes_changed();
                    }
                    self.once(&shared).await
                }
                Err(error) => Err(error),
            };
            match measured {
                Ok(busy) => is_busy = busy,
                Err(error) => {
                    tracing::warn!(%error, "the kernel cannot be asked; its sockets are opened anew");
                    self.reopen().await;
                }
            }
        }
    }

    /// Measures, and says whether there is traffic.
    async fn once(&mut self, shared: &Shared) -> io::Result<bool> {
        let began = Instant::now();
        if began >= self.sockets_due {
            self.survey.round_trips().await?;
            self.sockets_due = began + began.elapsed() * SHARE;
        }
        let measured = self.survey.rates(shared.now()).await?;
        let moved: f64 = measured
            .iter()
            .flat_map(|path| [path.estimate.down.now, path.estimate.up.now])
            .flatten()
            .map(|rate| rate.0)
            .sum();
        let before = shared.paths();
        let paths = Paths::of(measured, &shared.settings, &mut self.numbers);
        if paths.differs_from(&before) {
            tracing::info!(paths = paths.present().count(), "interfaces, addresses or routes changed");
        }
        let is_scheduled = shared.publish(paths);
        Ok(moved >= AT_REST || is_scheduled)
    }

    /// Opens everything anew, however long that takes.
    async fn reopen(&mut self) {
        loop {
            tokio::time::sleep(PAUSE).await;
            match (Watch::open(), Survey::open()) {
                (Ok(watch), Ok(survey)) => {
                    (self.watch, self.survey) = (watch, survey);
                    return;
                }
                (Err(error), _) | (_, Err(error)) => {
                    tracing::warn!(%error, "the kernel's sockets cannot be opened");
                }
            }
        }
    }
}
