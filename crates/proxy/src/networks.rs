//! How much came and went over each network, for who watches the proxy.

use crate::Duplex;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Interfaces come and go, some under new names: so many are told apart.
const MOST: usize = 32;
/// What all further ones are called together. No interface is: their names have no space in them.
const OTHERS: &str = "other networks";

/// What passed between a proxy and servers over one network.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetworkTraffic {
    /// The interface; `other networks` are all those beyond the first 32.
    pub network: String,
    /// Bytes that came.
    pub received: u64,
    /// Bytes that were sent.
    pub sent: u64,
}

#[derive(Default)]
struct Bytes {
    received: AtomicU64,
    sent: AtomicU64,
}

/// The networks that were used.
#[derive(Default)]
pub(crate) struct Networks(Mutex<Vec<(String, Arc<Bytes>)>>);

impl Networks {
    /// The same stream, whose bytes count for this network from now on. Where nobody chose one, none do.
    pub(crate) fn counted(&self, network: Option<&str>, stream: Box<dyn Duplex>) -> Box<dyn Duplex> {
        match network {
            Some(network) => Box::new(Counted { stream, bytes: self.of(network) }),
            None => stream,
        }
    }

    /// What passed until now, in the order in which networks were first used.
    pub(crate) fn traffic(&self) -> Vec<NetworkTraffic> {
        let told = |(network, bytes): &(String, Arc<Bytes>)| NetworkTraffic {
            network: network.clone(),
            received: bytes.received.load(Ordering::Relaxed),
            sent: bytes.sent.load(Ordering::Relaxed),
        };
        self.lock().iter().map(told).collect()
    }

    fn of(&self, network: &str) -> Arc<Bytes> {
        let mut used = self.lock();
        let find = |used: &[(String, Arc<Bytes>)], wanted: &str| {
            used.iter().find(|(name, _)| name == wanted).map(|(_, bytes)| Arc::clone(bytes))
        };
        if let Some(bytes) = find(&used, network) {
            return bytes;
        }
        let network = if used.len() < MOST { network } else { OTHERS };
        find(&used, network).unwrap_or_else(|| {
            let bytes = Arc::<Bytes>::default();
            used.push((network.to_owned(), Arc::clone(&bytes)));
            bytes
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, Arc<Bytes>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream whose bytes are counted.
struct Counted {
    stream: Box<dyn Duplex>,
    bytes: Arc<Bytes>,
}

impl Counted {
    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = written {
            self.bytes.sent.fetch_add(count as u64, Ordering::Relaxed);
        }
        written
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let came = (buffer.filled().len() - before) as u64;
        self.bytes.received.fetch_add(came, Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    fn traffic(network: &str, received: u64, sent: u64) -> NetworkTraffic {
        NetworkTraffic { network: network.to_owned(), received, sent }
    }

    #[tokio::test]
    async fn bytes_count_for_the_network_that_they_take_in_both_directions_and_pass_unchanged() {
        let networks = Networks::default();
        let (near, mut server) = tokio::io::duplex(1 << 10);
        let (other, mut second) = tokio::io::duplex(1 << 10);
        let (nobodys, _third) = tokio::io::duplex(1 << 10);
        let mut near = networks.counted(Some("wlan0"), Box::new(near));
        let mut other = networks.counted(Some("usb0"), Box::new(other));
        let mut nobodys = networks.counted(None, Box::new(nobodys));
        near.write_all(b"hello").await.unwrap();
        let written = near.write_vectored(&[IoSlice::new(b" and"), IoSlice::new(b" bye")]).await.unwrap();
        nobodys.write_all(b"not counted").await.unwrap();
        near.shutdown().await.unwrap();
        let mut read = String::new();
        server.read_to_string(&mut read).await.unwrap();
        assert!(read.starts_with("hello and") && read.len() == 5 + written, "{read}");
        second.write_all(b"123").await.unwrap();
        drop(second);
        assert_eq!(other.read_to_end(&mut Vec::new()).await.unwrap(), 3);
        let sent = read.len() as u64;
        assert_eq!(networks.traffic(), [traffic("wlan0", 0, sent), traffic("usb0", 3, 0)]);
        // Another connection over the same network counts with it.
        let (again, _server) = tokio::io::duplex(1 << 10);
        networks.counted(Some("wlan0"), Box::new(again)).write_all(b"x").await.unwrap();
        assert_eq!(networks.traffic()[0], traffic("wlan0", 0, sent + 1));
    }

    #[tokio::test]
    async fn interfaces_that_come_under_ever_new_names_take_no_more_than_a_bound() {
        let networks = Networks::default();
        for n in 0..3 * MOST {
            let (stream, _server) = tokio::io::duplex(1 << 10);
            let mut stream = networks.counted(Some(&format!("usb{n}")), Box::new(stream));
            stream.write_all(b"x").await.unwrap();
        }
        let told = networks.traffic();
        assert_eq!(told.len(), MOST + 1);
        assert_eq!(told[0], traffic("usb0", 0, 1));
        assert_eq!(told[MOST], traffic(OTHERS, 0, 2 * MOST as u64));
    }
}
