//! A peer that says anything of journals. For fuzzers.

use std::collections::BTreeMap;

use whimbrel_base::{ConnectionId, EndpointId};

use super::StateLimits;
use super::change::{Change, Done, InboxKey, Loaded, LoadedJournal};
use super::inbox::Mark;
use super::ledger::Ledger;
use super::session::{Session, Step};
use super::wire::{Answer, Note, Stamp, envelope};

/// What may be done in answer to one thing that is said.
const STEPS: usize = 32;

/// Hears bytes as one note and as one answer; then as a row of them, each behind a byte for its kind and one
/// for its length. The application takes what arrives, and acknowledges some of it.
pub(crate) fn hear_anything(bytes: &[u8]) {
    if let Ok(note) = Note::decode(bytes) {
        assert!(bytes.starts_with(&note.encode()), "{note:?}");
    }
    if let Ok(answer) = Answer::decode(bytes) {
        assert!(bytes.starts_with(&answer.encode()), "{answer:?}");
    }
    let peer = EndpointId::from_bytes(&[1; 32]);
    let (mut ledger, mut marks) = (ledger(peer), BTreeMap::from([marked(peer)]));
    let Some((link, _)) = ledger.add_link(ConnectionId::from_bytes(&[1; 16]), peer) else { return };
    let (mut session, mut rest) = (Session::new(link, peer), bytes);
    while let Some((&[kind, length], after)) = rest.split_first_chunk::<2>() {
        let (said, after) = after.split_at(usize::from(length).min(after.len()));
        let heard = match kind % 2 {
            0 => session.hear_note(&mut ledger, said),
            _ => session.hear_answer(&mut ledger, said),
        };
        if heard.is_err() {
            return;
        }
        let _ = (0..STEPS).any(|_| is_done(session.step(&ledger), &mut session));
        while let Ok(Some(arrived)) = ledger.take() {
            if kind & 2 == 0 {
                acknowledge(&mut ledger, &mut marks, arrived.key, arrived.number);
            }
        }
        rest = after;
    }
}

/// Does what is to be done. True if that is nothing.
fn is_done(step: Step, session: &mut Session) -> bool {
    match step {
        Step::Note(note) => assert!(Note::decode(&note).is_ok(), "{note:?}"),
        Step::Answer(answer) => assert!(Answer::decode(&answer).is_ok(), "{answer:?}"),
        Step::Read { index, room, .. } => {
            let numbers = room.from..room.from + room.messages;
            let messages: Vec<_> = numbers.map(|number| (number, envelope(Stamp(number), b"it"))).collect();
            for note in session.read(index, &messages) {
                assert!(Note::decode(&note).is_ok(), "{note:?}");
            }
        }
        Step::Wait | Step::Leave => return true,
    }
    false
}

/// The store has three messages for the peer, and has acknowledged some of its journal 1.
fn ledger(peer: EndpointId) -> Ledger {
    let messages = (1..=3).map(|number| (10, Stamp(number))).collect();
    let journal =
        LoadedJournal { number: 1, peer: "desk".into(), label: "jobs".into(), id: 1, end: 3, messages };
    let loaded = Loaded {
        store: 1,
        opening: 1,
        peers: vec![("desk".into(), None, Some(peer))],
        journals: vec![journal],
        marks: BTreeMap::from([marked(peer)]),
    };
    Ledger::new(loaded, StateLimits::default())
}

fn marked(peer: EndpointId) -> (InboxKey, Mark) {
    let beyond = [3, 4].map(|number| (number, Stamp(number)));
    let mark = Mark { low: 1, stamp: Some(Stamp(1)), beyond: BTreeMap::from(beyond) };
    (InboxKey { peer, label: "readings".into(), journal: 1 }, mark)
}

/// As the store does.
fn acknowledge(ledger: &mut Ledger, marks: &mut BTreeMap<InboxKey, Mark>, key: InboxKey, number: u64) {
    let (mark, stamp) = (marks.entry(key.clone()).or_default(), Stamp(number));
    mark.insert(number, stamp);
    let marked = Done::Marked { mark: mark.clone(), evicted: None };
    ledger.settle(&Change::Ack { key, low: 0, number, stamp }, &marked);
}
