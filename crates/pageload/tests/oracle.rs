//! The paper's model against the reference values of the original simulator: all 2072 rows, to the last bit.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use whimbrel_access::PolicySpec;
use whimbrel_pageload::page::{Page, Reading};
use whimbrel_pageload::paper::Simulator;
use whimbrel_pageload::scenario::{Link, Outcome};

struct Row {
    page: String,
    links: [Link; 2],
    policy: String,
    plt: f64,
    connections: u32,
}

fn data(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name)
}

fn oracle() -> Vec<Row> {
    let text = std::fs::read_to_string(data("oracle.csv")).unwrap();
    let rows = text.lines().skip(1).map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |n: usize| fields[n].parse::<f64>().unwrap();
        Row {
            page: fields[0].to_owned(),
            links: [
                Link { rtt: number(1) * 0.001, rate: number(2) },
                Link { rtt: number(3) * 0.001, rate: number(4) },
            ],
            policy: fields[5].to_owned(),
            plt: number(6),
            connections: number(7) as u32,
        }
    });
    rows.collect()
}

fn pages() -> Vec<Page> {
    let hars = whimbrel_pageload::pages::read(&data("pages.jsonl.gz")).unwrap();
    hars.iter().map(|har| Page::new(har, Reading::Paper).unwrap()).collect()
}

fn policy(name: &str) -> PolicySpec {
    let named = PolicySpec::named;
    match name {
        "only1-1" => named("single").on(1),
        "only1-2" => named("single").on(2),
        "rr-1" => named("round-robin").on(1),
        "mptcp-1" => named("mptcp").on(1),
        "mptcp-2" => named("mptcp").on(2),
        other => named(other),
    }
}

#[test]
fn every_row_of_the_oracle_is_reproduced_bit_for_bit() {
    let (rows, pages) = (oracle(), pages());
    assert_eq!(rows.len(), 2072);
    let mut simulator = Simulator::new();
    let mut outcome = Outcome::default();
    for row in rows {
        let page = pages.iter().find(|page| page.name == row.page).unwrap();
        let mut policy = policy(&row.policy).build().unwrap();
        simulator.load(page, &row.links, policy.as_mut(), &mut outcome);
        let what = format!("{} by {} over {:?}", row.page, row.policy, row.links);
        assert_eq!(outcome.plt.to_bits(), row.plt.to_bits(), "{what}: {} is not {}", outcome.plt, row.plt);
        assert_eq!(outcome.connections, row.connections, "{what}");
    }
}

/// Predictions are cut short by bounds on what can happen; that must never change what is chosen.
#[test]
fn bounds_on_predictions_change_nothing() {
    let levels = [(10.0, 50.0), (20.0, 6.0), (50.0, 0.5), (200.0, 5.0), (35.0, 1.7)];
    let (mut quick, mut thorough) = (Simulator::new(), Simulator::thorough());
    let (mut a, mut b) = (Outcome::default(), Outcome::default());
    for (n, page) in pages().iter().enumerate().filter(|(_, page)| page.transfers.len() < 90) {
        let links = [n, n / 5 + 1].map(|level| {
            let (rtt, mbit) = levels[level % levels.len()];
            Link::paper(rtt, mbit)
        });
        for name in ["only1-1", "rr-1", "eaf", "mptcp-1", "mptcp-2", "eaf-mptcp"] {
            let mut policy = policy(name).build().unwrap();
            quick.load(page, &links, policy.as_mut(), &mut a);
            policy.reset(0);
            thorough.load(page, &links, policy.as_mut(), &mut b);
            assert_eq!(a, b, "{} by {name} over {links:?}", page.name);
        }
    }
}
