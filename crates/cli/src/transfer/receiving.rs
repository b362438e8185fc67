//! The receiver's side of a transfer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;
use tokio::task::block_in_place;
use whimbrel_transport::{Connection, SendHalf, Stream};

use super::batch::{Incoming, Place};
use super::coming::Coming;
use super::destination::Destination;
use super::directory::is_file;
use super::inbox::Inbox;
use super::message::{self, Message, ONE_FILE, Offer, VERSION};
use super::outcome::done;
pub(crate) use super::outcome::{Arrived, Outcome, Received};
use super::partial::Partial;
use super::source::Source;
use super::underway::{Halted, PartOf, SoFar, Stage, Whole};
use super::{CHUNK, Trouble, chunk, hash_prefix, name, sum};
use crate::halt::Ties;
use crate::tunnel::BROKEN;

/// How long the sender may take to hear why its file is refused.
const TOLD: Duration = Duration::from_secs(3);
/// How long a sender that opened a stream may take to say what for.
const OFFER_LIMIT: Duration = Duration::from_secs(60);

/// What a file that was there turned out to be.
enum Compared {
    Same(Received),
    /// Another one; the sender has begun to send its own from the start.
    Other {
        chunks: bool,
    },
}

/// Receives what the sender offers on one stream. `None` if it was halted.
pub(crate) async fn receive(stream: Stream, inbox: &Arc<Inbox>, ties: &Ties<Halted>) -> Option<Outcome> {
    let (read, write) = stream.into_split();
    carry(Halted { read: Source::new(read), write, stage: Stage::Silent }, inbox, ties).await
}

/// Goes on receiving what was halted. `None` if it was halted again.
pub(crate) async fn go_on(mut halted: Halted, inbox: &Arc<Inbox>, ties: &Ties<Halted>) -> Option<Outcome> {
    halted.read.again();
    carry(halted, inbox, ties).await
}

async fn carry(from: Halted, inbox: &Arc<Inbox>, ties: &Ties<Halted>) -> Option<Outcome> {
    let Halted { mut read, mut write, stage } = from;
    let mut transfer = Transfer {
        connection: read.stream().connection(),
        read: &mut read,
        write: &mut write,
        inbox,
        part: matches!(stage, Stage::Part(..)),
        of: None,
        ties,
        halted: None,
    };
    let result = match stage {
        Stage::Silent => transfer.exchange().await,
        Stage::File(so_far) => transfer.go_on(so_far).await,
        Stage::Part(so_far, of) => {
            transfer.of = Some(of);
            transfer.go_on(so_far).await
        }
        Stage::Batch(whole) => transfer.until_batch_ends(*whole).await,
    };
    let (part, halted) = (transfer.part, transfer.halted.take());
    if let Some(stage) = halted {
        // Another process begins all but a file by itself again.
        let moves_alone = matches!(stage, Stage::File(_));
        let halted = Halted { read, write, stage };
        if moves_alone {
            ties.give(halted).await;
        } else {
            ties.give_to_part(halted).await;
        }
        return None;
    }
    if let Err(Trouble::Here(error)) = &result {
        // The sender is told where it is asked next; what it sends until then is dropped.
        let reason = crate::failure::line(error);
        if message::write(&mut write, &Message::Refuse { reason }).await.is_ok() {
            read.stream().stop(BROKEN);
            // If it is gone meanwhile, it needs no reason.
            let _ = write.stream().finish();
            let _ = tokio::time::timeout(TOLD, write.stream().drained()).await;
        }
    }
    let unconfirmed = match &result {
        Ok(_) if part => Some(write),
        Ok(_) => {
            done(&mut write).await;
            None
        }
        Err(_) => None,
    };
    Some(Outcome { part, result, unconfirmed })
}

/// One stream of a sender's.
struct Transfer<'a> {
    connection: Connection,
    read: &'a mut Source,
    write: &'a mut SendHalf,
    inbox: &'a Arc<Inbox>,
    part: bool,
    /// That batch, and its place there, once the file has one.
    of: Option<PartOf>,
    ties: &'a Ties<Halted>,
    /// How far it is, if it is to go on elsewhere.
    halted: Option<Stage>,
}

