use super::*;
use std::future::Future;
use std::pin::pin;

const KIB: u64 = 1 << 10;

fn about(bytes: u64) -> Want {
    Want::About { bytes, workers: 2 }
}

fn taken(assembly: &Assembly, want: Want) -> Poll<Option<Range<u64>>> {
    pin!(assembly.take(want)).poll(&mut Context::from_waker(Waker::noop()))
}

fn read(assembly: &Assembly) -> Poll<Option<Result<Bytes, String>>> {
    assembly.poll_next(&mut Context::from_waker(Waker::noop()))
}

fn piece(length: u64) -> Bytes {
    vec![0; length as usize].into()
}

#[test]
fn bytes_go_on_in_order_whatever_comes_first() {
    let assembly = Assembly::new(10, 16, 1 << 20);
    assert_eq!(assembly.cut(&[2, 4]), Some(vec![10..12, 12..16]));
    assembly.put(12, Bytes::from_static(b"cdef"));
    assembly.done(12);
    assert_eq!(read(&assembly), Poll::Pending);
    assert_eq!(assembly.left(), 2);
    assembly.put(10, Bytes::from_static(b"ab"));
    assembly.done(10);
    assert_eq!(read(&assembly), Poll::Ready(Some(Ok(Bytes::from_static(b"ab")))));
    assert_eq!(read(&assembly), Poll::Ready(Some(Ok(Bytes::from_static(b"cdef")))));
    assert_eq!(read(&assembly), Poll::Ready(None));
    assert_eq!(taken(&assembly, Want::All), Poll::Ready(None));
}

#[test]
fn parts_that_are_not_all_of_it_or_do_not_fit_are_not_cut() {
    let cut = |parts: &[u64]| Assembly::new(0, 200 * KIB, 100 * KIB).cut(parts);
    assert_eq!(cut(&[100 * KIB, 100 * KIB]), None);
    let cut = |parts: &[u64]| Assembly::new(0, 100, 100 * KIB).cut(parts);
    assert_eq!(cut(&[50, 49]), None);
    assert_eq!(cut(&[100, 0]), None);
    assert_eq!(cut(&[u64::MAX, 101]), None);
}

#[test]
fn what_is_behind_the_first_bytes_is_cut_or_taken_while_they_come_and_what_breaks_of_them_comes_back() {
    let begun = || {
        let assembly = Assembly::new(0, 16, 1 << 20);
        assembly.first(6, Some(ON));
        assembly
    };
    let assembly = begun();
    assert_eq!(assembly.cut(&[16]), None, "the first are somebody's");
    assert_eq!(assembly.cut(&[4, 6]), Some(vec![6..10, 10..16]));
    let assembly = begun();
    assert!(read(&assembly).is_pending());
    assert!(assembly.standing().is_some_and(|standing| standing.has_begun));
    assembly.put(0, Bytes::from_static(b"ab"));
    assert_eq!(taken(&assembly, Want::All), Poll::Ready(Some(6..16)));
    assembly.put(6, Bytes::from_static(b"ghijklmnop"));
    assembly.done(6);
    assert!(taken(&assembly, Want::All).is_pending());
    assembly.give_back(0);
    assert_eq!(taken(&assembly, Want::All), Poll::Ready(Some(2..6)));
    assembly.put(2, Bytes::from_static(b"cdef"));
    assembly.done(2);
    assert_eq!(assembly.left(), 0);
}

#[test]
fn nobody_fetches_further_ahead_than_the_window() {
    let assembly = Assembly::new(0, 4 << 20, 256 * KIB);
    let first = taken(&assembly, about(128 * KIB));
    assert_eq!(first, Poll::Ready(Some(0..128 * KIB)));
    assert_eq!(taken(&assembly, about(1 << 20)), Poll::Ready(Some(128 * KIB..256 * KIB)));
    assert_eq!(taken(&assembly, about(1 << 20)), Poll::Pending);
    assembly.put(0, piece(100 * KIB));
    assert!(read(&assembly).is_ready());
    assert_eq!(taken(&assembly, about(1 << 20)), Poll::Ready(Some(256 * KIB..356 * KIB)));
}

