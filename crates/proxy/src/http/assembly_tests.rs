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
    assembly.done();
    assert_eq!(read(&assembly), Poll::Pending);
    assert_eq!(assembly.left(), 2);
    assembly.put(10, Bytes::from_static(b"ab"));
    assembly.done();
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
    assembly.give_back(KIB..1 << 20);
    let range = taken(&assembly, about(KIB));
    assert_eq!(range, Poll::Ready(Some(KIB..65 * KIB)));
    assembly.give_back(65 * KIB..65 * KIB);
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
