//! A peer that hears when something changes that its user proposed or is asked, on a stream of its own.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_base::EndpointId;
use whimbrel_transport::{Connection, RecvHalf, SendHalf};

use super::broken::Broken;
use super::{Shared, turns};
use crate::clock::now;
use crate::protocol::{Reply, Response, encode};

/// Between two pushes: what changes meanwhile is one.
const APART: Duration = Duration::from_millis(250);
/// Then it ends, and who wants more shows its word anew.
const LONGEST: Duration = Duration::from_secs(3600);

/// A request to follow, and the stream that it came on.
pub(super) struct Following {
    pub(super) number: u64,
    /// By which the peer speaks for a user.
    pub(super) word: Option<Vec<u8>>,
    pub(super) read: RecvHalf,
    pub(super) write: SendHalf,
}

/// Answers the request, and pushes until the peer ends its stream, its word does not count any more, or the
/// time is over.
pub(super) async fn serve(
    following: Following,
    connection: &Connection,
    shared: &Arc<Shared>,
) -> Result<(), Broken> {
    let Following { number, word, mut read, mut write } = following;
    let (peer, word) = (connection.peer_id(), word.as_deref());
    shared.turns.request(peer, turns::address(connection)).await;
    shared.counters.request();
    let mut follower = match shared.registry.follow_proposals(peer, word, now()).await {
        Ok(follower) => follower,
        Err(error) => {
            shared.counters.refused();
            say(&mut write, &Reply::Response { request: number, response: Response::error(&error) }).await?;
            return Ok(write.shutdown().await?);
        }
    };
    let _counted = shared.counters.watch();
    say(&mut write, &Reply::Response { request: number, response: Response::Watching }).await?;
    let end = tokio::time::sleep(LONGEST);
    tokio::pin!(end);
    let mut more = [0; 1];
    loop {
        tokio::select! {
            () = follower.changed() => {
                if !may_hear(shared, peer, word).await {
                    break;
                }
                say(&mut write, &Reply::News { watch: number }).await?;
                shared.counters.pushed();
                tokio::time::sleep(APART).await;
            }
            // There is nothing more to say: it is the end.
            _ = read.read(&mut more) => break,
            () = &mut end => break,
        }
    }
    // Dropped, the stream would be reset, and what was said last lost on the way.
    Ok(write.shutdown().await?)
}

async fn may_hear(shared: &Arc<Shared>, peer: EndpointId, word: Option<&[u8]>) -> bool {
    let speaks = shared.registry.speaks_for_user(peer, word, now()).await;
    speaks.inspect_err(|error| tracing::info!(peer = %peer.short(), %error, "follows no longer")).is_ok()
}

async fn say(write: &mut SendHalf, reply: &Reply) -> Result<(), Broken> {
    Ok(write.write_all(&encode(reply)?).await?)
}