#[test]
fn a_reader_that_rests_is_waited_for_by_workers_that_have_nothing_under_way() {
    let assembly = Assembly::new(0, 1 << 20, 128 * KIB);
    assert_eq!(taken(&assembly, about(1 << 20)), Poll::Ready(Some(0..128 * KIB)));
    assembly.put(0, piece(128 * KIB));
    assembly.done(0);
    assert_eq!(taken(&assembly, about(1 << 20)), Poll::Pending);
    assert!(read(&assembly).is_ready());
    assert_eq!(taken(&assembly, about(1 << 20)), Poll::Ready(Some(128 * KIB..256 * KIB)));
}

#[test]
fn one_that_fetches_all_waits_for_room() {
    let assembly = Assembly::new(0, 1 << 20, 128 * KIB);
    assert_eq!(taken(&assembly, Want::All), Poll::Ready(Some(0..1 << 20)));
    assembly.put(0, piece(128 * KIB));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(pin!(assembly.room_at(128 * KIB)).poll(&mut cx).is_pending());
    assert!(read(&assembly).is_ready());
    assert!(pin!(assembly.room_at(128 * KIB)).poll(&mut cx).is_ready());
}

#[test]
fn what_is_given_back_goes_first_and_is_waited_for() {
    let assembly = Assembly::new(0, 1 << 20, 1 << 20);
    assert_eq!(taken(&assembly, Want::All), Poll::Ready(Some(0..1 << 20)));
    // Another worker stays for as long as it may be needed.
    assert_eq!(taken(&assembly, about(KIB)), Poll::Pending);
    assembly.put(0, piece(KIB));
    assembly.give_back(0);
    let range = taken(&assembly, about(KIB));
    assert_eq!(range, Poll::Ready(Some(KIB..65 * KIB)));
    assembly.put(KIB, piece(64 * KIB));
    assembly.give_back(KIB);
    assert_eq!(taken(&assembly, Want::All), Poll::Ready(Some(65 * KIB..1 << 20)));
}

#[test]
fn ranges_get_smaller_towards_the_end() {
    let assembly = Assembly::new(0, 4 << 20, 64 << 20);
    let mut sizes = Vec::new();
    while let Poll::Ready(Some(range)) = taken(&assembly, about(8 << 20)) {
        sizes.push(range.end - range.start);
    }
    assert!(sizes[0] > 4 * sizes[sizes.len() / 2], "{sizes:?}");
    assert_eq!(sizes.iter().sum::<u64>(), 4 << 20);
    assert!(*sizes.last().unwrap() < 100 * KIB, "{sizes:?}");
}

#[test]
fn a_server_without_ranges_is_read_by_one_worker_from_the_first_byte_that_is_missing() {
    let assembly = Assembly::new(0, 1 << 20, 1 << 20);
    assert_eq!(taken(&assembly, about(64 * KIB)), Poll::Ready(Some(0..64 * KIB)));
    assert_eq!(taken(&assembly, about(64 * KIB)), Poll::Ready(Some(64 * KIB..128 * KIB)));
    assert_eq!(taken(&assembly, about(64 * KIB)), Poll::Ready(Some(128 * KIB..192 * KIB)));
    assembly.put(0, piece(64 * KIB));
    assembly.done(0);
    assembly.put(128 * KIB, piece(64 * KIB));
    assembly.done(128 * KIB);
    assembly.goes_on_in_one();
    assert_eq!(taken(&assembly, about(64 * KIB)), Poll::Ready(None), "one of several");
    assert_eq!(taken(&assembly, Want::All), Poll::Pending, "a range is under way");
    assembly.give_back(64 * KIB);
    assert_eq!(taken(&assembly, Want::All), Poll::Ready(Some(64 * KIB..1 << 20)));
    assert_eq!(assembly.left(), 960 * KIB);
    assembly.put(64 * KIB, piece(960 * KIB));
    assembly.done(64 * KIB);
    assert_eq!(assembly.left(), 0);
    assert_eq!(taken(&assembly, Want::All), Poll::Ready(None));
}

