//! Many paths, very unequal ones, and paths that come and go all the time: nothing is lost, and all ends
//! well.

use std::time::{Duration, Instant};

use crate::lab_support::net::{Family, Multi};
use crate::lab_support::paths::{Running, active, carried, link};
use crate::lab_support::traffic::Way;
use crate::lab_support::{heavy, ms, secs};
use whimbrel_lab::{Direction, require};
use whimbrel_transport::{HandoverMode, PathPolicy, Policy, Priority, SchedulerKind};

#[test]
fn ten_paths_carry_one_connection() {
    if !require!() {
        return;
    }
    let links: Vec<_> = (0..10).map(|index| link(2, 5 + 3 * index)).collect();
    let policy = PathPolicy { max_paths: 10, ..Policy::Aggregate.into() };
    let running = Running::new(Multi::new(Family::V4, &links), |builder| builder.paths(policy));
    running.until_active(10);
    let began = Instant::now();
    running.start(Way::Down, 5_000_000).finish_within(&running.net.client, secs(60));
    eprintln!("5 MB over ten paths of 2 Mbit/s: {:?}", began.elapsed());
    // One path alone takes 20 s.
    assert!(began.elapsed() < secs(10), "{:?}", began.elapsed());
    assert!(running.paths().iter().all(|path| carried(path) > 20_000));
}

/// A path that is worth little must not hold up what the other brings.
#[test]
fn a_path_with_a_hundredth_of_the_rate_or_a_hundred_times_the_delay_does_no_harm() {
    if !require!() {
        return;
    }
    let _alone = heavy();
    for (what, fast, slow) in [
        ("rates of 100 to 1", link(20, 10), link(20, 10).rate(whimbrel_lab::Rate::kbit(200))),
        ("round trips of 100 to 1", link(20, 2), link(20, 200)),
    ] {
        for way in [Way::Up, Way::Down] {
            let running =
                Running::in_mode(Multi::new(Family::V4, &[fast.clone(), slow.clone()]), HandoverMode::Full);
            running.until_active(2);
            let began = Instant::now();
            running.start(way, 4_000_000).finish(&running.net.client);
            let took = began.elapsed();
            eprintln!("{what}, {way:?}: {took:?}");
            // The better link alone takes 1.7 s. What the kernel holds for the worse one would take five.
            assert!(took < ms(4500), "{what}, {way:?}: {took:?}");
        }
    }
}

/// xorshift64*: a test should do the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}

const LINKS: usize = 4;
const PAUSE: Duration = Duration::from_millis(300);

/// For how long: `make soak` sets three minutes.
fn events() -> u32 {
    let seconds = std::env::var("WHIMBREL_SOAK_SECONDS").map_or(45, |text| text.parse().unwrap());
    secs(seconds).div_duration_f64(PAUSE) as u32
}

/// 200 events a minute, under load in both directions. The time itself is what is tested.
#[test]
fn paths_that_come_and_go_all_the_time_lose_nothing() {
    if !require!() {
        return;
    }
    let links: Vec<_> = (0..LINKS as u64).map(|index| link(2 + index, 5 + 25 * index)).collect();
    let running = Running::in_mode(Multi::new(Family::V4, &links), HandoverMode::Full);
    running.until_active(LINKS);
    let client = &running.net.client;
    let began = Instant::now();
    let mut present = [true; LINKS];
    let mut dice = Dice(0x5eed);
    let (mut up, mut down) = (running.start(Way::Up, 1_000_000), running.start(Way::Down, 1_000_000));
    let (mut sent, mut received) = (0, 0);
    for event in 1..=events() {
        let index = dice.below(LINKS as u64) as usize;
        happen(&running, &mut dice, index, &mut present);
        if up.is_finished() {
            std::mem::replace(&mut up, running.start(Way::Up, 1_000_000)).finish(client);
            sent += 1;
        }
        if down.is_finished() {
            std::mem::replace(&mut down, running.start(Way::Down, 1_000_000)).finish(client);
            received += 1;
        }
        std::thread::sleep((began + PAUSE * event).saturating_duration_since(Instant::now()));
    }
    eprintln!("{sent} MB up, {received} MB down, {:?}", running.connection.stats());
    for (index, present) in present.iter().enumerate() {
        running.net.near[index].set_blackhole(Direction::Both, false);
        if !present {
            running.net.up(index).arrive();
        }
    }
    running.connection.path_control().set_handover(HandoverMode::Full);
    up.finish_within(client, secs(60));
    down.finish_within(client, secs(60));
    assert!(sent + received >= 3, "{sent} up, {received} down");
    let began = Instant::now();
    while active(&running.paths()).count() != LINKS {
        assert!(began.elapsed() < secs(90), "{:#?}", running.paths());
        std::thread::sleep(ms(20));
    }
    client.wait(running.echo().say(b"all is well"));
}

fn happen(running: &Running, dice: &mut Dice, index: usize, present: &mut [bool; LINKS]) {
    let link = &running.net.near[index];
    let control = running.connection.path_control();
    let direction = [Direction::Both, Direction::Forward, Direction::Backward][dice.below(3) as usize];
    match (dice.below(10), present[index]) {
        (0..=2, true) => {
            running.net.up(index).leave();
            present[index] = false;
        }
        (0..=3, false) => {
            running.net.up(index).arrive();
            present[index] = true;
        }
        (3, true) => link.set_blackhole(direction, true),
        (4..=6, _) => link.set_blackhole(Direction::Both, false),
        (7, _) => control.set_handover([HandoverMode::Full, HandoverMode::Backup][dice.below(2) as usize]),
        (8, _) => control.set_scheduler(SchedulerKind::ALL[dice.below(5) as usize]),
        _ => {
            if let Some(path) = running.over(index) {
                let priority = [Priority::Normal, Priority::Backup][dice.below(2) as usize];
                // It may be gone by now.
                let _ = control.set_priority(path.id, priority);
            }
        }
    }
}
