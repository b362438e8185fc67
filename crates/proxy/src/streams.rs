//! Streams to one peer.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use whimbrel_transport::Stream;

/// What [`Streams::open`] returns.
pub type Opening<'a> = Pin<Box<dyn Future<Output = Result<Stream, String>> + Send + 'a>>;

/// Opens streams to one peer, on a connection that lasts.
pub trait Streams: Send + Sync + 'static {
    /// A new stream, or what is wrong.
    fn open(&self) -> Opening<'_>;

    /// For how long no path to the peer has worked, if none does and that is known.
    fn unreachable(&self) -> Option<Duration> {
        None
    }
}