#[test]
fn small_pieces_are_joined() {
    let assembly = Assembly::new(0, 1 << 20, 1 << 20);
    assert!(taken(&assembly, Want::All).is_ready());
    for at in 0..40_000 {
        assembly.put(at, Bytes::from_static(b"x"));
    }
    assert_eq!(assembly.left(), (1 << 20) - 40_000);
    let mut sizes = Vec::new();
    while let Poll::Ready(Some(Ok(bytes))) = read(&assembly) {
        sizes.push(bytes.len());
    }
    assert_eq!(sizes, [16 << 10, 16 << 10, 40_000 - (32 << 10)]);
}

#[test]
fn at_the_edge_of_the_window_no_crumbs_are_asked_for() {
    let assembly = Assembly::new(0, 4 << 20, 256 * KIB);
    assert_eq!(taken(&assembly, about(256 * KIB)), Poll::Ready(Some(0..256 * KIB)));
    assembly.put(0, piece(10 * KIB));
    assert!(read(&assembly).is_ready());
    assert_eq!(taken(&assembly, about(256 * KIB)), Poll::Pending);
    assembly.put(10 * KIB, piece(60 * KIB));
    assert!(read(&assembly).is_ready());
    assert_eq!(taken(&assembly, about(256 * KIB)), Poll::Ready(Some(256 * KIB..326 * KIB)));
}

#[test]
fn a_failure_is_told_behind_what_has_come() {
    let assembly = Assembly::new(0, 100, 1 << 20);
    assert!(taken(&assembly, Want::All).is_ready());
    assembly.put(0, piece(10));
    assembly.fail("it changed");
    assembly.fail("later");
    assert!(matches!(read(&assembly), Poll::Ready(Some(Ok(bytes))) if bytes.len() == 10));
    assert_eq!(read(&assembly), Poll::Ready(Some(Err("it changed".to_owned()))));
    assert_eq!(taken(&assembly, Want::All), Poll::Ready(None));
}

const ON: On = On { id: 7, source: std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST) };

#[test]
fn the_end_of_the_longest_range_goes_to_another_worker_and_none_of_it_is_kept_twice() {
    let assembly = Assembly::new(0, 1 << 20, 1 << 20);
    assert_eq!(assembly.cut(&[256 * KIB, 768 * KIB]), Some(vec![0..256 * KIB, 256 * KIB..1 << 20]));
    assembly.put(256 * KIB, piece(100 * KIB));
    assert_eq!(assembly.longest(), None, "nobody waits for it");
    assert!(read(&assembly).is_pending());
    assert_eq!(assembly.longest(), None, "the server may have no ranges");
    assembly.comes_on(256 * KIB, ON, true);
    let longest = Rest { start: 256 * KIB, at: 356 * KIB, left: 668 * KIB, on: ON };
    assert_eq!(assembly.longest(), Some(longest));
    assert_eq!(assembly.shorten(256 * KIB, 668 * KIB), None, "no more is left than is to stay");
    assert_eq!(assembly.shorten(256 * KIB, 0), None);
    assert_eq!(assembly.shorten(256 * KIB, 68 * KIB), Some(424 * KIB..1 << 20));
    assert_eq!((assembly.at_work(), assembly.end_of(256 * KIB)), (3, 424 * KIB));
    // What had been asked for before goes on to come.
    assert_eq!(assembly.put(356 * KIB, piece(100 * KIB)), 68 * KIB);
    assembly.done(256 * KIB);
    assert_eq!(assembly.put(424 * KIB, piece(600 * KIB)), 600 * KIB);
    assembly.done(424 * KIB);
    assert_eq!((assembly.left(), assembly.at_work()), (256 * KIB, 1));
}

