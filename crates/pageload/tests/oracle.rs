//! The paper's model against the reference values of the original simulator.

use std::collections::BTreeMap;
use std::path::Path;
use whimbrel_access::PolicySpec;
use whimbrel_pageload::{har::Har, page::{Page, Reading}, paper::Simulator, scenario::{Link, Outcome}};

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
fn every_row_of_the_oracle_is_reproduced() {
    let data = Path::new("/work/shared/data/pageload");
    let oracle = std::fs::read_to_string(data.join("oracle.csv")).unwrap();
    let mut sim = Simulator::new();
    let mut outcome = Outcome::default();
    let mut pages = BTreeMap::new();
    let mut worst: BTreeMap<String, (f64, usize, usize, f64)> = BTreeMap::new();
    for row in oracle.lines().skip(1) {
        let f: Vec<&str> = row.split(',').collect();
        let n = |i: usize| f[i].parse::<f64>().unwrap();
        let page = pages.entry(f[0].to_owned()).or_insert_with(|| {
            Page::new(&Har::read(&data.join("har").join(f[0])).unwrap(), Reading::Paper).unwrap()
        });
        let links = [Link { rtt: n(1) * 0.001, rate: n(2) }, Link { rtt: n(3) * 0.001, rate: n(4) }];
        let mut policy = policy(f[5]).build().unwrap();
        let t = cpu();
        sim.load(page, &links, policy.as_mut(), &mut outcome);
        let t = cpu() - t;
        let error = (outcome.plt - n(6)).abs() / n(6);
        let entry = worst.entry(f[5].to_owned()).or_default();
        entry.0 = entry.0.max(error);
        entry.1 += 1;
        entry.2 += usize::from(outcome.connections as f64 != n(7));
        entry.3 += t;
    }
    for (k, v) in &worst {
        println!("{k:10} worst {:e} rows {} conn-diff {}  {:.0}/s", v.0, v.1, v.2, v.1 as f64 / v.3);
    }
    assert!(worst.values().all(|v| v.0 < 1e-9 && v.2 == 0));
}

fn cpu() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}
