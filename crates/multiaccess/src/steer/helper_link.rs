//! The manager's connection to the privileged helper.

use crate::client::lines::{Lines, open};
use crate::helper::words::{Happened, MAX_TOLD, Order, Told};
use crate::mptcp::{Action, Ends, Subflow};
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// The helper is on this host, and the kernel answers it in microseconds.
const LIMIT: Duration = Duration::from_secs(2);
/// Events that wait to be looked at. When there are more, all connections are looked at.
const MOST: usize = 1024;

/// A connection to the helper. After an error other than a refusal it is of no use any more.
pub(super) struct HelperLink {
    lines: Lines<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    next: u64,
    /// What came while an answer was waited for.
    heard: VecDeque<News>,
}

/// What the helper tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// Something happened to a connection.
    Of(Happened),
    /// Anything may have happened to all of them.
    Lost,
}

/// Why an order was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum OrderError {
    #[error("{0}")]
    Refused(String),
    #[error("the helper does not answer: {0}")]
    Lost(#[from] io::Error),
}

impl HelperLink {
    /// Connects to the helper with this socket, if it is root's or this user's.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(super) async fn open(socket: &Path) -> Result<Self, String> {
        let opened = open(socket).await.map_err(|_| {
            let shown = socket.display();
            format!("no helper of yours or of root answers on {shown}; start `whimbrel access steer`")
        })?;
        let (reader, writer) = opened.into_split();
        Ok(Self { lines: Lines::up_to(MAX_TOLD, reader), writer, next: 1, heard: VecDeque::new() })
    }

    /// The subflows of a connection, of which the helper tells from then on.
    pub(super) async fn subflows(&mut self, connection: Ends) -> Result<Vec<Subflow>, OrderError> {
        let told = self.exchange(connection, None).await?;
        let unlisted = || io::Error::new(io::ErrorKind::InvalidData, "it lists no subflows");
        told.subflows.ok_or_else(|| OrderError::Lost(unlisted()))
    }

    /// Has something done with a connection.
    pub(super) async fn order(&mut self, connection: Ends, action: Action) -> Result<(), OrderError> {
        self.exchange(connection, Some(action)).await.map(drop)
    }

    async fn exchange(&mut self, connection: Ends, action: Option<Action>) -> Result<Told, OrderError> {
        let id = self.next;
        self.next += 1;
        let mut line = serde_json::to_vec(&Order { id, connection, action }).map_err(io::Error::from)?;
        line.push(b'\n');
        let exchanged = async {
            self.writer.write_all(&line).await?;
            loop {
                let told = self.told().await?;
                if told.id == Some(id) || told.error.is_some() {
                    return Ok::<Told, io::Error>(told);
                }
                self.note(&told);
            }
        };
        let told = tokio::time::timeout(LIMIT, exchanged).await;
        let told = told.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        match told.error.clone() {
            Some(why) if told.id == Some(id) => Err(OrderError::Refused(why)),
            // It hangs up behind it: it turned this manager away.
            Some(why) => Err(OrderError::Lost(io::Error::new(io::ErrorKind::PermissionDenied, why))),
            None => Ok(told),
        }
    }

    /// What the helper tells next. Cancel-safe.
    ///
    /// # Errors
    /// What the system says, and that the helper has ended.
    pub(super) async fn news(&mut self) -> io::Result<News> {
        loop {
            if let Some(news) = self.heard.pop_front() {
                return Ok(news);
            }
            let told = self.told().await?;
            self.note(&told);
        }
    }

    async fn told(&mut self) -> io::Result<Told> {
        let line = self.lines.next().await?;
        serde_json::from_slice(line).map_err(io::Error::from)
    }

    fn note(&mut self, told: &Told) {
        if told.lost || self.heard.len() >= MOST {
            self.heard.clear();
            self.heard.push_back(News::Lost);
        }
        self.heard.extend(told.event.map(News::Of));
    }
}