#[test]
fn of_a_range_that_two_workers_fetch_what_either_brings_first_is_kept() {
    [false, true].into_iter().for_each(either_brings_it);
}

fn either_brings_it(slow: bool) {
    let assembly = Assembly::new(0, 100 * KIB, 1 << 20);
    assert!(taken(&assembly, Want::All).is_ready());
    assert_eq!(assembly.standing(), None, "it is not asked for, and nobody waits");
    assembly.asked_on(0, ON, None);
    assert!(read(&assembly).is_pending());
    assert!(assembly.standing().is_some_and(|standing| !standing.has_begun));
    assembly.comes_on(0, ON, true);
    assert!(assembly.standing().is_some_and(|standing| standing.has_begun));
    assembly.put(0, piece(10 * KIB));
    assert!(read(&assembly).is_ready() && read(&assembly).is_pending());
    let rest = Rest { start: 0, at: 10 * KIB, left: 90 * KIB, on: ON };
    assert_eq!(assembly.standing().map(|standing| standing.rest), Some(rest));
    let before = Rest { at: 9 * KIB, left: 91 * KIB, ..rest };
    assert_eq!(assembly.join(&before, false), None, "it has moved since");
    assert_eq!(assembly.join(if slow { &before } else { &rest }, slow), Some(10 * KIB..100 * KIB));
    assert_eq!((assembly.standing(), assembly.longest(), assembly.join(&rest, slow)), (None, None, None));
    // The first comes again, and is overtaken.
    assert_eq!(assembly.put(10 * KIB, piece(20 * KIB)), 20 * KIB);
    assert_eq!(assembly.put(10 * KIB, piece(40 * KIB)), 40 * KIB);
    assert_eq!((assembly.left(), assembly.received()), (50 * KIB, 50 * KIB));
    // One of them breaks, and the range is the other's alone.
    assembly.give_back(0);
    assert_eq!(taken(&assembly, Want::All), Poll::Pending);
    let mut over = Box::pin(assembly.is_over(0));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(over.as_mut().poll(&mut cx).is_pending());
    assert_eq!(assembly.put(30 * KIB, piece(80 * KIB)), 70 * KIB);
    assembly.done(0);
    assert!(over.as_mut().poll(&mut cx).is_ready());
    assert_eq!(
        (assembly.left(), assembly.put(30 * KIB, piece(KIB)), assembly.join(&rest, slow)),
        (0, KIB, None)
    );
}

#[test]
fn nothing_moves_while_something_is_not_even_asked_for() {
    let assembly = Assembly::new(0, 4 << 20, 1 << 20);
    assert!(taken(&assembly, about(512 * KIB)).is_ready());
    assembly.comes_on(0, ON, true);
    assert!(read(&assembly).is_pending());
    assert_eq!(assembly.longest(), None);
}

/// What workers and the reader do, in any order.
#[derive(Debug, Clone)]
enum Step {
    Take(u64),
    Put { whose: usize, bytes: u64 },
    GiveBack { whose: usize },
    Shorten { whose: usize, stays: u64 },
    Join { whose: usize },
    Read,
}

fn steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
    use proptest::prelude::*;
    let step = prop_oneof![
        (1..300 * KIB).prop_map(Step::Take),
        (any::<usize>(), 1..100 * KIB).prop_map(|(whose, bytes)| Step::Put { whose, bytes }),
        any::<usize>().prop_map(|whose| Step::GiveBack { whose }),
        (any::<usize>(), 0..200 * KIB).prop_map(|(whose, stays)| Step::Shorten { whose, stays }),
        any::<usize>().prop_map(|whose| Step::Join { whose }),
        Just(Step::Read),
    ];
    proptest::collection::vec(step, 0..120)
}

