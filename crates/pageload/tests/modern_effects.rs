//! Each effect of the modern model by itself, against times worked out by hand.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use whimbrel_access::PolicySpec;
use whimbrel_pageload::har::Har;
use whimbrel_pageload::modern::{Network, Protocol, Settings, Simulator, Tls, Trace};
use whimbrel_pageload::page::{Page, Reading};
use whimbrel_pageload::scenario::{Link, Outcome};

const RTT: f64 = 0.1;
const WINDOW: f64 = 14_600.0;
/// So fast that only the window counts.
const FAST: f64 = 1e9;

struct Object<'a> {
    url: &'a str,
    start_ms: u32,
    time_ms: u32,
    bytes: u32,
    wait_ms: u32,
}

fn object(url: &str, start_ms: u32, time_ms: u32, bytes: u32) -> Object<'_> {
    Object { url, start_ms, time_ms, bytes, wait_ms: 0 }
}

fn page(objects: &[Object<'_>]) -> Page {
    let entries: Vec<String> = objects
        .iter()
        .map(|o| {
            format!(
                r#"{{"startedDateTime":"2020-01-01T00:00:{:02}.{:03}Z","time":{},"request":{{"url":"{}"}},
                "response":{{"bodySize":{}}},"timings":{{"wait":{}}}}}"#,
                o.start_ms / 1000,
                o.start_ms % 1000,
                o.time_ms,
                o.url,
                o.bytes,
                o.wait_ms
            )
        })
        .collect();
    let text = format!(r#"{{"log":{{"entries":[{}]}}}}"#, entries.join(","));
    Page::new(&Har::parse("x.har", text.as_bytes()).unwrap(), Reading::Modern).unwrap()
}

fn load_over(page: &Page, settings: &Settings, networks: &[Network], policy: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let mut policy = PolicySpec::named(policy).build().unwrap();
    Simulator::new().load(page, networks, settings, policy.as_mut(), 7, &mut outcome);
    outcome
}

fn plt(objects: &[Object<'_>], settings: &Settings, rate: f64) -> f64 {
    load_over(&page(objects), settings, &[Network::plain(Link { rtt: RTT, rate })], "single").plt
}

#[track_caller]
fn assert_time(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6, "{found} s, expected {expected} s");
}

/// One window's worth: it arrives within the round trip after the first byte.
fn one() -> [Object<'static>; 1] {
    [object("https://a.org/", 0, 10, 14_600)]
}

#[test]
fn bare_is_a_handshake_a_request_and_the_window() {
    // SYN 1 rtt, request 1 rtt, then a window per rtt.
    assert_time(plt(&one(), &Settings::bare(), FAST), 2.0 * RTT + RTT);
}

#[test]
fn slow_start_doubles_and_ends_at_the_share() {
    let big = [object("https://a.org/", 0, 10, 14_600 * 7)];
    // Rounds of 1, 2 and 4 windows.
    assert_time(plt(&big, &Settings::bare(), FAST), 2.0 * RTT + 3.0 * RTT);
    // At two windows per rtt: one round of 1, then 6 windows at 2 each.
    assert_time(plt(&big, &Settings::bare(), 2.0 * WINDOW / RTT), 2.0 * RTT + RTT + 3.0 * RTT);
}

#[test]
fn the_initial_window_can_be_set() {
    let settings = Settings { initial_window: 40, ..Settings::bare() };
    assert_time(plt(&one(), &settings, FAST), 2.0 * RTT + RTT / 4.0);
}

#[test]
fn each_tls_costs_its_round_trips() {
    let with = |tls, protocol| plt(&one(), &Settings { tls, protocol, ..Settings::bare() }, FAST);
    assert_time(with(Tls::V12, Protocol::H2), 5.0 * RTT);
    assert_time(with(Tls::V13, Protocol::H2), 4.0 * RTT);
    assert_time(with(Tls::ZeroRtt, Protocol::H2), 3.0 * RTT);
    assert_time(with(Tls::V13, Protocol::H3), 3.0 * RTT);
    assert_time(with(Tls::ZeroRtt, Protocol::H3), 2.0 * RTT);
}

#[test]
fn plain_objects_are_upgraded_only_if_wanted() {
    let plain = [object("http://a.org/", 0, 10, 14_600)];
    let settings = Settings { tls: Tls::V13, protocol: Protocol::H2, ..Settings::bare() };
    assert_time(plt(&plain, &settings, FAST), 3.0 * RTT);
    assert_time(plt(&plain, &Settings { upgrade: true, ..settings }, FAST), 4.0 * RTT);
}

#[test]
fn dns_costs_a_round_trip_once_for_each_host() {
    let settings = Settings { dns: true, ..Settings::bare() };
    assert_time(plt(&one(), &settings, FAST), 4.0 * RTT);
    let two_hosts = [object("https://a.org/", 0, 10, 14_600), object("https://b.org/", 20, 10, 14_600)];
    assert_time(plt(&two_hosts, &settings, FAST), 8.0 * RTT);
}

#[test]
fn a_request_on_an_open_connection_takes_a_round_trip() {
    let two = [object("https://a.org/", 0, 10, 14_600), object("https://a.org/x", 20, 10, 14_600)];
    // The window has doubled: the second object takes half a round trip.
    assert_time(plt(&two, &Settings::bare(), FAST), 3.0 * RTT + RTT / 2.0);
    assert_time(plt(&two, &Settings { request_rtt: true, ..Settings::bare() }, FAST), 3.0 * RTT + 1.5 * RTT);
}

