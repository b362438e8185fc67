//! Every intent of Table I changes a decision of `whimbrel`: worked out by hand.
#![allow(clippy::unwrap_used)]

use crate::support::{Case, TWO, best, case, open, stream, why};
use whimbrel_access::*;

#[track_caller]
fn chooses(case: &Case, path: u8, reason: (Rule, Key)) {
    let decision = case.by("whimbrel");
    assert_eq!(best(&decision), open(path), "{} {:?}", case.intents, decision);
    assert_eq!(why(&decision), (reason.0, Some(reason.1)), "{}", case.intents);
}

const EARLIEST: (Rule, Key) = (Rule::EarliestArrival, Key::SizeReceived);

/// 200 kB/s fit over the near path if they come evenly, but bursts would not.
#[test]
fn category_says_how_even_and_how_urgent_a_flow_is() {
    let paths = [(0.01, 3e5), (0.1, 1e6)];
    chooses(&stream("category=stream bitrate-received=200000", &paths), 0, EARLIEST);
    let mixed = stream("category=mixed bitrate-received=200000", &paths);
    chooses(&mixed, 1, (Rule::HasTheRate, Key::Burstiness));
    // What the near path mostly takes is 300 ms instead of 10: 20 ms + 290 ms are more than 200 ms.
    let queued = |intents: &str| {
        let mut case = stream(intents, &paths);
        case.paths[0].srtt_median = Some(Seconds(0.3));
        case
    };
    chooses(&queued("category=bulk"), 0, EARLIEST);
    chooses(&queued("category=query"), 1, (Rule::LowestLatency, Key::Timeliness));
    chooses(&queued("category=control"), 1, (Rule::LowestLatency, Key::Timeliness));
}

/// The first path is fast down, the second one up: 0.02 + 10 s or 0.02 + 0.1 s for 100 kB.
#[test]
fn sizes_count_in_their_own_direction() {
    let unit = |intents: &str| {
        let mut case = case(intents, &[(0.01, 1e6), (0.01, 1e4)]);
        (case.paths[0].up, case.paths[1].up) = (case.paths[1].up, case.paths[0].up);
        case
    };
    chooses(&unit("size-received=100000"), 0, EARLIEST);
    chooses(&unit("size-sent=100000"), 1, (Rule::EarliestArrival, Key::SizeSent));
}

/// 1 kB takes 30 ms over the near path and 200 ms over the far one; 10 MB take 100 s and 1.2 s.
#[test]
fn duration_times_bitrate_is_a_size() {
    chooses(&stream("bitrate-received=100000 burstiness=bulk duration=10", &TWO), 0, EARLIEST);
    chooses(&stream("bitrate-received=100000 burstiness=bulk duration=100000", &TWO), 1, EARLIEST);
}

/// The near path carries 100 kB/s.
#[test]
fn a_bitrate_needs_a_path_that_has_it_to_spare() {
    for (key, name) in [(Key::BitrateReceived, "bitrate-received"), (Key::BitrateSent, "bitrate-sent")] {
        let flow = |rate: u32| stream(&format!("{name}={rate} burstiness=no-bursts"), &TWO);
        chooses(&flow(50_000), 0, EARLIEST);
        chooses(&flow(200_000), 1, (Rule::HasTheRate, key));
        // Others leave 20 kB/s of it.
        let mut busy = flow(50_000);
        let now = Some(BytesPerSecond(80_000.0));
        (busy.paths[0].down.now, busy.paths[0].up.now) = (now, now);
        chooses(&busy, 1, (Rule::HasTheRate, key));
    }
}

/// The near path carries 300 kB/s: bursts of 200 kB/s on average want 400.
#[test]
fn bursts_need_room() {
    let flow = |burstiness: &str| {
        stream(&format!("bitrate-received=200000 burstiness={burstiness}"), &[(0.01, 3e5), (0.1, 1e6)])
    };
    chooses(&flow("no-bursts"), 0, EARLIEST);
    chooses(&flow("bulk"), 0, EARLIEST);
    chooses(&flow("regular-bursts"), 1, (Rule::HasTheRate, Key::Burstiness));
    chooses(&flow("random-bursts"), 1, (Rule::HasTheRate, Key::Burstiness));
}

