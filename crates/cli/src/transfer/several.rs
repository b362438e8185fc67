//! Several files that come together go to another device, with all that has arrived of their directories: out
//! of the directory here, or into it.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use tokio::task::block_in_place;
use whimbrel_transport::{Connection, SendHalf, Stream};

use super::batch::Incoming;
use super::bundle::{Kind, Pack, Piece, Roots, Unpack};
use super::elsewhere::Held;
use super::inbox::Inbox;
use super::message::{Offer, VERSION};
use super::name;
use super::source::{self, Source};
use super::together::{Announced, Part, Silent, Together};
use super::underway::{Halted, PartOf, SoFar, Stage, Whole};

/// Streams beside the one of all files: what waits of each is told at once.
const MOST: usize = 23;

/// Several files that were halted.
pub(crate) struct Several {
    read: Source,
    write: SendHalf,
    whole: Box<Whole>,
    /// Files of them, and streams on which nothing was offered yet.
    rest: Vec<Halted>,
}

impl Several {
    /// What was halted of files that come together and of nothing else, or what else it is.
    pub(crate) fn of(mut halted: Vec<Halted>) -> Result<Self, Vec<Halted>> {
        let is_whole = |one: &Halted| matches!(one.stage, Stage::Batch(_));
        let Some(at) = halted.iter().position(is_whole) else { return Err(halted) };
        let Halted { read, write, stage } = halted.swap_remove(at);
        match stage {
            Stage::Batch(whole) if halted.len() <= MOST && halted.iter().all(|one| is_of(one, &whole)) => {
                Ok(Self { read, write, whole, rest: halted })
            }
            stage => {
                halted.push(Halted { read, write, stage });
                Err(halted)
            }
        }
    }

    /// What goes on here.
    pub(crate) fn into_halted(self) -> Vec<Halted> {
        let Self { read, write, whole, mut rest } = self;
        rest.push(Halted { read, write, stage: Stage::Batch(whole) });
        rest
    }

    /// How many files there are, and directories with nothing in them.
    pub(crate) fn entries(&self) -> u64 {
        self.whole.offer.batch.as_ref().map_or(0, |batch| batch.entries)
    }

    /// The files that are on their way.
    fn parts(&self) -> impl Iterator<Item = (&Halted, &SoFar, &PartOf)> {
        self.rest.iter().filter_map(|one| match &one.stage {
            Stage::Part(so_far, of) => Some((one, so_far, of)),
            _ => None,
        })
    }
}

/// Whether it is a part of these, or may become one.
fn is_of(one: &Halted, whole: &Whole) -> bool {
    match &one.stage {
        Stage::Silent => true,
        Stage::Part(_, of) => Arc::ptr_eq(&of.batch, &whole.running.batch),
        Stage::File(_) | Stage::Batch(_) => false,
    }
}

fn silent(read: &Source) -> Silent {
    Silent { stream: read.stream().id(), waiting: read.unused().to_vec() }
}

fn part(one: &Halted, so_far: &SoFar) -> Part {
    Part {
        on: silent(&one.read),
        above: so_far.offer.above.clone(),
        name: so_far.name().to_owned(),
        size: so_far.size(),
        before: so_far.before(),
        at: so_far.at(),
        chunks: so_far.in_chunks(),
    }
}

/// What is here of several files. Nobody else writes it until this is dropped.
pub(crate) struct HeldTogether {
    pack: Pack,
    _held: Vec<Held>,
}

/// What another device had of several files, as it comes here. It is removed when this is dropped, unless
/// they [go on](Inbox::go_on_together).
pub(crate) struct KeptTogether(Unpack);

