//! Devices that are never up at once, and a service that keeps what they leave.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use whimbrel_base::{EndpointId, SecretKey, UnixTime};
use whimbrel_names::MAX_OF_DEVICE;

use super::sealed::Letter;
use super::{LASTING, MOST_OWN, Mailbox, Piece, hear_anything, pieces};
use crate::{Log, Op, Vector};

const NOW: UnixTime = UnixTime::from_secs(1_700_000_000);

fn key(number: u8) -> SecretKey {
    SecretKey::from_bytes(&[number; 32])
}

fn add_friend(number: u16) -> Op {
    let id: [u8; 32] = Sha256::digest(number.to_be_bytes()).into();
    Op::AddFriend { friend: EndpointId::from_bytes(&id), name: None }
}

/// What a service keeps: who left it, and what.
#[derive(Default)]
struct Service {
    kept: Vec<(u64, EndpointId, Vec<u8>)>,
    last: u64,
    left: usize,
}

impl Service {
    fn keep(&mut self, by: EndpointId, bytes: Vec<u8>) {
        (self.last, self.left) = (self.last + 1, self.left + 1);
        self.kept.push((self.last, by, bytes));
        let own = self.kept.iter().filter(|kept| kept.1 == by).count();
        if own > MAX_OF_DEVICE {
            let oldest = self.kept.iter().position(|kept| kept.1 == by).unwrap();
            self.kept.remove(oldest);
        }
    }
}

struct Device {
    key: SecretKey,
    log: Log,
    mailbox: Mailbox,
}

impl Device {
    /// One that knows nothing.
    fn new(number: u8) -> Self {
        let user = key(1).id();
        Self { key: key(number), log: Log::new(user), mailbox: Mailbox::new(user) }
    }

    fn hear(&mut self, kept: &[(u64, EndpointId, Vec<u8>)], left: Duration) {
        let after = self.mailbox.after();
        for (number, by, bytes) in kept.iter().filter(|kept| kept.0 > after) {
            let (number, is_own, bytes) = (*number, *by == self.key.id(), bytes.clone());
            self.mailbox.hear(&Piece { number, is_own, left, bytes });
        }
        self.mailbox.settle(&mut self.log, &self.key, NOW);
    }

    /// Is up for a moment.
    fn look(&mut self, service: &mut Service) {
        self.hear(&service.kept, LASTING * 3);
        if self.mailbox.is_outdated(&self.log) {
            self.look_anew(service);
            return;
        }
        for bytes in self.mailbox.due(&self.log, &self.key, NOW) {
            service.keep(self.key.id(), bytes);
        }
    }

    /// Is up for a moment after it was off.
    fn look_anew(&mut self, service: &mut Service) {
        self.mailbox = Mailbox::new(self.log.user());
        self.look(service);
    }

    fn add(&mut self, number: u8) {
        let name = format!("d{number}.ada@example.org").parse().unwrap();
        self.log.add_device(&self.key, key(number).id(), name, true, NOW).unwrap();
    }

    fn befriend(&mut self, number: u16) {
        self.log.write(&self.key, vec![add_friend(number)], NOW).unwrap();
    }

    fn friends(&self) -> usize {
        self.log.group().friends().count()
    }
}

/// The user's own device, with device 2 in its list.
fn home() -> Device {
    let mut home = Device::new(1);
    home.add(2);
    home
}

#[test]
fn devices_that_are_never_up_at_once_come_to_have_the_same_and_only_what_is_new_is_left() {
    let (mut home, mut desk, mut service) = (home(), Device::new(2), Service::default());
    (1..100).for_each(|number| home.befriend(number));
    home.look(&mut service);
    desk.look(&mut service);
    assert_eq!((desk.log.vector(), service.left), (home.log.vector(), 1));
    desk.befriend(200);
    desk.look(&mut service);
    assert_eq!(service.left, 2);
    let [first, second] = [&service.kept[0].2, &service.kept[1].2].map(Vec::len);
    assert!(second * 4 < first, "{second} {first}");
    home.look(&mut service);
    assert_eq!((desk.log.vector(), home.friends()), (home.log.vector(), 100));
    for _ in 0..3 {
        home.look(&mut service);
        desk.look(&mut service);
        home.look_anew(&mut service);
        desk.look_anew(&mut service);
    }
    assert_eq!(service.left, 2, "something was left again");
}

