//! One stream: a send half and a receive half, each with its own state.

mod pool;
mod queue;
mod recv;
mod send;
mod window;

pub use pool::{Chunk, Pool};
pub(crate) use queue::SendQueues;
pub(crate) use recv::{Recv, RecvRead};
pub use send::Backlog;
pub(crate) use send::{Omitted, Send};
pub(crate) use window::Pace;
#[cfg(doc)]
pub(crate) use window::Window;

use crate::error::CloseCode;
use crate::flow::Urgency;

/// Both halves of a stream, plus the credit bookkeeping between them.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) send: Send,
    pub(crate) recv: Recv,
    /// True while the stream waits in the connection's send queue.
    pub(crate) queued: bool,
    /// The opener has to tell the peer that the stream exists.
    pub(crate) announce: bool,
    /// The writer had more than we took, and will go on as soon as it may.
    pub(crate) pressing: bool,
    /// Level of urgency at which it sends.
    pub(crate) level: u8,
}

impl Stream {
    pub(crate) fn new(send_window: u64, recv_window: u64) -> Self {
        Self {
            send: Send::new(send_window),
            recv: Recv::new(recv_window),
            queued: false,
            announce: false,
            pressing: false,
            level: Urgency::default().level(),
        }
    }

    /// Its opener, this side, does not read, and the other side may not know.
    pub(crate) fn goes_one_way(&self) -> bool {
        self.recv.stop == Some(CloseCode::ONE_WAY) && !self.recv.is_over()
    }

    /// Nothing more will happen on either half.
    pub(crate) fn is_over(&self) -> bool {
        self.send.is_over() && self.recv.is_over()
    }
}
