//! The sender's side of a transfer.

use anyhow::{Result, bail};
use sha2::{Digest as _, Sha256};
use tokio::task::block_in_place;
use whimbrel_transport::{RecvHalf, SendHalf, Stream};

use super::answers::{Wanted, done, want, with_reason};
use super::item::Item;
use super::message::{self, Message, Offer, VERSION};
use super::outflow::{Begun, Input, Origin, Outflow, Part, Sent};
use super::tree::Entry;
use super::{CHUNK, Trouble, sum};

/// A file to be sent.
pub(crate) enum Outgoing {
    File(Entry),
    /// Standard input, under this name.
    Input(String),
}

/// Begins to send one file: what the receiver does not have of it is to be poured then.
pub(crate) async fn begin(stream: Stream, file: &Outgoing) -> Result<Outflow, Trouble> {
    match file {
        Outgoing::File(entry) => begin_item(stream, None, &Item::of(entry)).await,
        Outgoing::Input(name) => {
            let (mut read, mut write) = stream.into_split();
            let begun = begin_input(&mut read, &mut write, name).await;
            let begun = with_reason(&mut read, &write, begun).await?;
            Ok(Outflow::new((read, write), name.clone(), begun))
        }
    }
}

/// The same of one that may be part of a batch.
pub(super) async fn begin_item(
    stream: Stream,
    part_of: Option<u64>,
    item: &Item,
) -> Result<Outflow, Trouble> {
    let (mut read, mut write) = stream.into_split();
    let begun = begin_file(&mut read, &mut write, part_of, item).await;
    let begun = with_reason(&mut read, &write, begun).await?;
    Ok(Outflow::new((read, write), item.name.clone(), begun))
}

/// Sends a directory that has nothing in it.
pub(super) async fn directory(stream: Stream, offer: Offer) -> Result<Sent, Trouble> {
    let (mut read, mut write) = stream.into_split();
    let result = offer_directory(&mut read, &mut write, offer).await;
    with_reason(&mut read, &write, result).await
}

async fn offer_directory(read: &mut RecvHalf, write: &mut SendHalf, offer: Offer) -> Result<Sent, Trouble> {
    message::write(write, &Message::Offer(offer)).await.map_err(Trouble::Lost)?;
    done(read).await?;
    Ok(Sent::default())
}

async fn begin_file(
    read: &mut RecvHalf,
    write: &mut SendHalf,
    part_of: Option<u64>,
    item: &Item,
) -> Result<Begun, Trouble> {
    let Some((part, size)) = item.open()? else {
        return Err(Trouble::Here(anyhow::anyhow!("{} is a directory", item.shown())));
    };
    let offer = Offer { size, ..item.offer(part_of) };
    message::write(write, &Message::Offer(offer)).await.map_err(Trouble::Lost)?;
    let wanted = match want(read).await? {
        wanted if wanted.offset <= size => wanted,
        wanted => Wanted { offset: 0, sha256: String::new(), ..wanted },
    };
    let (from, hasher) = common_prefix(&part, wanted.offset, &wanted.sha256)?;
    let chunks = wanted.chunks && size > from;
    message::write(write, &Message::Start { offset: from, chunks }).await.map_err(Trouble::Lost)?;
    Ok(Begun { origin: Origin::File(part), hasher, from, chunks })
}

/// Begins to send standard input, whose size nobody knows.
async fn begin_input(read: &mut RecvHalf, write: &mut SendHalf, name: &str) -> Result<Begun, Trouble> {
    let offer = Offer { version: VERSION, name: name.to_owned(), open_ended: true, ..Offer::default() };
    message::write(write, &Message::Offer(offer)).await.map_err(Trouble::Lost)?;
    want(read).await?;
    message::write(write, &Message::Start { offset: 0, chunks: true }).await.map_err(Trouble::Lost)?;
    let origin = Origin::Input(Input::new(tokio::io::stdin()));
    Ok(Begun { origin, hasher: Sha256::new(), from: 0, chunks: true })
}

/// How far the receiver's bytes are the beginning of ours: all of them, or none.
fn common_prefix(part: &Part, offset: u64, theirs: &str) -> Result<(u64, Sha256)> {
    if offset > 0 {
        let hasher = block_in_place(|| beginning(part, offset))?;
        if sum(&hasher) == theirs {
            return Ok((offset, hasher));
        }
    }
    Ok((0, Sha256::new()))
}

/// The sum of the first bytes. Blocks.
fn beginning(part: &Part, length: u64) -> Result<Sha256> {
    let (mut hasher, mut buffer, mut at) = (Sha256::new(), vec![0; CHUNK], 0);
    while at < length {
        let most = usize::try_from(length - at).unwrap_or(CHUNK).min(CHUNK);
        match part.read(at, &mut buffer[..most])? {
            0 => bail!("what is sent became shorter"),
            n => {
                hasher.update(&buffer[..n]);
                at += n as u64;
            }
        }
    }
    Ok(hasher)
}
