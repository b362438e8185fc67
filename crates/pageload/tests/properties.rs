//! What holds for every page and every network.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use whimbrel_access::{NAMES, PolicySpec};
use whimbrel_pageload::experiment::{Design, Progress, run};
use whimbrel_pageload::har::Har;
use whimbrel_pageload::modern::{self, Network, Protocol, Settings};
use whimbrel_pageload::page::{Page, Reading};
use whimbrel_pageload::paper;
use whimbrel_pageload::scenario::{Link, Outcome};

/// Objects: host, start (ms), duration (ms), bytes.
type Objects = Vec<(u8, u16, u16, u32)>;

fn objects() -> impl Strategy<Value = Objects> {
    proptest::collection::vec((0..4u8, 0..2000u16, 1..500u16, 1..400_000u32), 1..25)
}

fn page(objects: &Objects, reading: Reading) -> Page {
    let mut objects = objects.clone();
    objects.sort_by_key(|object| object.1);
    let entries: Vec<String> = objects
        .iter()
        .map(|(host, start, time, bytes)| {
            format!(
                r#"{{"startedDateTime":"2020-01-01T00:00:{:02}.{:03}000+00:00","time":{time},
                "request":{{"url":"https://h{host}.org/"}},"response":{{"headersSize":0,"bodySize":{bytes}}}}}"#,
                start / 1000,
                start % 1000
            )
        })
        .collect();
    let text = format!(r#"{{"log":{{"entries":[{}]}}}}"#, entries.join(","));
    Page::new(&Har::parse("x.har", text.as_bytes()).unwrap(), reading).unwrap()
}

fn link() -> impl Strategy<Value = Link> {
    (5..300u32, 50_000..8_000_000u32)
        .prop_map(|(rtt, rate)| Link { rtt: f64::from(rtt) * 0.001, rate: f64::from(rate) })
}

fn paper_load(page: &Page, links: &[Link], policy: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let mut policy = PolicySpec::named(policy).build().unwrap();
    policy.reset(5);
    paper::Simulator::new().load(page, links, policy.as_mut(), &mut outcome);
    outcome
}

fn modern_load(page: &Page, links: &[Link], settings: &Settings, policy: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let mut policy = PolicySpec::named(policy).build().unwrap();
    policy.reset(5);
    let networks: Vec<Network> = links.iter().copied().map(Network::plain).collect();
    modern::Simulator::new().load(page, &networks, settings, policy.as_mut(), 5, &mut outcome);
    outcome
}

fn assert_sane(page: &Page, links: &[Link], outcome: &Outcome) -> Result<(), TestCaseError> {
    prop_assert!(outcome.plt.is_finite());
    let longest = outcome.spans.iter().map(|span| span.done).fold(0.0, f64::max);
    prop_assert!((outcome.plt - longest).abs() < 1e-9);
    for span in &outcome.spans {
        prop_assert!(span.ready <= span.assigned && span.assigned < span.done, "{span:?}");
    }
    for (number, _) in page.transfers.iter().enumerate() {
        for &child in page.children(number as u16) {
            prop_assert!(
                (outcome.spans[usize::from(child)].ready - outcome.spans[number].done).abs() < 1e-12
            );
        }
    }
    for share in outcome.utilisation(links) {
        prop_assert!((-1e-9..=1.0 + 1e-6).contains(&share), "utilisation {share}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn work_is_conserved_in_the_modern_model(
        objects in objects(), a in link(), b in link(), policy in 0..NAMES.len(), h in 0..3usize,
    ) {
        let page = page(&objects, Reading::Modern);
        let settings = Settings { protocol: [Protocol::H1, Protocol::H2, Protocol::H3][h], ..Settings::default() };
        let outcome = modern_load(&page, &[a, b], &settings, NAMES[policy]);
        assert_sane(&page, &[a, b], &outcome)?;
        let carried: f64 = outcome.carried.iter().sum();
        prop_assert!((carried - page.bytes()).abs() < 1.0 + page.transfers.len() as f64, "{carried} of {}", page.bytes());
    }

    #[test]
    fn work_is_conserved_in_the_papers_model(objects in objects(), a in link(), b in link(), policy in 0..NAMES.len()) {
        let page = page(&objects, Reading::Paper);
        let outcome = paper_load(&page, &[a, b], NAMES[policy]);
        assert_sane(&page, &[a, b], &outcome)?;
        // No path can carry more than its rate, so all of them together cannot be faster than this.
        prop_assert!(outcome.plt >= page.bytes() / (a.rate + b.rate) * (1.0 - 1e-9));
        let used: Vec<f64> = outcome.utilisation(&[a, b]).collect();
        prop_assert!(used.iter().all(|share| (0.0..=1.0 + 1e-9).contains(share)), "{used:?}");
        // The model moves whole bytes, and makes up for what that holds back at the end of an object.
        let carried: f64 = outcome.carried.iter().sum();
        let slack = 0.01 * page.bytes() + page.transfers.len() as f64;
        prop_assert!((carried - page.bytes()).abs() < slack, "{carried} of {}", page.bytes());
    }

    #[test]
    fn the_same_seed_gives_the_same_result(objects in objects(), a in link(), b in link(), policy in 0..NAMES.len()) {
        let page = page(&objects, Reading::Modern);
        let once = || modern_load(&page, &[a, b], &Settings::default(), NAMES[policy]);
        prop_assert_eq!(once(), once());
    }
}

struct Quiet;

impl Progress for Quiet {
    fn begin(&self, _: usize, _: usize) {}
    fn rows(&self, _: usize) {}
}

#[test]
fn results_do_not_depend_on_threads_or_interruptions() {
    let folder = tempfile::tempdir().unwrap();
    let har = |n: u32| {
        format!(
            r#"{{"log":{{"entries":[{{"startedDateTime":"2020-01-01T00:00:00.000000+00:00","time":9,
            "request":{{"url":"https://a.org/"}},"response":{{"headersSize":0,"bodySize":{}}}}}]}}}}"#,
            n * 10_000 + 1
        )
    };
    for n in 0..9 {
        std::fs::write(folder.path().join(format!("{n}.har")), har(n)).unwrap();
    }
    let text = r#"
        model = "modern"
        pages = "."
        path = [{ rtt-ms = [10, 50], mbit = [1, 20], loss = 0.02 }, { rtt-ms = [20, 200], mbit = [5, 50] }]
        policy = [{ label = "one", name = "single" }, { label = "rnd", name = "mptcp", random = true }]
    "#;
    let file = folder.path().join("design.toml");
    std::fs::write(&file, text).unwrap();
    let design = Design::read(&file).unwrap();
    let results = |name: &str, threads| {
        let out = folder.path().join(name);
        run(&design, &out, threads, &Quiet).unwrap();
        std::fs::read_to_string(out).unwrap()
    };
    let alone = results("alone.csv", 1);
    assert_eq!(alone.lines().count(), 2 + 9 * 16);
    assert_eq!(results("four.csv", 4), alone);
    // Killed in the midst of a line.
    std::fs::write(folder.path().join("cut.csv"), &alone[..alone.len() * 2 / 3]).unwrap();
    assert_eq!(results("cut.csv", 3), alone);
    // Results of another design are not overwritten.
    let other = Design { seed: 2, ..design.clone() };
    let error = run(&other, &folder.path().join("alone.csv"), 1, &Quiet).unwrap_err().to_string();
    assert!(
        error.ends_with("results of another design are in it; give another --out or delete it"),
        "{error}"
    );
}