impl Inbox {
    /// Holds what is here of several files that were halted on this connection, and says what there is to
    /// know of them.
    ///
    /// # Errors
    /// When somebody else receives one of them, it is not what had arrived, or cannot go elsewhere.
    pub(crate) async fn hold_together(
        &self,
        several: &Several,
        connection: &Connection,
    ) -> Result<(HeldTogether, Together)> {
        let Whole { offer, running, .. } = &*several.whole;
        let announced = offer.batch.clone().context("nobody has announced these files")?;
        let roots = Roots::new(self.destination.clone(), running.batch.roots().await?);
        let (mut held, mut pieces, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for (one, so_far, of) in several.parts() {
            held.push(self.hold_at(so_far, &of.place, connection).await?);
            let (above, name) = (so_far.offer.above.clone(), so_far.name().to_owned());
            pieces.push(Piece { above, name, kind: Kind::Part(so_far.at()) });
            parts.push(part(one, so_far));
        }
        let pack = block_in_place(|| Pack::new(roots, pieces))?;
        let is_silent = |one: &&Halted| one.is_silent();
        let progress = running.batch.progress().await;
        let told = Together {
            peer: self.who(connection.peer_id()),
            announced: Announced {
                id: announced.id,
                entries: announced.entries,
                names: announced.names,
                shown: announced.shown,
                size: offer.size,
            },
            whole: silent(&several.read),
            entries_left: progress.entries_left,
            bytes_left: progress.bytes_left,
            arrived: progress.arrived,
            parts,
            silent: several.rest.iter().filter(is_silent).map(|one| silent(&one.read)).collect(),
            length: block_in_place(|| pack.length())?,
            most: self.most(),
        };
        Ok((HeldTogether { pack, _held: held }, told))
    }

    /// Makes a place for what another device has of several files.
    ///
    /// # Errors
    /// When what it tells of them cannot be.
    pub(crate) fn keep_together(&self, told: &Together) -> Result<KeptTogether> {
        Incoming::going_on(&told.announced(), told.progress())?;
        let streams = told.parts.iter().map(|part| &part.on).chain(&told.silent);
        if told.parts.len() + told.silent.len() > MOST
            || streams.chain([&told.whole]).any(|one| one.waiting.len() > source::MOST)
        {
            bail!("the other device sends more than several files have under way");
        }
        for part in &told.parts {
            part.above.iter().chain([&part.name]).try_for_each(|name| name::check(name))?;
            if part.before > part.at || part.size.is_some_and(|size| part.at > size) {
                let name = &part.name;
                bail!(
                    "the other device says that more of {name} is there than there can be; update the older \
                     program"
                );
            }
        }
        let coming = (told.announced.id, told.length);
        Ok(KeptTogether(Unpack::new(self.destination.clone(), told.most, coming)))
    }

    /// Goes on with what was kept, now that the connection is here. What is returned is to go on; it is
    /// nothing if the peer has given the files up meanwhile, and begins anew.
    ///
    /// # Errors
    /// When what was kept is not all, or somebody else has it by now.
    pub(crate) async fn go_on_together(
        self: &Arc<Self>,
        (told, kept): (Together, KeptTogether),
        connection: &Connection,
    ) -> Result<Vec<Halted>> {
        let batch = told.announced();
        let incoming = Incoming::going_on(&batch, told.progress())?;
        // Files that are taken up again must not be locked by what has brought them. Directories stay locked.
        let roots = kept.0.stays()?;
        incoming.keep_roots(&self.destination, connection, roots).await?;
        let streams = connection.streams().into_iter();
        // Those that are not asked for have had their answer.
        let mut streams: HashMap<u64, Stream> = streams.map(|stream| (stream.id(), stream)).collect();
        let mut take = |on: Silent| {
            let (read, write) = streams.remove(&on.stream)?.into_split();
            Some((Source::going_on(read, on.waiting), write))
        };
        let Some((read, write)) = take(told.whole) else { return Ok(Vec::new()) };
        let peer = connection.peer_id();
        let running = self.begin(connection.id(), batch.id, incoming)?;
        let incoming = running.batch.clone();
        let (id, size) = (batch.id, told.announced.size);
        let name = format!("{} files", batch.entries);
        let offer = Offer { version: VERSION, name, size, batch: Some(batch), ..Offer::default() };
        let whole = Whole { offer, agreed: peer, running };
        let mut halted = vec![Halted { read, write, stage: Stage::Batch(Box::new(whole)) }];
        for part in told.parts {
            let Part { on, above, name, size, before, at, chunks } = part;
            let Some((read, write)) = take(on) else { continue };
            let place = incoming.place_again(&self.destination, &above).await?;
            let so_far = SoFar::of(name, size, (before, at), chunks).part_of(id, above);
            let of = PartOf { place, batch: incoming.clone() };
            halted.push(Halted { read, write, stage: Stage::Part(so_far, of) });
        }
        for on in told.silent {
            let Some((read, write)) = take(on) else { continue };
            halted.push(Halted { read, write, stage: Stage::Silent });
        }
        Ok(halted)
    }
}

impl HeldTogether {
    /// Reads the next bytes. Blocks.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.pack.read(into)
    }

    /// Removes it: it is elsewhere.
    pub(crate) fn remove(self) {
        block_in_place(|| self.pack.remove());
    }
}

impl KeptTogether {
    /// Writes what comes. Blocks.
    ///
    /// # Errors
    /// For people: why it cannot be kept.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.take(bytes)
    }

    /// Where directories are that earlier transfers have left, and that had to make room.
    pub(crate) fn aside(&self) -> Vec<PathBuf> {
        self.0.aside().collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_names::KnownPeers;

    use super::super::{Consent, Limits};
    use super::*;
    use crate::progress::Board;

    #[test]
    fn what_no_files_on_their_way_can_be_is_refused_before_a_byte_of_it_is_here() {
        let directory = tempfile::tempdir().unwrap();
        let known = KnownPeers::in_file(directory.path().join("known_peers"));
        let limits = Limits { file: u64::MAX, total: u64::MAX };
        let (consent, board) = (Consent::Given, Board::new(true));
        let inbox = Inbox::open(directory.path(), false, limits, consent, known, board).unwrap();
        let example = Together::example;
        assert!(inbox.keep_together(&example()).is_ok());
        let part = || example().parts.remove(0);
        let with = |part: Part| Together { parts: vec![part], ..example() };
        let waiting = |bytes| Silent { stream: 1, waiting: vec![0; bytes] };
        for (wrong, says) in [
            (with(Part { name: "../f".to_owned(), ..part() }), "is a path"),
            (with(Part { above: vec!["..".to_owned()], ..part() }), "is a path"),
            (with(Part { before: 3, ..part() }), "than there can be"),
            (with(Part { at: 301, ..part() }), "than there can be"),
            (Together { silent: vec![waiting(0); MOST], ..example() }, "under way"),
            (Together { whole: waiting(source::MOST + 1), ..example() }, "under way"),
            (Together { arrived: 3, ..example() }, "what cannot be"),
        ] {
            let error = inbox.keep_together(&wrong).err().unwrap().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
