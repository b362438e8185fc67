//! News of what users ask each other, as the service pushes them.

use tokio::io::AsyncReadExt as _;
use whimbrel_base::Delegation;

use super::own_stream::{self, OwnStream};
use super::{AskError, NameResolver};
use crate::protocol::{Decoder, Reply, Request, Response};

/// What older services do not know.
const WHAT: &str = "news of requests between users";

/// Hears when something changes that this endpoint's user proposed or is asked. What that is is not said:
/// [`NameResolver::proposals`] tells. Ends when it is dropped.
pub struct ProposalNews {
    stream: OwnStream,
    decoder: Decoder<Reply>,
}

impl NameResolver {
    /// Hears of changes to what [`proposals`](Self::proposals) tells, from now on. `word` is as there.
    ///
    /// # Errors
    /// [`AskError::Refused`] when the delegation does not count, or too many follow;
    /// [`AskError::Unsupported`] by an older service.
    pub async fn proposal_news(&self, word: Option<&Delegation>) -> Result<ProposalNews, AskError> {
        let request = Request::Follow { word: word.map(Delegation::encode) };
        match own_stream::ask(&self.core, request, WHAT).await? {
            (Response::Watching, stream) => {
                let mut decoder = Decoder::new();
                decoder.push(&stream.rest);
                Ok(ProposalNews { stream, decoder })
            }
            _ => Err(AskError::unexpected()),
        }
    }
}

impl ProposalNews {
    /// Waits for the next change, for as long as it takes. Cancel-safe.
    ///
    /// # Errors
    /// [`AskError`] when the service has ended it, as it does after an hour here, or its connection is lost:
    /// something may have changed since, and following begins anew with [`NameResolver::proposal_news`].
    pub async fn changed(&mut self) -> Result<(), AskError> {
        let mut piece = [0; 256];
        loop {
            match self.decoder.next_message() {
                Ok(Some(Reply::News { .. })) => return Ok(()),
                Ok(Some(_)) => return Err(AskError::unexpected()),
                Ok(None) => {}
                Err(error) => return Err(AskError::Invalid(error.to_string())),
            }
            match self.stream.read.read(&mut piece).await {
                Ok(n @ 1..) => self.decoder.push(&piece[..n]),
                Ok(_) => return Err(AskError::Unreachable("it has ended the news".to_owned())),
                Err(error) => return Err(AskError::Unreachable(error.to_string())),
            }
        }
    }
}

impl std::fmt::Debug for ProposalNews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProposalNews").finish_non_exhaustive()
    }
}
