//! On what a result was measured. A number without this cannot be compared with another.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// How long is looked at what else the machine does.
const LOOK: Duration = Duration::from_secs(1);

/// The commit that this program was built from.
pub(crate) const COMMIT: &str = env!("WHIMBREL_COMMIT");

/// The machine, as far as it matters to results.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_mib: u64,
    pub(crate) kernel: String,
    /// Of TCP; the same for every system that runs on it.
    pub(crate) congestion_control: String,
    /// Runnable tasks over the last minute, before the bench began: what disturbed it, or the bench before.
    pub(crate) load: f64,
    /// Percent of the processors' time that was used in the second before the bench began: what disturbed it.
    pub(crate) busy: f64,
}

fn file(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Time of all processors together, since the machine started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    used: u64,
    all: u64,
}

impl Ticks {
    fn now() -> Option<Self> {
        Self::of(&file("/proc/stat"))
    }

    /// From the kernel's first line: user, nice, system, idle, waiting for disks, interrupts, soft ones,
    /// stolen.
    fn of(text: &str) -> Option<Self> {
        let times = text.strip_prefix("cpu ")?.lines().next()?.split_whitespace();
        let times: Vec<u64> = times.take(8).map_while(|time| time.parse().ok()).collect();
        let all: u64 = times.iter().sum();
        Some(Self { used: all - times.get(3)? - times.get(4)?, all })
    }

    /// Percent that was used since an earlier moment.
    fn used_since(self, before: Self) -> f64 {
        let (used, all) = (self.used.saturating_sub(before.used), self.all.saturating_sub(before.all));
        used as f64 / all.max(1) as f64 * 100.0
    }
}

fn busy() -> f64 {
    let before = Ticks::now();
    std::thread::sleep(LOOK);
    before.zip(Ticks::now()).map_or(f64::NAN, |(before, now)| now.used_since(before))
}

impl Machine {
    /// Looks at the machine for a second.
    pub(crate) fn here() -> Self {
        let memory = field(&file("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kib: u64 = memory.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        Self {
            cpu: field(&file("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: kib / 1024,
            kernel: file("/proc/sys/kernel/osrelease"),
            congestion_control: file("/proc/sys/net/ipv4/tcp_congestion_control"),
            load: file("/proc/loadavg").split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0),
            busy: busy(),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cpu, cores, kernel, congestion_control, busy, .. } = self;
        write!(f, "{cpu}, {cores} cores, Linux {kernel}, TCP {congestion_control}, {busy:.0} % busy")
    }
}

/// The time of day in UTC, as in RFC 3339.
pub(crate) fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day since 1970-01-01, counting years from March so that the leap day
/// comes last.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_neither_idle_nor_waited_for_disks_is_used() {
        let ticks = |text| Ticks::of(text).unwrap();
        let before = ticks("cpu  100 0 50 800 50 0 0 0 7 7\ncpu0 1 2 3\n");
        assert_eq!(before, Ticks { used: 150, all: 1000 });
        let after = ticks("cpu  110 0 50 870 60 5 3 2 7 7\n");
        assert!((after.used_since(before) - 20.0).abs() < 1e-9, "{}", after.used_since(before));
        assert_eq!(Ticks::of("cpu0 1 2 3 4 5"), None);
        assert!(Ticks::now().is_some());
    }

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(20_819), (2027, 1, 1));
    }
}
