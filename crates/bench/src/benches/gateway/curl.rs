//! curl, whose output is looked at as it comes.

use std::io::Read;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sha2::{Digest as _, Sha256};
use whimbrel_lab::{Host, HostChild};

use crate::lab::program;

const PIECE: usize = 64 * 1024;
/// What names a proxy to curl: there is none but the one in the flags.
const PROXIES: [&str; 5] = ["http_proxy", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"];
/// How often it is looked how much has come.
const LOOK: Duration = Duration::from_millis(2);
/// For curl to end behind the last byte.
const END: Duration = Duration::from_secs(10);

/// What came.
#[derive(Debug, Clone)]
pub(super) struct Fetched {
    pub(super) bytes: u64,
    pub(super) digest: [u8; 32],
    /// From curl's start to the last byte.
    pub(super) took: Duration,
    /// The longest time between two pieces.
    pub(super) silence: Duration,
}

impl Fetched {
    /// Of programs' bytes.
    pub(super) fn megabits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e6 / self.took.as_secs_f64()
    }
}

/// A download. It is killed when this is dropped.
pub(super) struct Curl {
    child: HostChild,
    come: Arc<AtomicU64>,
    fetched: Receiver<std::io::Result<Fetched>>,
    end: Instant,
}

impl Curl {
    /// Gets a URL with these flags, within a limit.
    pub(super) fn start(host: &Host, url: &str, flags: &[&str], limit: Duration) -> Result<Self> {
        let curl = program::find("curl", "curl")?;
        let seconds = limit.as_secs().max(1).to_string();
        // Without settings of the user's.
        let usual = ["-q", "-sS", "--fail", "--max-time", &seconds];
        let command = host.command(&curl.to_string_lossy()).args(usual).args(flags).arg(url);
        let began = Instant::now();
        let mut child = command
            .with(|command| {
                for name in PROXIES {
                    command.env_remove(name);
                }
                command.stdin(Stdio::null()).stdout(Stdio::piped());
            })
            .spawn()?;
        let output = child.child().stdout.take().context("curl has no output")?;
        let (come, (sender, fetched)) = (Arc::<AtomicU64>::default(), mpsc::channel());
        let counted = come.clone();
        // It ends with curl.
        std::thread::spawn(move || {
            // A trial that was given up has no receiver any more.
            let _ = sender.send(read(output, began, &counted));
        });
        Ok(Self { child, come, fetched, end: began + limit })
    }

    /// Waits until so many bytes have come. False if curl has ended before.
    pub(super) fn wait_for(&mut self, bytes: u64) -> Result<bool> {
        while self.come.load(Ordering::Relaxed) < bytes {
            if self.child.child().try_wait()?.is_some() {
                return Ok(self.come.load(Ordering::Relaxed) >= bytes);
            }
            if Instant::now() > self.end {
                bail!("{} of {bytes} bytes came in time", self.come.load(Ordering::Relaxed));
            }
            std::thread::sleep(LOOK);
        }
        Ok(true)
    }

    /// Waits for the end. What came is worth nothing unless curl is content.
    pub(super) fn finish(mut self) -> Result<Fetched> {
        let left = self.end.saturating_duration_since(Instant::now()) + END;
        let fetched = self.fetched.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => anyhow::anyhow!("curl does not end"),
            RecvTimeoutError::Disconnected => anyhow::anyhow!("the output of curl was not read"),
        })??;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("curl ends with {status} after {} bytes", fetched.bytes);
        }
        Ok(fetched)
    }
}

/// Reads to the end.
fn read(mut output: impl Read, began: Instant, come: &AtomicU64) -> std::io::Result<Fetched> {
    let (mut hash, mut piece) = (Sha256::new(), vec![0; PIECE]);
    let (mut bytes, mut silence, mut last) = (0, Duration::ZERO, None::<Instant>);
    loop {
        let length = output.read(&mut piece)?;
        if length == 0 {
            break;
        }
        let now = Instant::now();
        silence = silence.max(last.map_or(Duration::ZERO, |last| now - last));
        last = Some(now);
        hash.update(&piece[..length]);
        bytes += length as u64;
        come.store(bytes, Ordering::Relaxed);
    }
    let took = last.unwrap_or_else(Instant::now) - began;
    Ok(Fetched { bytes, digest: hash.finalize().into(), took, silence })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_lab::{Lab, require};

    use super::*;
    use crate::web::{Content, WebServer};

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn curl_is_watched_and_believed_only_when_it_is_content() {
        if !require!() {
            return;
        }
        let host = Lab::new().unwrap().host("host").unwrap();
        let (runtime, content) = (host.runtime(1).unwrap(), Content::new());
        let at = ([127, 0, 0, 1], 80).into();
        let server = WebServer::start(&runtime, at, content.clone()).unwrap();
        let url = |path: &str| format!("http://{}/{path}", server.address);
        let mut curl = Curl::start(&host, &url("3000000"), &[], LIMIT).unwrap();
        assert!(curl.wait_for(1_000_000).unwrap());
        let fetched = curl.finish().unwrap();
        assert_eq!((fetched.bytes, fetched.digest), (3_000_000, content.digest(3_000_000)));
        assert!(fetched.took > fetched.silence && fetched.megabits_per_second() > 0.0, "{fetched:?}");
        let mut absent = Curl::start(&host, &url("absent"), &[], LIMIT).unwrap();
        assert!(!absent.wait_for(1).unwrap());
        assert!(absent.finish().is_err());
    }
}