/// Workers that hold ranges, and a reader that knows what it must read.
struct Model {
    assembly: Assembly,
    /// Where each begins, and its first byte that has not come.
    held: Vec<(u64, u64)>,
    read: u64,
}

impl Model {
    const TOTAL: u64 = 3 << 20;
    const WINDOW: u64 = 512 * KIB;

    /// Each byte tells its place.
    fn bytes(range: Range<u64>) -> Bytes {
        range.map(|at| (at % 251) as u8).collect::<Vec<_>>().into()
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Take(bytes) => {
                if let Poll::Ready(Some(range)) = taken(&self.assembly, about(*bytes)) {
                    assert!(range.end <= self.read + Self::WINDOW, "{range:?} is beyond the window");
                    self.held.push((range.start, range.start));
                }
            }
            Step::Put { whose, bytes } if !self.held.is_empty() => {
                let which = whose % self.held.len();
                let (start, at) = self.held[which];
                let end = self.assembly.end_of(start);
                if pin!(self.assembly.is_over(start)).poll(&mut Context::from_waker(Waker::noop())).is_ready()
                {
                    // Another one has brought the rest. What was on its way all the same is dropped.
                    let comes = at..(at + bytes).min(Self::TOTAL);
                    assert_eq!(self.assembly.put(at, Self::bytes(comes.clone())), comes.end - at);
                    self.held.remove(which);
                    return;
                }
                // More of it may come than is left to this worker.
                let comes = at..(at + bytes).min(end + KIB).min(Self::TOTAL);
                let kept = self.assembly.put(at, Self::bytes(comes.clone()));
                assert_eq!(at + kept, comes.end.min(end));
                self.held[which].1 = at + kept;
                if at + kept == end {
                    self.held.remove(which);
                    self.assembly.done(start);
                }
            }
            Step::GiveBack { whose } if !self.held.is_empty() => {
                let (start, _) = self.held.swap_remove(whose % self.held.len());
                self.assembly.give_back(start);
            }
            Step::Shorten { whose, stays } if !self.held.is_empty() => {
                let (start, _) = self.held[whose % self.held.len()];
                if let Some(rest) = self.assembly.shorten(start, *stays) {
                    self.held.push((rest.start, rest.start));
                }
            }
            Step::Join { whose } if !self.held.is_empty() => {
                let (start, at) = self.held[whose % self.held.len()];
                self.assembly.asked_on(start, ON, None);
                let left = self.assembly.end_of(start).saturating_sub(at);
                if let Some(rest) = self.assembly.join(&Rest { start, at, left, on: ON }, false) {
                    assert_eq!(rest, at..at + left);
                    self.held.push((start, at));
                }
            }
            Step::Read => {
                if let Poll::Ready(Some(next)) = read(&self.assembly) {
                    let bytes = next.unwrap();
                    let end = self.read + bytes.len() as u64;
                    assert!(bytes == Self::bytes(self.read..end), "other bytes from {}", self.read);
                    self.read = end;
                }
            }
            _ => {}
        }
    }
}

proptest::proptest! {
    #[test]
    fn whatever_workers_do_the_reader_gets_each_byte_once_and_in_order(steps in steps()) {
        let assembly = Assembly::new(0, Model::TOTAL, Model::WINDOW);
        let mut model = Model { assembly, held: Vec::new(), read: 0 };
        steps.iter().for_each(|step| model.step(step));
        // Then all goes well.
        for _ in 0..10_000 {
            model.step(&Step::Take(200 * KIB));
            model.step(&Step::Put { whose: 0, bytes: u64::from(u32::MAX) });
            model.step(&Step::Read);
        }
        assert_eq!((model.read, model.assembly.left()), (Model::TOTAL, 0));
        assert_eq!(read(&model.assembly), Poll::Ready(None));
        assert_eq!(taken(&model.assembly, about(1)), Poll::Ready(None));
    }
}
