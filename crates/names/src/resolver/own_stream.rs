//! Requests that get a stream of their own, beside that of the questions, on the same connection.

use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_transport::{CloseCode, ClosedBy, Connection, RecvHalf, SendHalf, Stream};

use super::state::{Core, Wanted};
use super::{ANSWER_LIMIT, AskError};
use crate::error::ErrorCode;
use crate::protocol::{Decoder, Numbered, Reply, Request, Response, encode};

/// A stream behind the answer.
pub(super) struct OwnStream {
    pub(super) read: RecvHalf,
    pub(super) write: SendHalf,
    /// What was read behind the answer.
    pub(super) rest: BytesMut,
    /// Keeps the connection to the service.
    pub(super) wanted: Wanted,
}

/// Asks on a stream of its own, for [`ANSWER_LIMIT`] at most. `what` is what older services do not know.
///
/// # Errors
/// [`AskError`]; [`AskError::Unsupported`] by an older service.
pub(super) async fn ask(
    core: &Arc<Core>,
    request: Request,
    what: &'static str,
) -> Result<(Response, OwnStream), AskError> {
    let wanted = Core::want_connection(core)?;
    let asking = async {
        let mut connections = core.connection();
        loop {
            let present = connections.borrow_and_update().clone();
            if let Some(connection) = present {
                core.probes();
                match ask_on(&connection, &request, what).await {
                    Ok(answer) => return answer,
                    // Another connection may do better.
                    Err(error) => tracing::debug!(%error, what, "no answer"),
                }
            }
            if connections.changed().await.is_err() {
                return Err(AskError::Closed);
            }
        }
    };
    let answered = tokio::time::timeout(ANSWER_LIMIT, asking).await;
    let (reply, (read, write), rest) = answered.unwrap_or_else(|_| Err(AskError::Unreachable(core.why())))?;
    core.heard();
    match reply {
        Reply::Response { response: Response::Error { code, message }, .. } => {
            Err(AskError::Refused { code: ErrorCode::from_number(code), message })
        }
        Reply::Response { response, .. } => Ok((response, OwnStream { read, write, rest, wanted })),
        _ => Err(AskError::unexpected()),
    }
}

type Answered = (Reply, (RecvHalf, SendHalf), BytesMut);

/// An error of the stream is one that another connection may not have.
async fn ask_on(
    connection: &Connection,
    request: &Request,
    what: &'static str,
) -> io::Result<Result<Answered, AskError>> {
    let asked = async {
        let stream = connection.open_stream().await.map_err(io::Error::other)?;
        exchange(stream, request).await
    };
    match asked.await {
        Ok(answer) => Ok(answer),
        Err(error) => match connection.close_reason() {
            // What a service does that does not know the request.
            Some(reason) if reason.code == CloseCode::PROTOCOL && reason.by == ClosedBy::Peer => {
                Ok(Err(AskError::Unsupported(what)))
            }
            _ => Err(error),
        },
    }
}

async fn exchange(stream: Stream, request: &Request) -> io::Result<Result<Answered, AskError>> {
    let (mut read, mut write) = stream.into_split();
    let request = Numbered { number: 0, request: request.clone() };
    write.write_all(&encode(&request).map_err(io::Error::other)?).await?;
    let mut decoder = Decoder::<Reply>::new();
    let mut piece = [0; 2048];
    loop {
        match decoder.next_message() {
            Ok(Some(reply)) => return Ok(Ok((reply, (read, write), decoder.into_rest()))),
            Ok(None) => {}
            Err(error) => return Ok(Err(AskError::Invalid(error.to_string()))),
        }
        match read.read(&mut piece).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => decoder.push(&piece[..n]),
        }
    }
}
