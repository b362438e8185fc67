//! A user's key and devices, each with its own log and clock.

use std::time::Duration;

use whimbrel_base::{EndpointId, Name, SecretKey, UnixTime};

use crate::{Label, Log, Op, Report, WriteError};

/// When the stories begin.
pub(super) const START: u64 = 1_700_000_000;

#[derive(Clone)]
pub(super) struct Side {
    pub(super) key: SecretKey,
    pub(super) log: Log,
    /// How wrong its clock is, in seconds.
    pub(super) skew: i64,
}

/// The user's key is side 0, the devices are the others.
#[derive(Clone)]
pub(super) struct Stage {
    pub(super) sides: Vec<Side>,
    /// Milliseconds since the start.
    pub(super) elapsed: u64,
}

pub(super) fn label(text: &str) -> Label {
    text.parse().unwrap()
}

pub(super) fn device_name(number: usize) -> Name {
    format!("d{number}.ada@example.org").parse().unwrap()
}

pub(super) fn stranger(number: u8) -> EndpointId {
    EndpointId::from_bytes(&[200 + number; 32])
}

impl Stage {
    /// The user's key and so many devices, which know nothing yet.
    pub(super) fn empty(devices: usize) -> Self {
        let user = key(0).id();
        let sides = (0..=devices).map(|number| Side { key: key(number), log: Log::new(user), skew: 0 });
        Self { sides: sides.collect(), elapsed: 0 }
    }

    /// All devices were added by the user's key, and know it; the first so many are trusted.
    pub(super) fn new(devices: usize, trusted: usize) -> Self {
        let mut stage = Self::empty(devices);
        for number in 1..=devices {
            let op = Op::AddDevice {
                device: stage.id(number),
                name: device_name(number),
                trusted: number <= trusted,
            };
            stage.write(0, op).unwrap();
        }
        for number in 1..=devices {
            stage.meet(0, number);
        }
        stage
    }

    pub(super) fn id(&self, number: usize) -> EndpointId {
        self.sides[number].key.id()
    }

    pub(super) fn now(&self, number: usize) -> UnixTime {
        let millis = (START * 1000 + self.elapsed).saturating_add_signed(self.sides[number].skew * 1000);
        UnixTime::from_millis(millis)
    }

    pub(super) fn pass(&mut self, while_: Duration) {
        self.elapsed += while_.as_millis() as u64;
    }

    pub(super) fn write(&mut self, number: usize, op: Op) -> Result<(), WriteError> {
        self.write_all(number, vec![op])
    }

    /// Writes entries, signed together.
    pub(super) fn write_all(&mut self, number: usize, ops: Vec<Op>) -> Result<(), WriteError> {
        self.elapsed += 1;
        let now = self.now(number);
        let Side { key, log, .. } = &mut self.sides[number];
        log.write(key, ops, now)
    }

    /// Writes although it may not count, as a broken program or a thief does.
    pub(super) fn force(&mut self, number: usize, op: Op) {
        self.elapsed += 1;
        let now = self.now(number);
        let Side { key, log, .. } = &mut self.sides[number];
        log.append(&key.clone(), vec![op], now);
    }

    pub(super) fn remove(&mut self, by: usize, whom: usize) -> Result<(), WriteError> {
        let last = self.log(by).last_of(self.id(whom));
        self.write(by, Op::RemoveDevice { device: self.id(whom), last })
    }

    pub(super) fn log(&self, number: usize) -> &Log {
        &self.sides[number].log
    }

    /// Takes what another side has; returns what became of it.
    pub(super) fn fetch(&mut self, to: usize, from: usize) -> Report {
        let update = self.log(from).missing(&self.log(to).vector());
        let now = self.now(to);
        self.sides[to].log.take(update, now)
    }

    /// Both take from each other until there is nothing new.
    pub(super) fn meet(&mut self, one: usize, other: usize) {
        for _ in 0..8 {
            let a = self.fetch(one, other);
            let b = self.fetch(other, one);
            if !a.is_change() && !b.is_change() {
                return;
            }
        }
    }

    /// All meet until all have the same.
    pub(super) fn gather(&mut self) {
        for _ in 0..6 {
            for number in 1..self.sides.len() {
                self.meet(0, number);
            }
            if self.agree() {
                return;
            }
        }
    }

    pub(super) fn agree(&self) -> bool {
        let first = self.log(0);
        self.sides.iter().all(|side| side.log.vector() == first.vector() && side.log.group() == first.group())
    }

    /// What a side calls a friend or device with this key.
    pub(super) fn call(&self, number: usize, subject: crate::Subject) -> Option<String> {
        self.log(number).group().names().get(&subject).map(|name| name.as_str().to_owned())
    }
}

fn key(number: usize) -> SecretKey {
    SecretKey::from_bytes(&[number as u8 + 1; 32])
}