#[test]
fn timeliness_weighs_delay_jitter_and_what_others_do() {
    let unit = |timeliness: &str| {
        let mut case = case(&format!("size-received=1000 timeliness={timeliness}"), &TWO);
        // A median of 60 ms over a minimum of 10: more than 50 ms of jitter would be too much for a stream.
        case.paths[0].srtt_median = Some(Seconds(0.06));
        case
    };
    for timeliness in ["transfer", "interactive", "stream", "background"] {
        chooses(&unit(timeliness), 0, EARLIEST);
    }
    let jittery = |timeliness: &str| {
        let mut case = unit(timeliness);
        case.paths[0].srtt_median = Some(Seconds(0.07));
        case
    };
    chooses(&jittery("transfer"), 0, EARLIEST);
    // 20 + 10 + 60 ms are still less than 200.1.
    chooses(&jittery("interactive"), 0, EARLIEST);
    chooses(&jittery("stream"), 1, (Rule::Steadiest, Key::Timeliness));
    let queued = |timeliness: &str| {
        let mut case = unit(timeliness);
        case.paths[0].srtt_median = Some(Seconds(0.2));
        case
    };
    // 20 + 10 + 190 ms are not.
    chooses(&queued("interactive"), 1, (Rule::LowestLatency, Key::Timeliness));
    // Something is under way over the near path: by us, or by another program.
    let mut ours = unit("background");
    ours.paths[0].scheduled = 5000;
    chooses(&ours, 1, (Rule::Yields, Key::Timeliness));
    let mut others = unit("background");
    others.paths[0].down.now = Some(BytesPerSecond(20_000.0));
    chooses(&others, 1, (Rule::Yields, Key::Timeliness));
    others.intents = "size-received=1000 timeliness=transfer".parse().unwrap();
    chooses(&others, 0, EARLIEST);
}

#[test]
fn resilience_decides_about_losses_and_about_the_unknown() {
    let unit = |resilience: &str| case(&format!("size-received=1000000 resilience={resilience}"), &TWO);
    let lossy = |resilience: &str| {
        let mut case = unit(resilience);
        case.paths[1].loss = Some(0.05);
        case
    };
    chooses(&lossy("recoverable"), 1, EARLIEST);
    chooses(&lossy("sensitive"), 0, (Rule::MostReliable, Key::Resilience));
    let unknown = |resilience: &str| {
        let mut case = unit(resilience);
        case.paths[1] = PathEstimate::default();
        case
    };
    chooses(&unknown("recoverable"), 0, EARLIEST);
    chooses(&unknown("sensitive"), 0, EARLIEST);
    chooses(&unknown("resilient"), 1, (Rule::Explore, Key::Resilience));
}

/// The near path is free, the far one costs money. 50 kB take 520 ms or 205 ms: less than half. 20 kB take
/// 220 ms or 202 ms.
#[test]
fn cost_is_a_matter_of_the_gain() {
    let unit = |bytes: u32, cost: &str| {
        let mut case = case(&format!("size-received={bytes} cost={cost}"), &TWO);
        case.paths[1].metered = true;
        case
    };
    let spared = (Rule::Cheapest, Key::Cost);
    chooses(&unit(50_000, "balance"), 1, EARLIEST);
    chooses(&unit(20_000, "balance"), 0, spared);
    chooses(&unit(20_000, "ignore"), 1, EARLIEST);
    chooses(&unit(50_000, "optimise"), 0, spared);
    chooses(&unit(50_000, "no-expense"), 0, (Rule::TooExpensive, Key::Cost));
    // With no free path, only `no-expense` waits.
    for (cost, expected) in
        [("balance", open(1)), ("ignore", open(1)), ("optimise", open(1)), ("no-expense", None)]
    {
        let mut case = unit(50_000, cost);
        case.paths[0].metered = true;
        assert_eq!(best(&case.by("whimbrel")), expected, "{cost}");
    }
}

#[test]
fn where_a_metered_path_must_be_worth_it_nothing_is_split_over_it_or_opened_ahead() {
    let mut balanced = case("size-received=1000000", &[(0.01, 1e6), (0.01, 1e6)]);
    balanced.paths[1].metered = true;
    let decision = balanced.by("whimbrel");
    assert_eq!((best(&decision), decision.parts(), decision.warm()), (open(0), &[][..], None));
    balanced.intents = "size-received=1000000 cost=ignore".parse().unwrap();
    assert_eq!(balanced.by("whimbrel").parts().len(), 2);
}

#[test]
fn what_table_one_has_not_for_messages_does_not_count_for_them() {
    let message = case("bitrate-received=200000 burstiness=no-bursts", &TWO);
    chooses(&message, 0, EARLIEST);
    let columns = |granularity| {
        Key::ALL
            .iter()
            .copied()
            .filter(|key| key.applies_to(granularity))
            .map(Key::as_str)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        columns(Granularity::Message),
        ["size-sent", "size-received", "timeliness", "resilience", "cost"]
    );
    assert_eq!(columns(Granularity::Stream).len(), 10);
    assert_eq!(columns(Granularity::Connection).len(), 10);
}