#[test]
fn a_new_device_reads_what_was_left_before_it_came_once_another_one_is_up() {
    let (mut home, mut desk, mut laptop) = (home(), Device::new(2), Device::new(3));
    let mut service = Service::default();
    home.look(&mut service);
    desk.look(&mut service);
    laptop.look(&mut service);
    assert!(laptop.log.is_empty(), "it is none of the devices yet");
    desk.add(3);
    desk.look(&mut service);
    laptop.look(&mut service);
    assert_eq!(laptop.log.vector(), desk.log.vector());
    home.look(&mut service);
    assert_eq!(home.log.vector(), desk.log.vector());
}

#[test]
fn a_removed_device_reads_nothing_that_is_left_from_then_on_and_what_it_leaves_is_void() {
    let (mut home, mut desk, mut service) = (home(), Device::new(2), Service::default());
    home.add(3);
    let mut laptop = Device::new(3);
    for device in [&mut home, &mut desk, &mut laptop] {
        device.look(&mut service);
    }
    home.log.remove_device(&home.key, key(2).id(), NOW).unwrap();
    home.befriend(1);
    home.look(&mut service);
    desk.look(&mut service);
    assert!(desk.log.group().is_member(key(2).id()) && desk.friends() == 0, "it was told something");
    desk.befriend(2);
    desk.look(&mut service);
    laptop.look(&mut service);
    home.look(&mut service);
    assert_eq!((laptop.log.vector(), laptop.friends()), (home.log.vector(), 1));
}

#[test]
fn who_is_no_device_reads_nothing_and_what_it_leaves_harms_nobody() {
    let (mut home, mut desk, mut service) = (home(), Device::new(2), Service::default());
    home.befriend(1);
    home.look(&mut service);
    let mut stranger = Device::new(9);
    stranger.look(&mut service);
    assert!(stranger.log.is_empty());
    // It says that all is there, and that it is the user: in a letter for the user's devices, and in rubbish.
    let mut own = Log::new(key(9).id());
    own.write(&key(9), vec![Op::Seen], NOW).unwrap();
    let readers = vec![key(1).id(), key(2).id()];
    for update in [home.log.missing(&Vector::default()), own.missing(&Vector::default())] {
        let letter = Letter { readers: readers.clone(), update }.seal(&key(9), key(1).id()).unwrap();
        for piece in pieces::cut(&letter).unwrap() {
            service.keep(key(9).id(), piece);
        }
    }
    service.keep(key(9).id(), vec![0; 100]);
    service.kept.rotate_left(1);
    for (number, kept) in (100..).zip(&mut service.kept) {
        kept.0 = number;
    }
    service.last = 200;
    desk.look(&mut service);
    home.befriend(2);
    home.look_anew(&mut service);
    desk.look_anew(&mut service);
    assert_eq!((desk.log.vector(), desk.friends()), (home.log.vector(), 2));
    // What only the stranger left does not count: it is left again by a device.
    service.kept.retain(|kept| kept.1 == key(9).id());
    home.look_anew(&mut service);
    let mut fresh = Device::new(2);
    fresh.look(&mut service);
    assert_eq!(fresh.log.vector(), home.log.vector());
}

#[test]
fn a_service_that_drops_reorders_and_repeats_harms_nothing() {
    for drop in 0..12 {
        let (mut home, mut desk, mut service) = (home(), Device::new(2), Service::default());
        for number in 0..6 {
            home.befriend(number);
            home.look(&mut service);
        }
        // What is handed out: backwards, each twice, and one is missing.
        let mut kept = service.kept.clone();
        kept.extend(service.kept.clone());
        kept.reverse();
        if drop < kept.len() / 2 {
            let number = kept[drop].0;
            kept.retain(|kept| kept.0 != number);
        }
        for kept in &kept {
            let (number, is_own, bytes) = (kept.0, false, kept.2.clone());
            desk.mailbox.hear(&Piece { number, is_own, left: LASTING, bytes });
            desk.mailbox.settle(&mut desk.log, &desk.key, NOW);
        }
        let whole = drop >= service.kept.len();
        assert_eq!(desk.log.vector() == home.log.vector(), whole, "{drop}");
        // What is not there is left anew by whoever has it, and then all have it.
        service.kept.retain(|known| kept.iter().any(|kept| kept.0 == known.0));
        home.look_anew(&mut service);
        desk.look_anew(&mut service);
        assert_eq!(desk.log.vector(), home.log.vector(), "{drop}");
    }
}

