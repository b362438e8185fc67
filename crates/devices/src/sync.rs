//! Two devices bring each other up to date, over a stream of a connection between them. No service is needed.
//!
//! ```text
//! caller                              answerer
//! Beat(digest)            →
//!                         ←           Beat(digest): the same, all is done; or
//!                         ←           Have(vector)
//! Give(update, vector)    →
//!                         ←           Give(update, vector)
//! Beat(digest)            →           and so on, until both have the same or nothing new comes
//! ```
//!
//! A message is its length in four bytes, big-endian, and a value of `Message` as [`wire`](crate::wire) has
//! it. Only members of the group are told anything of it. What is told needs no trust: entries are signed by
//! their authors.

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::oneshot;
use whimbrel_base::{EndpointId, UnixTime};

use crate::checkpoint::Checkpoints;
use crate::log::{Log, Refusal, Report, Update};
use crate::replica::Replica;
use crate::store::StoreError;
use crate::vector::{Digest, Mark, Vector};
use crate::wire::{MAX_MESSAGE, WireError, pack, parse, unpacked};

/// The most rounds of one meeting.
pub const MAX_ROUNDS: usize = 64;
/// How long one side waits for the other to go on.
const PATIENCE: Duration = Duration::from_secs(30);
/// Within that so many bytes of a message pass.
const PIECE: usize = 16 * 1024;
/// The slowest link, in bytes a second, whose delay is allowed for: what was written may be on its way still
/// while its answer is waited for.
const SLOWEST: u64 = 8 * 1024;

/// The first byte of [`Message::WithSnapshot`].
const WITH_SNAPSHOT: u8 = 2;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    Beat(Digest),
    Have(Vector),
    /// Entries with a snapshot of what came before them: not taken.
    WithSnapshot,
    Give(Update, Vector),
    /// [`Have`](Self::Have), where there is a checkpoint.
    HaveMarked(Vector, Mark),
    /// [`Give`](Self::Give), where there is a checkpoint.
    GiveMarked(Update, Checkpoints, Vector, Mark),
}

impl Message {
    /// As it travels: programs older than checkpoints understand what has none.
    fn packed(&self) -> Result<Vec<u8>, WireError> {
        match self {
            Self::Have(vector) if !vector.mark.is_empty() => {
                pack(&Self::HaveMarked(vector.clone(), vector.mark.clone()))
            }
            Self::Give(update, vector) if !(vector.mark.is_empty() && update.checkpoints.is_empty()) => {
                let (checkpoints, mark) = (update.checkpoints.clone(), vector.mark.clone());
                pack(&Self::GiveMarked(update.clone(), checkpoints, vector.clone(), mark))
            }
            other => pack(other),
        }
    }

    /// As it is worked with.
    fn joined(self) -> Self {
        match self {
            Self::HaveMarked(vector, mark) => Self::Have(Vector { mark, ..vector }),
            Self::GiveMarked(update, checkpoints, vector, mark) => {
                Self::Give(Update { checkpoints, ..update }, Vector { mark, ..vector })
            }
            other => other,
        }
    }
}

/// What came of a meeting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// Whether both have the same now.
    pub agree: bool,
    /// Entries that were new here.
    pub entries: usize,
    /// Bytes that were sent.
    pub sent: u64,
    /// Bytes that were received.
    pub received: u64,
    /// Devices that turned out to have written two histories.
    pub forked: Vec<EndpointId>,
    /// What was not taken, and whose it was.
    pub refused: Vec<(EndpointId, Refusal)>,
}

/// Why two devices could not bring each other up to date.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// The peer is none of the user's devices.
    #[error(
        "{0} is not a device of this user, or two histories are signed with its key: it is told nothing of \
         the group"
    )]
    Stranger(EndpointId),
    /// The connection failed.
    #[error("the other device is gone or does not answer; what came before is kept: {0}")]
    Io(#[from] io::Error),
    /// It sends what makes no sense.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It says something out of turn.
    #[error("the other device says something out of turn; update the older program")]
    Turn,
    /// This side's file.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The process is ending.
    #[error("this process is ending")]
    Ending,
}

/// A meeting in progress.
struct Meeting<S> {
    replica: Arc<Replica>,
    peer: EndpointId,
    stream: S,
    /// Bytes of the message that was sent last.
    under_way: u64,
    met: Met,
}

