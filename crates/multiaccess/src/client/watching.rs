//! Being told of paths and decisions.

use super::lines::Lines;
use super::{Client, ClientError};
use crate::protocol::{Answer, PathReport, Request, Watching};
use std::io;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

/// What a manager says of its paths and decisions, until this is dropped.
pub struct Watcher {
    lines: Lines<UnixStream>,
}

impl Client {
    /// Asks to be told of paths from now on, and of decisions if so wished, over a connection of its own.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub async fn watch(&self, decisions: bool) -> Result<Watcher, ClientError> {
        let mut stream = self.open().await?;
        let request = Request { watch: Some(Watching { decisions }), ..Request::default() };
        let line = serde_json::to_vec(&request).map_err(io::Error::from);
        let mut line = line.map_err(ClientError::Lost)?;
        line.push(b'\n');
        stream.write_all(&line).await.map_err(ClientError::Lost)?;
        Ok(Watcher { lines: Lines::of(stream) })
    }
}

impl Watcher {
    /// The next line as the manager said it: an [`Answer`](crate::protocol::Answer), with keys that newer
    /// managers may have beside. Bytes that are no UTF-8 are replaced. Cancel-safe.
    ///
    /// # Errors
    /// [`ClientError::Lost`].
    pub async fn next(&mut self) -> Result<String, ClientError> {
        let line = self.lines.next().await.map_err(ClientError::Lost)?;
        Ok(String::from_utf8_lossy(line).trim_end().to_owned())
    }

    /// The paths, when the manager tells of them next. What else it says is passed over. Cancel-safe.
    ///
    /// # Errors
    /// [`ClientError::Lost`].
    pub async fn paths(&mut self) -> Result<Vec<PathReport>, ClientError> {
        loop {
            let line = self.lines.next().await.map_err(ClientError::Lost)?;
            // What a newer manager says beside is not of paths.
            let answer = serde_json::from_slice::<Answer>(line).unwrap_or_default();
            if let Some(paths) = answer.paths {
                return Ok(paths);
            }
        }
    }
}
