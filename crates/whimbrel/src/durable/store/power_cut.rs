//! Two machines that exchange durable messages and lose their power at any write or wait for the disk, as
//! often as chance wants, checked against what was confirmed.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};

use redb::{Database, ReadableDatabase as _, StorageBackend};
use whimbrel_base::{EndpointId, SecretKey};

use super::*;
use crate::durable::change::InboxKey;
use crate::durable::ledger::Arrived;
use crate::durable::session::{Session, Step};
use crate::durable::wire::envelope;

/// SplitMix64.
#[derive(Debug, Clone)]
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, odds: u64) -> bool {
        self.below(odds) == 0
    }
}

#[derive(Debug)]
enum Pending {
    Write(u64, Vec<u8>),
    Length(u64),
}

impl Pending {
    fn apply(&self, platter: &mut Vec<u8>) {
        match self {
            Self::Write(offset, data) => {
                let (start, end) = (*offset as usize, *offset as usize + data.len());
                if platter.len() < end {
                    platter.resize(end, 0);
                }
                platter[start..end].copy_from_slice(data);
            }
            Self::Length(length) => platter.resize(*length as usize, 0),
        }
    }
}

/// A disk with a cache that is lost with the power: what was not waited for may be there, in part, or not.
#[derive(Debug, Default)]
struct Disk {
    platter: Vec<u8>,
    seen: Vec<u8>,
    cache: Vec<Pending>,
    /// Operations until the power goes.
    left: Option<u64>,
    dead: bool,
}

impl Disk {
    fn operate(&mut self) -> io::Result<()> {
        if let Some(left) = &mut self.left {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => self.dead = true,
            }
        }
        if self.dead { Err(io::Error::other("no power")) } else { Ok(()) }
    }

    fn take(&mut self, pending: Pending) -> io::Result<()> {
        self.operate()?;
        pending.apply(&mut self.seen);
        self.cache.push(pending);
        Ok(())
    }

    /// The power is back.
    fn start(&mut self, chance: &mut Chance) {
        let nothing_survives = chance.one_in(3);
        for pending in std::mem::take(&mut self.cache) {
            if nothing_survives || chance.one_in(2) {
                continue;
            }
            match pending {
                Pending::Write(offset, mut data) if chance.one_in(4) => {
                    data.truncate(chance.below(data.len() as u64 + 1) as usize / 512 * 512);
                    Pending::Write(offset, data).apply(&mut self.platter);
                }
                pending => pending.apply(&mut self.platter),
            }
        }
        self.seen = self.platter.clone();
        (self.left, self.dead) = (None, false);
    }
}

#[derive(Debug, Clone, Default)]
struct Drive(Arc<Mutex<Disk>>);

