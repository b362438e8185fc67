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
/// of the time is spent on it: while there is traffic, and while there is none.
const SHARES: [u32; 2] = [50, 400];
/// What it takes at least, as far as that is counted: some hundred of them.
const LEAST_COST: Duration = Duration::from_millis(1);
/// Between attempts to open the kernel's sockets anew.
const PAUSE: Duration = Duration::from_secs(1);

/// Measures one host.
pub(crate) struct Measuring {
    survey: Survey,
    watch: Watch,
    numbers: Numbers,
    /// When all TCP connections were last asked for, and what that cost.
    sockets: Option<(Instant, Duration)>,
}

impl Measuring {
    /// Opens the sockets to the kernel, and measures once.
    pub(crate) async fn begin(shared: &Shared) -> io::Result<Self> {
        let mut measuring = Self {
            // Before the first look, so that nothing is missed in between.
            watch: Watch::open()?,
            survey: Survey::open()?,
            numbers: Numbers::new(&shared.settings),
            sockets: None,
        };
        measuring.once(shared, true).await?;
        Ok(measuring)
    }

    /// Measures until it is dropped.
    pub(crate) async fn run(mut self, shared: Arc<Shared>) {
        let mut is_busy = true;
        let mut asked = Instant::now();
        loop {
            let now = Instant::now();
            let is_expected = now.duration_since(asked) < EXPECTED;
            let often = is_busy || is_expected;
            let due = now + shared.settings.pause(often);
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
                        self.survey.changed();
                    }
                    self.once(&shared, often || changed).await
                }
                Err(error) => Err(error),
            };
            is_busy = match measured {
                Ok(is_busy) => is_busy,
                Err(error) => {
                    tracing::warn!(%error, "the kernel cannot be asked; its sockets are opened anew");
                    self.recover(&shared).await
                }
            };
        }
    }

    /// Measures, and says whether there is traffic.
    async fn once(&mut self, shared: &Shared, often: bool) -> io::Result<bool> {
        let began = Instant::now();
        let share = SHARES[usize::from(!often)];
        if self.sockets.is_none_or(|(last, cost)| began.duration_since(last) >= cost * share) {
            self.survey.round_trips().await?;
            let before = self.sockets.map_or(LEAST_COST, |(_, cost)| cost);
            self.sockets = Some((began, cost(began.elapsed(), before)));
        }
        let measured = self.survey.rates(shared.now()).await?;
        let moved: f64 = measured
            .iter()
            .flat_map(|path| [path.estimate.down.now, path.estimate.up.now])
            .flatten()
            .map(|rate| rate.0)
            .sum();
        let before = shared.paths();
        let mut paths = Paths::of(measured, &shared.settings, &mut self.numbers);
        paths.meter(&shared.metered());
        paths.set_wifi(shared.wifi());
        if paths.differs_from(&before) {
            tracing::info!(paths = paths.present().count(), "interfaces, addresses or routes changed");
        }
        let is_scheduled = shared.publish(paths);
        Ok(moved >= AT_REST || is_scheduled)
    }

    /// Opens everything anew and measures, however long that takes. Says whether there is traffic.
    async fn recover(&mut self, shared: &Shared) -> bool {
        loop {
            tokio::time::sleep(PAUSE).await;
            match self.reopen(shared).await {
                Ok(is_busy) => return is_busy,
                Err(error) => tracing::warn!(%error, "the kernel's sockets cannot be opened"),
            }
        }
    }

    /// What changed meanwhile was not heard of, so that all is asked for at once.
    async fn reopen(&mut self, shared: &Shared) -> io::Result<bool> {
        self.watch = Watch::open()?;
        self.survey.reopen()?;
        self.sockets = None;
        self.once(shared, true).await
    }
}

/// What asking cost that took so long. Most of a time that is much longer than before went to others, on a
/// machine that is busy: were all of it counted, nothing would be seen for many seconds. What stays is
/// believed within a few times.
fn cost(took: Duration, before: Duration) -> Duration {
    took.min(2 * before).max(LEAST_COST)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Settings;
    use whimbrel_lab::{Lab, LinkSpec, require};

    #[test]
    fn asking_that_took_long_for_once_is_not_put_off_for_long_and_what_stays_long_is() {
        let after = |millis: &[u64]| {
            millis.iter().fold(LEAST_COST, |before, millis| cost(Duration::from_millis(*millis), before))
        };
        // At rest the next time is after 800 ms, and not after 20 s.
        assert_eq!(after(&[50]), Duration::from_millis(2));
        assert_eq!(after(&[50, 1]), LEAST_COST);
        assert_eq!(after(&[50; 6]), Duration::from_millis(50));
    }

    #[test]
    fn what_changed_while_the_kernel_could_not_be_asked_is_known_as_soon_as_it_can_be() {
        if !require!() {
            return;
        }
        let lab = Lab::new().unwrap();
        let (host, other) = (lab.host("host").unwrap(), lab.host("other").unwrap());
        let link = lab.link(&host, &other, LinkSpec::default()).unwrap();
        link.end(&host).add_address("10.0.1.1/24").unwrap();
        let runtime = host.runtime(1).unwrap();
        let shared = Shared::new(Settings::from_toml("interval = 60000\nrest = 60000").unwrap()).unwrap();
        let mut measuring = runtime.block_on(Measuring::begin(&shared)).unwrap();
        let has = |address: &str| shared.paths().with_address(address.parse().unwrap()).is_some();
        assert!(has("10.0.1.1"));
        link.end(&host).add_address("10.0.2.1/24").unwrap();
        link.end(&host).del_address("10.0.1.1/24").unwrap();
        let recovering = async { tokio::time::timeout(PAUSE * 10, measuring.recover(&shared)).await };
        runtime.block_on(recovering).unwrap();
        assert!(has("10.0.2.1") && !has("10.0.1.1"));
    }
}