impl Transfer<'_> {
    async fn exchange(&mut self) -> Result<Arrived, Trouble> {
        let ties = self.ties;
        let first = tokio::select! {
            first = tokio::time::timeout(OFFER_LIMIT, message::read(self.read)) => first,
            () = ties.part_is_to_halt() => {
                self.halted = Some(Stage::Silent);
                return Err(lost());
            }
        };
        let Message::Offer(offer) = first.map_err(|_| lost())?.map_err(Trouble::Lost)? else {
            return Err(Trouble::Here(anyhow!("the sender does not offer a file; is it a `whimbrel send`?")));
        };
        self.part = offer.part_of.is_some();
        if !(ONE_FILE..=VERSION).contains(&offer.version) {
            return Err(Trouble::Here(anyhow!(
                "the sender speaks version {} of transfers, and this program {VERSION}; update the older one",
                offer.version
            )));
        }
        if let Some(batch) = &offer.batch {
            let batch = Incoming::new(batch, offer.size)?;
            self.inbox.check_size("all together", offer.size, false)?;
            return self.whole_batch(&offer, batch).await;
        }
        offer.above.iter().chain([&offer.name]).try_for_each(|name| name::check(name))?;
        self.inbox.check_size(&offer.name, offer.size, true)?;
        match offer.part_of {
            Some(id) => {
                let batch = self.inbox.batch(self.connection.id(), id)?;
                let place = batch.place(&self.inbox.destination, &self.connection, &offer).await?;
                let arrived = if offer.directory {
                    batch.arrived().await;
                    Arrived::Nothing
                } else {
                    self.of = Some(PartOf { place: place.clone(), batch: batch.clone() });
                    Arrived::File(self.file(&offer, &place, Some(&batch)).await?)
                };
                Ok(arrived)
            }
            None if !offer.above.is_empty() || offer.directory => {
                Err(Trouble::Here(anyhow!("the sender offers a directory without a batch")))
            }
            None => {
                let agreed = self.inbox.agree(&self.connection, &offer).await?;
                let Destination { directory, overwrite, .. } = &*self.inbox.destination;
                let place = Place { directory: directory.clone(), replace: *overwrite };
                let received = self.file(&offer, &place, None).await?;
                self.inbox.arrived(agreed, &offer);
                Ok(Arrived::File(received))
            }
        }
    }

    /// Lets a batch come, until the sender says that it is over.
    async fn whole_batch(&mut self, offer: &Offer, batch: Incoming) -> Result<Arrived, Trouble> {
        let agreed = self.inbox.agree(&self.connection, offer).await?;
        let id = offer.batch.as_ref().map_or(0, |batch| batch.id);
        let running = self.inbox.begin(self.connection.id(), id, batch)?;
        message::write(self.write, &Message::Accept).await.map_err(Trouble::Lost)?;
        self.read.mark();
        self.until_batch_ends(Whole { offer: offer.clone(), agreed, running }).await
    }

    async fn until_batch_ends(&mut self, whole: Whole) -> Result<Arrived, Trouble> {
        let ties = self.ties;
        let said = tokio::select! {
            said = message::read(self.read) => said.map_err(Trouble::Lost)?,
            () = ties.part_is_to_halt() => {
                self.halted = Some(Stage::Batch(Box::new(whole)));
                return Err(lost());
            }
        };
        let Whole { offer, agreed, running } = whole;
        match said {
            Message::BatchEnd { complete: true } => {
                let directories = running.batch.finish(&self.inbox.destination).await?;
                self.inbox.arrived(agreed, &offer);
                Ok(Arrived::Batch(directories))
            }
            Message::BatchEnd { complete: false } => {
                done(self.write).await;
                Err(Trouble::Refused("not all files have arrived; what has arrived is kept".to_owned()))
            }
            _ => Err(Trouble::Here(unexpected())),
        }
    }

    async fn file(
        &mut self,
        offer: &Offer,
        place: &Place,
        batch: Option<&Incoming>,
    ) -> Result<Received, Trouble> {
        let key = offer.path();
        let name = offer.name.as_str();
        let claim = self.inbox.destination.claim(key.clone(), &self.connection)?;
        let found = place.directory.entry(name).context("cannot look into the directory")?;
        let mut begun = None;
        if let Some(found) = &found {
            let same_size = is_file(found) && found.st_size as u64 == offer.size && !offer.open_ended;
            if same_size {
                match self.compare(offer, place).await? {
                    Compared::Same(received) => {
                        if let Some(batch) = batch {
                            batch.arrived().await;
                        }
                        return Ok(received);
                    }
                    Compared::Other { chunks } => begun = Some(chunks),
                }
            }
            if !place.replace {
                return Err(Trouble::Here(anyhow!(place.directory.exists(name))));
            }
        }
        let mode = self.inbox.destination.modes.file;
        let open = || Partial::open(&place.directory, name, place.replace, mode);
        let mut partial = claim.open(&open).await?;
        let filled = self.fill(&mut partial, offer, &key, begun).await;
        Self::finish(partial, filled, batch).await
    }

    /// Goes on with a file that was halted.
    async fn go_on(&mut self, so_far: SoFar) -> Result<Arrived, Trouble> {
        let (offer, key) = (so_far.offer.clone(), so_far.offer.path());
        name::check(&offer.name)?;
        let claim = self.inbox.destination.claim(key.clone(), &self.connection)?;
        let Destination { directory, overwrite, modes, .. } = &*self.inbox.destination;
        let (place, batch) = match self.of.clone() {
            Some(PartOf { place, batch }) => (place, Some(batch)),
            None => (Place { directory: directory.clone(), replace: *overwrite }, None),
        };
        let open = || Partial::open(&place.directory, &offer.name, place.replace, modes.file);
        let mut partial = claim.open(&open).await?;
        let (present, hasher) = block_in_place(|| partial.present()).map_err(Trouble::Lost)?;
        if present != so_far.at {
            // Somebody has changed it: the sender is asked anew.
            return Err(lost());
        }
        let filled = self.pour(&mut partial, so_far, hasher, &key).await;
        let received = Self::finish(partial, filled, batch.as_deref()).await?;
        if batch.is_none() {
            self.inbox.arrived(self.connection.peer_id(), &offer);
        }
        Ok(Arrived::File(received))
    }

    /// Gives a file its name once it is whole.
    async fn finish(
        partial: Partial,
        filled: Result<(u64, u64, String), Trouble>,
        batch: Option<&Incoming>,
    ) -> Result<Received, Trouble> {
        match filled {
            Ok((size, resumed_from, sha256)) => {
                let file = block_in_place(|| partial.finish())?;
                if let Some(batch) = batch {
                    batch.arrived().await;
                }
                Ok(Received { file, size, resumed_from, sha256 })
            }
            Err(trouble) => {
                partial.discard();
                Err(trouble)
            }
        }
    }

    /// A file of this name and size is there. It may be the very one: then the sender did not hear that it
    /// had arrived.
    async fn compare(&mut self, offer: &Offer, place: &Place) -> Result<Compared, Trouble> {
        let (name, size) = (offer.name.as_str(), offer.size);
        let exists = || anyhow!(place.directory.exists(name));
        let hash = || -> io::Result<Sha256> { hash_prefix(&mut place.directory.file(name, false)?, size) };
        let sha256 = sum(&block_in_place(hash).with_context(exists)?);
        let want = Message::Want { offset: size, sha256: sha256.clone(), chunks: place.replace };
        message::write(self.write, &want).await.map_err(Trouble::Lost)?;
        let (offset, chunks) = self.start(size).await?;
        if offset != size {
            return Ok(Compared::Other { chunks });
        }
        match message::read(self.read).await.map_err(Trouble::Lost)? {
            Message::End { sha256: theirs } if theirs == sha256 => {}
            _ => return Err(Trouble::Here(exists())),
        }
        let file = place.directory.shown(name);
        Ok(Compared::Same(Received { file, size, resumed_from: size, sha256 }))
    }

    /// Receives what is missing, or all if the sender has `begun`, with or without chunks. Returns the size,
    /// what was there before, and the sum.
    async fn fill(
        &mut self,
        partial: &mut Partial,
        offer: &Offer,
        shown: &str,
        begun: Option<bool>,
    ) -> Result<(u64, u64, String), Trouble> {
        let failed = || format!("cannot read what has arrived of {shown}");
        let (present, mut hasher) = block_in_place(|| partial.present()).with_context(failed)?;
        let (offset, chunks) = match begun {
            Some(chunks) => (0, chunks),
            None => {
                let want = Message::Want { offset: present, sha256: sum(&hasher), chunks: true };
                message::write(self.write, &want).await.map_err(Trouble::Lost)?;
                self.start(present).await?
            }
        };
        if offset == 0 {
            partial.clear().with_context(failed)?;
            hasher = Sha256::new();
        }
        let so_far = SoFar { offer: offer.clone(), resumed_from: offset, at: offset, chunks };
        self.pour(partial, so_far, hasher, shown).await
    }

    /// Receives what is missing of a file that has `hasher`'s bytes, until it is whole or halted.
    async fn pour(
        &mut self,
        partial: &mut Partial,
        so_far: SoFar,
        hasher: Sha256,
        shown: &str,
    ) -> Result<(u64, u64, String), Trouble> {
        let SoFar { offer, at, .. } = &so_far;
        let mut coming = Coming {
            size: (!offer.open_ended).then_some(offer.size),
            at: *at,
            room: self.inbox.reserve(shown),
            partial,
            hasher,
        };
        if *at > offer.size && !offer.open_ended {
            return Err(Trouble::Here(unexpected()));
        }
        if !offer.open_ended {
            coming.room.keep(*at, offer.size - at)?;
        }
        // What was said before is used, also if this is halted before it reads anything.
        self.read.mark();
        let (ties, of) = (self.ties, self.of.clone());
        let is_part = of.is_some();
        let is_to_halt = async move {
            if is_part {
                ties.part_is_to_halt().await;
            } else {
                ties.is_to_halt().await;
            }
        };
        let taken = tokio::select! {
            biased;
            () = is_to_halt => None,
            taken = self.take_rest(&mut coming, &so_far, shown) => Some(taken),
        };
        let at = coming.at;
        match taken {
            Some(taken) => Ok((at, so_far.resumed_from, taken?)),
            None => {
                let so_far = SoFar { at, ..so_far };
                self.halted = Some(match of {
                    Some(of) => Stage::Part(so_far, of),
                    None => Stage::File(so_far),
                });
                Err(lost())
            }
        }
    }

    /// Cancel-safe: what was taken is in `coming`, and what was not is kept by the source.
    async fn take_rest(
        &mut self,
        coming: &mut Coming<'_>,
        so_far: &SoFar,
        shown: &str,
    ) -> Result<String, Trouble> {
        let chunks = so_far.chunks;
        let mut progress = self.inbox.board.file(shown, so_far.offer.size, coming.at);
        let mut buffer = vec![0; if chunks { 0 } else { CHUNK }];
        loop {
            self.read.mark();
            if chunks {
                let Some(bytes) = chunk::read(self.read).await.map_err(garbled)? else { break };
                coming.take(&bytes)?;
            } else {
                let most = coming.missing()?.min(CHUNK as u64) as usize;
                if most == 0 {
                    break;
                }
                let n = self.read.read(&mut buffer[..most]).await.map_err(Trouble::Lost)?;
                if n == 0 {
                    return Err(lost());
                }
                coming.take(&buffer[..n])?;
            }
            progress.at(coming.at);
        }
        if coming.size.is_some() && coming.missing()? > 0 {
            return Err(Trouble::Here(anyhow!("the sender sends less than it offered")));
        }
        let sha256 = sum(&coming.hasher);
        match message::read(self.read).await.map_err(garbled)? {
            Message::End { sha256: theirs } if theirs == sha256 => Ok(sha256),
            Message::End { .. } => {
                let failed = || format!("cannot clear what has arrived of {shown}");
                coming.partial.clear().with_context(failed)?;
                Err(Trouble::Here(anyhow!("{shown} arrived damaged and was dropped; send it again")))
            }
            _ => Err(Trouble::Here(unexpected())),
        }
    }

    /// Where the sender begins, and whether it sends chunks.
    async fn start(&mut self, present: u64) -> Result<(u64, bool), Trouble> {
        match message::read(self.read).await.map_err(Trouble::Lost)? {
            Message::Start { offset, chunks } if offset == 0 || offset == present => Ok((offset, chunks)),
            _ => Err(Trouble::Here(anyhow!("the sender begins somewhere else"))),
        }
    }
}

fn unexpected() -> anyhow::Error {
    anyhow!("the sender says something else than it should; update the older program")
}

fn lost() -> Trouble {
    Trouble::Lost(io::ErrorKind::UnexpectedEof.into())
}

/// What cannot be read is the sender's mistake, if it is no loss of the connection.
fn garbled(error: io::Error) -> Trouble {
    match error.kind() {
        io::ErrorKind::InvalidData => {
            Trouble::Here(anyhow!("the sender sends something else than it offered: {error}"))
        }
        _ => Trouble::Lost(error),
    }
}
