//! A small HTTP/1.1 server of one file, which it sends at a steady rate.

use std::io::SeekFrom;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::FutureExt;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use hyper::{Method, Request, Response, StatusCode};
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncSeekExt as _, ReadBuf, Take};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::web::{Answer, Answering, serve, whole};

const CHUNK: usize = 64 * 1024;

/// A running server. Stops when dropped.
pub(super) struct Web {
    pub(super) address: SocketAddr,
    requests: Arc<AtomicU64>,
    /// The rest is sent as fast as it goes.
    hurries: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Web {
    /// Serves `file` as `/NAME`, at most `rate` bytes a second to each client.
    pub(super) async fn start(file: PathBuf, rate: u64) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot start the web server")?;
        let address = listener.local_addr().context("cannot start the web server")?;
        let requests = Arc::new(AtomicU64::new(0));
        let (counted, hurries) = (requests.clone(), Arc::<AtomicBool>::default());
        let pace = Pace { rate, hurries: hurries.clone() };
        let answering: Answering = Arc::new(move |request| {
            counted.fetch_add(1, Ordering::Relaxed);
            FutureExt::boxed(answer(request, file.clone(), pace.clone()))
        });
        let task = tokio::spawn(FutureExt::boxed(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(FutureExt::boxed(serve(socket, answering.clone())));
            }
        }));
        Ok(Self { address, requests, hurries, task })
    }

    /// Sends as fast as it goes from now on.
    pub(super) fn hurry(&self) {
        self.hurries.store(true, Ordering::Relaxed);
    }

    /// How many requests came.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How fast bytes leave.
#[derive(Clone)]
struct Pace {
    /// Bytes a second.
    rate: u64,
    /// As fast as it goes instead.
    hurries: Arc<AtomicBool>,
}

async fn answer(request: Request<Incoming>, file: PathBuf, pace: Pace) -> Answer {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return plain(StatusCode::METHOD_NOT_ALLOWED);
    }
    if request.uri().path().strip_prefix('/') != Some(name) {
        return plain(StatusCode::NOT_FOUND);
    }
    let range = request.headers().get(RANGE).and_then(|value| value.to_str().ok());
    let sent = send(&file, range, request.method() == Method::HEAD, pace).await;
    sent.unwrap_or_else(|_| plain(StatusCode::INTERNAL_SERVER_ERROR))
}

fn plain(status: StatusCode) -> Answer {
    let mut response = Response::new(whole(""));
    *response.status_mut() = status;
    response
}

async fn send(path: &Path, range: Option<&str>, head: bool, pace: Pace) -> Result<Answer> {
    let mut file = File::open(path).await?;
    let size = file.metadata().await?.len();
    let mut builder =
        Response::builder().header(ACCEPT_RANGES, "bytes").header(CONTENT_TYPE, "application/octet-stream");
    let part = match range.map(|range| parse_range(range, size)) {
        None => 0..=size.saturating_sub(1),
        Some(Some(part)) => {
            let described = format!("bytes {}-{}/{size}", part.start(), part.end());
            builder = builder.status(StatusCode::PARTIAL_CONTENT).header(CONTENT_RANGE, described);
            part
        }
        Some(None) => {
            let builder = builder.status(StatusCode::RANGE_NOT_SATISFIABLE);
            return Ok(builder.header(CONTENT_RANGE, format!("bytes */{size}")).body(whole(""))?);
        }
    };
    let length = if size == 0 { 0 } else { part.end() - part.start() + 1 };
    builder = builder.header(CONTENT_LENGTH, length);
    if head {
        return Ok(builder.body(whole(""))?);
    }
    file.seek(SeekFrom::Start(*part.start())).await?;
    Ok(builder.body(Paced::new(file.take(length), pace).boxed_unsync())?)
}

/// One range of RFC 9110 §14.1.2; several are not offered.
fn parse_range(text: &str, size: u64) -> Option<RangeInclusive<u64>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let end = size.checked_sub(1)?;
    let range = match (first.is_empty(), last.is_empty()) {
        (true, true) => return None,
        (true, false) => size.saturating_sub(last.parse().ok().filter(|n| *n > 0)?)..=end,
        (false, true) => first.parse().ok()?..=end,
        (false, false) => first.parse().ok()?..=last.parse::<u64>().ok()?.min(end),
    };
    (range.start() <= range.end()).then_some(range)
}

/// A file's bytes at a steady rate: what a slow moment held up is not made up for, so that buffers
/// on the way stay short.
struct Paced {
    file: Take<File>,
    ticks: Interval,
    hurries: Arc<AtomicBool>,
    due: bool,
}

impl Paced {
    fn new(file: Take<File>, Pace { rate, hurries }: Pace) -> Self {
        let mut ticks = interval(Duration::from_secs_f64(CHUNK as f64 / rate.max(1) as f64));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { file, ticks, hurries, due: false }
    }
}

impl Body for Paced {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        if !self.due {
            if !self.hurries.load(Ordering::Relaxed) {
                std::task::ready!(self.ticks.poll_tick(cx));
            }
            self.due = true;
        }
        let mut buffer = vec![0; CHUNK];
        let mut read = ReadBuf::new(&mut buffer);
        std::task::ready!(Pin::new(&mut self.file).poll_read(cx, &mut read))?;
        self.due = false;
        let n = read.filled().len();
        buffer.truncate(n);
        Poll::Ready((n > 0).then(|| Ok(Frame::data(buffer.into()))))
    }
}

#[cfg(test)]
mod tests {
    use super::parse_range;

    #[test]
    fn ranges() {
        let cases = [
            ("bytes=0-0", Some(0..=0)),
            ("bytes=2-", Some(2..=9)),
            ("bytes=-3", Some(7..=9)),
            ("bytes=-30", Some(0..=9)),
            ("bytes=5-100", Some(5..=9)),
            ("bytes=10-", None),
            ("bytes=5-4", None),
            ("bytes=-0", None),
            ("bytes=-", None),
            ("lines=1-2", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_range(text, 10), expected, "{text}");
        }
        assert_eq!(parse_range("bytes=0-", 0), None);
    }
}