#[test]
fn what_is_soon_forgotten_there_is_left_anew() {
    let (mut home, mut service) = (home(), Service::default());
    home.look(&mut service);
    home.mailbox = Mailbox::new(home.log.user());
    home.hear(&service.kept, LASTING - Duration::from_secs(1));
    assert_eq!(home.mailbox.due(&home.log, &home.key, NOW).len(), 1);
    home.mailbox = Mailbox::new(home.log.user());
    home.hear(&service.kept, LASTING);
    assert_eq!(home.mailbox.due(&home.log, &home.key, NOW).len(), 0);
}

#[test]
fn a_device_that_says_more_and_more_leaves_all_of_it_in_few_before_the_first_is_let_go() {
    let (mut home, mut service) = (home(), Service::default());
    for number in 0..100 {
        home.befriend(number);
        home.look(&mut service);
        if number % 7 > 0 {
            continue;
        }
        let mut desk = Device::new(2);
        desk.hear(&service.kept, LASTING);
        assert_eq!(desk.log.vector(), home.log.vector(), "{number}");
    }
    assert_eq!(service.kept.len(), MAX_OF_DEVICE);
    let left = service.left;
    home.look_anew(&mut service);
    home.look(&mut service);
    assert_eq!(service.left, left, "nothing has changed");
}

#[test]
fn a_long_list_travels_whole_and_one_that_is_too_long_is_left_as_far_as_there_is_room() {
    let (mut home, mut desk, mut service) = (home(), Device::new(2), Service::default());
    home.log.write(&key(1), (0..3000).map(add_friend).collect(), NOW).unwrap();
    home.look(&mut service);
    desk.look(&mut service);
    assert_eq!(desk.friends(), 3000);
    assert!(service.left <= MOST_OWN, "{}", service.left);
    for _ in 0..3 {
        home.log.write(&key(1), (0..4000).map(add_friend).collect(), NOW).unwrap();
    }
    let before = service.left;
    for _ in 0..5 {
        home.look(&mut service);
    }
    assert!(service.left - before <= MOST_OWN, "{}", service.left);
    let (after, mut desk) = (service.left, Device::new(2));
    for _ in 0..3 {
        home.look_anew(&mut service);
        desk.look_anew(&mut service);
    }
    assert_eq!(service.left, after, "it was left again");
    assert!(desk.log.len() > 3001 && desk.log.len() < home.log.len(), "{}", desk.log.len());
    assert!(service.kept.len() <= MAX_OF_DEVICE);
}

#[test]
fn a_checkpoint_is_agreed_on_by_devices_that_are_never_up_at_once_and_a_new_one_goes_on_from_it() {
    let (mut home, mut desk, mut service) = (home(), Device::new(2), Service::default());
    (0..100).for_each(|number| home.befriend(number));
    home.look(&mut service);
    desk.look(&mut service);
    // Stated long ago.
    assert_eq!(home.log.compact(&home.key, UnixTime::default()), Ok(true));
    home.look(&mut service);
    desk.look(&mut service);
    assert!(desk.log.acknowledge(&desk.key, NOW));
    desk.befriend(100);
    desk.look(&mut service);
    home.look(&mut service);
    assert_eq!(home.log.waited_for(), [key(1).id()].into());
    assert!(home.log.acknowledge(&home.key, NOW) && home.log.checkpoints().closed.is_some());
    home.add(3);
    home.look(&mut service);
    let mut laptop = Device::new(3);
    laptop.look(&mut service);
    desk.look(&mut service);
    for device in [&desk, &laptop] {
        assert_eq!((device.log.vector(), device.friends()), (home.log.vector(), 101));
    }
    let left = service.left;
    for device in [&mut home, &mut desk, &mut laptop] {
        device.look(&mut service);
        device.look_anew(&mut service);
    }
    assert_eq!(service.left, left, "something was left again");
}

#[test]
fn whatever_comes_as_a_piece_says_nothing() {
    hear_anything(&[]);
    hear_anything(&[0; 18]);
    let letter =
        Letter { readers: vec![key(1).id()], update: Log::new(key(1).id()).missing(&Vector::default()) };
    let sealed = letter.seal(&key(1), key(1).id()).unwrap();
    for cut in [1, 4, 36, 38, 118, sealed.len() - 64, sealed.len()] {
        hear_anything(&sealed[..cut]);
    }
}