/// Brings this device and the peer at the other end of a stream up to date; this one begins.
///
/// # Errors
/// [`SyncError`]. What was taken until then is kept.
pub async fn call<S: AsyncRead + AsyncWrite + Unpin>(
    replica: Arc<Replica>,
    peer: EndpointId,
    stream: S,
) -> Result<Met, SyncError> {
    let mut meeting = Meeting { replica, peer, stream, under_way: 0, met: Met::default() };
    let (mut last, mut here) = (None, meeting.look(stands).await?);
    for _ in 0..MAX_ROUNDS {
        let Stands { digest, may_tell } = here;
        if !may_tell {
            return Err(SyncError::Stranger(peer));
        }
        meeting.send(&Message::Beat(digest)).await?;
        let theirs = match meeting.receive().await? {
            Some(Message::Beat(theirs)) if theirs == digest => {
                meeting.met.agree = true;
                break;
            }
            Some(Message::Have(theirs)) => theirs,
            Some(_) => return Err(SyncError::Turn),
            None => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        };
        // Neither learns anything new: what is left was refused.
        if last == Some((digest, theirs.digest())) {
            break;
        }
        last = Some((digest, theirs.digest()));
        let give = meeting.look(move |log, peer| give(log, peer, &theirs)).await?;
        meeting.send(&give).await?;
        here = match meeting.receive().await? {
            Some(Message::Give(update, _)) => meeting.take(update, stands).await?,
            _ => return Err(SyncError::Turn),
        };
    }
    Ok(meeting.met)
}

/// Brings this device and the peer at the other end of a stream up to date; the peer began. Returns at the
/// stream's end.
///
/// # Errors
/// [`SyncError`]. What was taken until then is kept.
pub async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    replica: Arc<Replica>,
    peer: EndpointId,
    stream: S,
) -> Result<Met, SyncError> {
    let mut meeting = Meeting { replica, peer, stream, under_way: 0, met: Met::default() };
    for _ in 0..MAX_ROUNDS {
        let beat = match meeting.receive().await? {
            Some(Message::Beat(beat)) => beat,
            Some(_) => return Err(SyncError::Turn),
            None => break,
        };
        let (vector, is_member) =
            meeting.look(|log, peer| (log.vector(), log.group().is_member(peer))).await?;
        if !is_member {
            return Err(SyncError::Stranger(peer));
        }
        meeting.met.agree = vector.digest() == beat;
        if meeting.met.agree {
            meeting.send(&Message::Beat(beat)).await?;
            continue;
        }
        meeting.send(&Message::Have(vector)).await?;
        let give = match meeting.receive().await? {
            Some(Message::Give(update, theirs)) => {
                meeting.take(update, move |log, peer| give(log, peer, &theirs)).await?
            }
            Some(_) => return Err(SyncError::Turn),
            // It found that nothing new would come.
            None => break,
        };
        meeting.send(&give).await?;
    }
    Ok(meeting.met)
}

/// What a peer lacks. One that is not known to be a member is given nothing, for it may be told later, by
/// others; but the proof that two histories are signed with its key.
fn give(log: &Log, peer: EndpointId, theirs: &Vector) -> Message {
    if log.group().is_member(peer) {
        return Message::Give(log.missing(theirs), log.vector());
    }
    Message::Give(log.proof_against(peer), Vector::default())
}

/// How a device stands that calls another one.
struct Stands {
    digest: Digest,
    /// The peer may be told of the group.
    may_tell: bool,
}

fn stands(log: &Log, peer: EndpointId) -> Stands {
    let vector = log.vector();
    // A device that knows nothing yet has nothing to keep for itself.
    let may_tell = log.group().is_member(peer) || vector.entries() == 0;
    Stands { digest: vector.digest(), may_tell }
}

fn now() -> UnixTime {
    SystemTime::now().into()
}