impl StorageBackend for Drive {
    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.0).seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let disk = lock(&self.0);
        let there = disk.seen.get(offset as usize..offset as usize + out.len());
        out.copy_from_slice(there.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        lock(&self.0).take(Pending::Length(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = lock(&self.0);
        disk.operate()?;
        let disk = &mut *disk;
        disk.cache.drain(..).for_each(|pending| pending.apply(&mut disk.platter));
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        lock(&self.0).take(Pending::Write(offset, data.to_vec()))
    }
}

/// A machine while it has power.
struct Running {
    database: Database,
    ledger: Ledger,
    session: Session,
    link: u64,
    journal: u64,
    /// What the application has and has not acknowledged.
    held: Vec<Arrived>,
}

/// One of two machines, and what is known of the messages that it was sent.
struct Machine {
    peer: EndpointId,
    drive: Drive,
    running: Option<Running>,
    /// What the other one has said: as a writer or as a reader, and what.
    heard: VecDeque<(bool, Vec<u8>)>,
    /// Messages that this one tried to send, and those that were confirmed.
    tried: u64,
    confirmed: BTreeSet<u64>,
    /// Messages of the other one: delivered, and acknowledged for certain.
    delivered: BTreeSet<u64>,
    acked: BTreeSet<u64>,
    /// Those whose acknowledgement was cut off, with their places in the other one's journal: the disk may
    /// have it.
    in_doubt: BTreeMap<u64, (InboxKey, u64)>,
}

impl Machine {
    fn new(peer: u8) -> Self {
        Self {
            peer: SecretKey::from_bytes(&[peer; 32]).id(),
            drive: Drive::default(),
            running: None,
            heard: VecDeque::new(),
            tried: 0,
            confirmed: BTreeSet::new(),
            delivered: BTreeSet::new(),
            acked: BTreeSet::new(),
            in_doubt: BTreeMap::new(),
        }
    }

    /// Starts, which may be cut short too.
    fn start(&mut self, chance: &mut Chance, cuts: bool) {
        while self.running.is_none() {
            lock(&self.drive.0).start(chance);
            // A new file is made under another name first.
            if cuts && chance.one_in(8) && !lock(&self.drive.0).platter.is_empty() {
                lock(&self.drive.0).left = Some(chance.below(12));
            }
            self.running = self.try_start();
            let dead = lock(&self.drive.0).dead;
            assert!(self.running.is_some() || dead, "the file is damaged");
        }
    }

    fn try_start(&self) -> Option<Running> {
        let mut builder = Database::builder();
        builder.set_cache_size(1 << 20);
        let started = guard(|| {
            let database = builder.create_with_backend(self.drive.clone())?;
            let loaded = tables::open(&database)?;
            Ok((database, loaded))
        });
        let (database, loaded) = started.inspect_err(|error| self.explain(error)).ok()?;
        let mut ledger = Ledger::new(loaded, StateLimits::default());
        let (link, _) = ledger.add_link(whimbrel_base::ConnectionId::random(), self.peer).unwrap();
        let session = Session::new(link, self.peer);
        let mut running = Running { database, ledger, session, link, journal: 0, held: Vec::new() };
        running.journal = match running.ledger.journal("peer", "messages") {
            Some(journal) => journal,
            None => {
                let peer = Change::Peer { key: "peer".into(), target: None, id: Some(self.peer) };
                let journal = Change::Journal { peer: "peer".into(), label: "messages".into(), id: 5 };
                running.commit(&[peer, journal], true).ok()?;
                running.ledger.journal("peer", "messages")?
            }
        };
        Some(running)
    }

    fn explain(&self, error: &Failure) {
        if !lock(&self.drive.0).dead {
            eprintln!("{error:?}");
        }
    }

    fn send(&mut self, count: u64) {
        let Some(running) = &mut self.running else { return };
        let numbers: Vec<u64> = (1..=count).map(|ahead| self.tried + ahead).collect();
        self.tried += count;
        let stamp = running.ledger.stamp;
        let data = |number: &u64| envelope(stamp, &number.to_be_bytes().repeat(1 + *number as usize % 40));
        let changes: Vec<Change> =
            numbers.iter().map(|n| Change::Append { journal: running.journal, data: data(n) }).collect();
        if running.commit(&changes, true).is_ok() {
            self.confirmed.extend(numbers);
        }
    }

    /// Says one thing to the other, or reads for it.
    fn speak(&mut self, other: &mut Self) {
        let Some(Running { database, ledger, session, .. }) = &mut self.running else { return };
        match session.step(ledger) {
            Step::Note(note) => other.heard.push_back((true, note)),
            Step::Answer(answer) => other.heard.push_back((false, answer)),
            Step::Read { index, journal, room } => {
                let Room { from, messages, bytes } = room;
                let messages = messages.min(3);
                let found = guard(|| tables::read(&database.begin_read()?, journal, from, messages, bytes));
                let Ok(found) = found else {
                    assert!(lock(&self.drive.0).dead, "messages cannot be read");
                    return;
                };
                assert_eq!(found.first().map(|(number, _)| *number), Some(from));
                other.heard.extend(session.read(index, &found).into_iter().map(|note| (true, note)));
            }
            Step::Wait => {}
            Step::Leave => panic!("there is no other connection"),
        }
    }

    fn listen(&mut self) {
        let Some(Running { ledger, session, .. }) = &mut self.running else { return };
        if let Some((is_note, said)) = self.heard.pop_front() {
            let heard = match is_note {
                true => session.hear_note(ledger, &said),
                false => session.hear_answer(ledger, &said),
            };
            heard.unwrap();
        }
    }

    /// The application takes a message.
    fn take(&mut self) {
        let Some(running) = &mut self.running else { return };
        if let Some(message) = running.ledger.take().unwrap() {
            let number = u64::from_be_bytes(message.data[..8].try_into().unwrap());
            assert!(!self.acked.contains(&number), "message {number} came again after it was acknowledged");
            let newest = self.delivered.last().copied().unwrap_or(0);
            assert!(self.delivered.contains(&number) || number > newest, "{number} came after {newest}");
            self.delivered.insert(number);
            running.held.push(message);
        }
    }

    /// The application acknowledges some of what it has.
    fn ack(&mut self, chance: &mut Chance) {
        let Some(running) = &mut self.running else { return };
        let mut some = Vec::new();
        while !running.held.is_empty() && (some.is_empty() || chance.one_in(2)) {
            some.push(running.held.swap_remove(chance.below(running.held.len() as u64) as usize));
        }
        let low = |key: &InboxKey| running.ledger.low(key).unwrap().0;
        let change = |m: &Arrived| {
            let (key, number, stamp) = (m.key.clone(), m.number, m.stamp);
            Change::Ack { low: low(&key), key, number, stamp }
        };
        let changes: Vec<Change> = some.iter().map(change).collect();
        let number = |m: &Arrived| u64::from_be_bytes(m.data[..8].try_into().unwrap());
        match running.commit(&changes, true) {
            Ok(()) => self.acked.extend(some.iter().map(number)),
            Err(_) => self.in_doubt.extend(some.iter().map(|m| (number(m), (m.key.clone(), m.number)))),
        }
    }

    /// It was acknowledged, if not by what this one knows, then by what its disk says.
    fn has_acked(&self, number: u64) -> bool {
        let by_disk = |(key, place): &(InboxKey, u64)| {
            let ledger = self.running.as_ref().map(|running| &running.ledger);
            ledger.and_then(|ledger| ledger.low(key)).is_some_and(|(low, _)| *place <= low)
        };
        self.acked.contains(&number) || self.in_doubt.get(&number).is_some_and(by_disk)
    }

    fn tidy(&mut self) {
        let Some(running) = &mut self.running else { return };
        let trims = running.ledger.trims();
        let _ = running.commit(&trims, false);
    }

    fn hang_up(&mut self) {
        self.heard.clear();
        if let Some(Running { ledger, session, link, .. }) = &mut self.running {
            ledger.remove_link(*link);
            *link = ledger.add_link(whimbrel_base::ConnectionId::random(), self.peer).unwrap().0;
            *session = Session::new(*link, self.peer);
        }
    }
}

impl Running {
    fn commit(&mut self, changes: &[Change], durable: bool) -> Result<(), Failure> {
        let changes: Vec<&Change> = changes.iter().collect();
        let done = guard(|| tables::commit(&self.database, &changes, durable))?;
        changes.iter().zip(&done).for_each(|(change, done)| self.ledger.settle(change, done));
        Ok(())
    }
}

/// Returns how often the power went.
fn round(seed: u64) -> u64 {
    let mut chance = Chance(seed);
    let mut machines = [Machine::new(1), Machine::new(2)];
    machines.iter_mut().for_each(|machine| machine.start(&mut chance, false));
    let mut cuts = 0;
    let steps = 150;
    for step in 0.. {
        let [first, second] = &mut machines;
        let (one, other) = if chance.one_in(2) { (first, second) } else { (second, first) };
        let calm = step >= steps;
        match chance.below(if calm { 10 } else { 16 }) {
            0..3 => one.speak(other),
            3..6 => one.listen(),
            6..8 => one.take(),
            8 => one.ack(&mut chance),
            9 => one.tidy(),
            10..13 => one.send(1 + chance.below(3)),
            13 => {
                let left = chance.below(20);
                lock(&one.drive.0).left.get_or_insert(left);
            }
            14 if chance.one_in(4) => {
                one.hang_up();
                other.hang_up();
            }
            _ => {}
        }
        if calm {
            let deaf = |machine: &mut Machine| lock(&machine.drive.0).left = None;
            machines.iter_mut().for_each(deaf);
        }
        if machines.iter().any(|machine| lock(&machine.drive.0).dead) {
            for machine in machines.iter_mut().filter(|machine| lock(&machine.drive.0).dead) {
                machine.running = None;
                cuts += 1;
            }
            machines.iter_mut().for_each(|machine| machine.start(&mut chance, !calm));
            machines.iter_mut().for_each(Machine::hang_up);
        }
        let [first, second] = &machines;
        let all = |from: &Machine, to: &Machine| from.confirmed.iter().all(|number| to.has_acked(*number));
        if calm && all(first, second) && all(second, first) {
            break;
        }
        assert!(step < 100_000, "seed {seed}: something that was confirmed does not arrive");
    }
    // What was never tried does not come.
    let [first, second] = &machines;
    assert!(first.delivered.iter().all(|number| *number <= second.tried));
    cuts
}

/// `WHIMBREL_ROUNDS` says how many, `WHIMBREL_SEED` where to begin.
#[test]
fn whenever_the_power_goes_nothing_confirmed_is_lost_and_nothing_acknowledged_comes_again() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let rounds: u64 = setting("WHIMBREL_ROUNDS").unwrap_or(1000);
    let begin: u64 = setting("WHIMBREL_SEED").unwrap_or(1);
    let mut cuts = 0;
    for seed in begin..begin + rounds {
        cuts += std::panic::catch_unwind(|| round(seed)).unwrap_or_else(|panic| {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic)
        });
    }
    assert!(cuts > rounds / 2, "the power went {cuts} times in {rounds} rounds");
}