#[test]
fn servers_think_as_long_as_recorded_beyond_their_fastest_answer() {
    let mut two = [object("https://a.org/", 0, 10, 14_600), object("https://a.org/x", 200, 10, 14_600)];
    (two[0].wait_ms, two[1].wait_ms) = (30, 130);
    assert_time(plt(&two, &Settings { think: true, ..Settings::bare() }, FAST), 3.5 * RTT + 0.1);
}

#[test]
fn an_idle_window_starts_afresh() {
    let mut two = [object("https://a.org/", 0, 10, 14_600), object("https://a.org/x", 20, 10, 14_600)];
    // Thinking for half a second is longer than the timeout of 0.2 s + rtt.
    two[1].wait_ms = 500;
    let settings = Settings { think: true, ..Settings::bare() };
    assert_time(plt(&two, &settings, FAST), 3.0 * RTT + 0.5 + RTT / 2.0);
    assert_time(plt(&two, &Settings { idle_restart: true, ..settings }, FAST), 3.0 * RTT + 0.5 + RTT);
}

#[test]
fn http1_queues_and_http2_multiplexes() {
    let objects = [
        object("https://a.org/", 0, 10, 14_600),
        object("https://a.org/x", 20, 10, 14_600),
        object("https://a.org/y", 20, 10, 14_600),
    ];
    let h1 = Settings { max_per_host: 1, request_rtt: true, ..Settings::bare() };
    // Windows of 1, 2 and 3: x takes 1 + 1/2 round trips, then y 1 + 1/3 (its window is 3 initial ones).
    assert_time(plt(&objects, &h1, FAST), 3.0 * RTT + 1.5 * RTT + (1.0 + 1.0 / 3.0) * RTT);
    let h2 = Settings { protocol: Protocol::H2, ..h1 };
    // Both are asked for at once and fill one round of 2 windows.
    assert_time(plt(&objects, &h2, FAST), 3.0 * RTT + 2.0 * RTT);
}

#[test]
fn priorities_serve_styles_before_images() {
    let objects = [
        object("https://a.org/", 0, 10, 14_600),
        object("https://a.org/i.png", 20, 10, 14_600),
        object("https://a.org/s.css", 20, 10, 14_600),
    ];
    let done = |priorities| {
        let settings = Settings { protocol: Protocol::H2, request_rtt: true, priorities, ..Settings::bare() };
        let network = Network::plain(Link { rtt: RTT, rate: FAST });
        let outcome = load_over(&page(&objects), &settings, &[network], "single");
        (outcome.spans[1].done, outcome.spans[2].done)
    };
    let (image, style) = done(true);
    assert_time(style, 3.0 * RTT + 1.5 * RTT);
    assert_time(image, 3.0 * RTT + 2.0 * RTT);
    let (image, style) = done(false);
    assert_time(style, 3.0 * RTT + 2.0 * RTT);
    assert_time(image, style);
}

#[test]
fn a_rate_follows_its_trace() {
    // 20 chances in the first 50 ms, none in the next, and so on: 600 kB/s, 0, 600 kB/s, 0 …
    let mut text: String = (0..20).map(|n| format!("{}\n", n * 2)).collect();
    text += "99\n";
    let text = text.replace("99\n", "") + "100\n";
    let trace = Arc::new(Trace::parse("t", &text).unwrap());
    // Bins: 600 kB/s, 0, 30 kB/s; then again.
    assert!((trace.mean_rate() - 210_000.0).abs() < 1e-6);
    let network = Network::traced(0.01, trace);
    let settings = Settings { initial_window: 1000, ..Settings::bare() };
    let objects = [object("https://a.org/", 0, 10, 25_000)];
    let outcome = load_over(&page(&objects), &settings, &[network], "single");
    // From 20 ms: 30 ms bring 18000 bytes, 50 ms nothing, 50 ms bring 1500, then 5500 at 600 kB/s.
    assert_time(outcome.plt, 0.15 + 5500.0 / 600_000.0);
}

#[test]
fn a_certain_loss_halves_the_window_each_round_and_holds_the_stream_up() {
    let network = Network { loss: 0.999_999, ..Network::plain(Link { rtt: RTT, rate: FAST }) };
    let objects = [object("https://a.org/", 0, 10, 14_600 + 7300)];
    let outcome = load_over(&page(&objects), &Settings::bare(), &[network], "single");
    // One window, then half a window in a round of its own; the last loss is repaired a round trip after it.
    assert_time(outcome.plt, 2.0 * RTT + 2.0 * RTT + RTT);
}

#[test]
fn multipath_adds_the_paths_up() {
    let objects = [object("https://a.org/", 0, 10, 400_000)];
    let settings = Settings { initial_window: 1000, ..Settings::bare() };
    let networks = [0.1, 0.1].map(|rtt| Network::plain(Link { rtt, rate: 1e6 }));
    let outcome = load_over(&page(&objects), &settings, &networks, "mptcp");
    // The second path joins a round trip after the first is set up, when the first byte comes.
    assert_time(outcome.plt, 2.0 * RTT + 0.2);
    assert_time(outcome.carried[0], 200_000.0);
}

#[test]
fn a_large_object_is_split_over_both_paths() {
    let objects = [object("https://a.org/", 0, 10, 800_000)];
    let settings = Settings { initial_window: 1000, ..Settings::bare() };
    let networks = [0.1, 0.1].map(|rtt| Network::plain(Link { rtt, rate: 1e6 }));
    let outcome = load_over(&page(&objects), &settings, &networks, "whimbrel");
    assert_time(outcome.plt, 2.0 * RTT + 0.4);
}