impl<S: AsyncRead + AsyncWrite + Unpin> Meeting<S> {
    /// Looks at the log, where it may block.
    async fn look<T: Send + 'static>(
        &self,
        run: impl FnOnce(&Log, EndpointId) -> T + Send + 'static,
    ) -> Result<T, SyncError> {
        let peer = self.peer;
        self.aside(move |replica| replica.look(|log| run(log, peer))).await
    }

    /// Takes what the peer gave, and looks at the log then: to open a file for a change takes longest of all.
    async fn take<T: Send + 'static>(
        &mut self,
        update: Update,
        then: impl FnOnce(&Log, EndpointId) -> T + Send + 'static,
    ) -> Result<T, SyncError> {
        if update.is_empty() {
            self.met.refused = Vec::new();
            return self.look(then).await;
        }
        let peer = self.peer;
        let taking = move |replica: &Replica| {
            replica.with(|log| {
                let report = log.take(update, now());
                replica.acknowledge(log);
                (report, then(log, peer))
            })
        };
        let (report, then) = self.aside(taking).await?;
        let Report { entries, forked, refused, .. } = report;
        self.met.entries += entries;
        self.met.forked.extend(forked);
        self.met.refused = refused;
        Ok(then)
    }

    /// Does something where it may block.
    async fn aside<T: Send + 'static>(
        &self,
        run: impl FnOnce(&Replica) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, SyncError> {
        let replica = self.replica.clone();
        let (reply, answer) = oneshot::channel();
        // One type of task for all: what the runtime does with a task is compiled for each type of one, 2 KB.
        let task: Box<dyn FnOnce() + Send> = Box::new(move || drop(reply.send(run(&replica))));
        drop(tokio::task::spawn_blocking(task));
        Ok(answer.await.map_err(|_| SyncError::Ending)??)
    }

    async fn send(&mut self, message: &Message) -> Result<(), SyncError> {
        let packed = message.packed()?;
        let length = u32::try_from(packed.len()).map_err(|_| WireError::TooLarge)?;
        let bytes = [&length.to_be_bytes(), packed.as_slice()].concat();
        for piece in bytes.chunks(PIECE) {
            within(PATIENCE, self.stream.write_all(piece)).await?;
        }
        within(PATIENCE, self.stream.flush()).await?;
        self.under_way = bytes.len() as u64;
        self.met.sent += self.under_way;
        Ok(())
    }

    /// The next message; `None` at the end of the stream.
    async fn receive(&mut self) -> Result<Option<Message>, SyncError> {
        let patience = PATIENCE + Duration::from_secs(self.under_way / SLOWEST);
        let Some(packed) = read(&mut self.stream, patience).await? else { return Ok(None) };
        self.met.received += packed.len() as u64 + 4;
        Ok(Some(decode(&packed)?))
    }
}

fn decode(packed: &[u8]) -> Result<Message, WireError> {
    let bytes = unpacked(packed)?;
    if bytes.first() == Some(&WITH_SNAPSHOT) {
        return Err(WireError::Snapshot);
    }
    parse(&bytes).map(Message::joined)
}

/// Fails if something takes longer.
async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(limit, work).await.map_err(io::Error::from)?
}

/// The next message's bytes, which begin to come within so long.
async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    patience: Duration,
) -> Result<Option<Vec<u8>>, SyncError> {
    let mut length = [0; 4];
    if within(patience, stream.read(&mut length[..1])).await? == 0 {
        return Ok(None);
    }
    within(PATIENCE, stream.read_exact(&mut length[1..])).await?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_MESSAGE {
        return Err(WireError::TooLarge.into());
    }
    // Room is made as bytes come, not as they are announced.
    let mut packed = Vec::new();
    while packed.len() < length {
        let at = packed.len();
        packed.resize(length.min(at + PIECE), 0);
        within(PATIENCE, stream.read_exact(&mut packed[at..])).await?;
    }
    Ok(Some(packed))
}

/// Decodes bytes as a message, and lets an empty and a busy log take it. For fuzzers.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn hear_anything(bytes: &[u8]) {
    let key = whimbrel_base::SecretKey::from_bytes(&[1; 32]);
    let messages = [decode(bytes).ok(), postcard::from_bytes(bytes).ok()];
    for message in messages.into_iter().flatten().map(Message::joined) {
        let mut log = Log::new(key.id());
        // It may be full, or refuse: all that is asked is that it neither panics nor hangs.
        let _ = log.write(&key, vec![crate::Op::Seen], UnixTime::from_secs(1));
        match message {
            Message::Beat(_) | Message::WithSnapshot => {}
            Message::HaveMarked(..) | Message::GiveMarked(..) => {}
            Message::Have(vector) => drop(log.missing(&vector)),
            Message::Give(update, vector) => {
                log.take(update, UnixTime::from_secs(2_000_000_000));
                drop(log.missing(&vector));
            }
        }
    }
}
