//! Page loads over two networks through the proxy and the manager, after *Socket Intents* (IFIP Networking
//! 2018), §VII-B and §VIII-A, B: the paper's testbed in the lab.
//!
//! A client with two shaped links, one web server with an address for each virtual host, and in between the
//! manager and the HTTP proxy of the libraries, in this process. Pages are made by hand as the paper's, or
//! recorded; they are loaded by Chromium, Firefox and a small loader with a browser's rules, each time with
//! cold caches, by every policy and without a proxy. Beside each figure stands what the page-load simulator
//! says of it.

mod browser;
mod content;
mod figures;
mod judge;
mod load;
mod loader;
mod scenario;
mod server;
mod servers;
mod site;
mod system;
#[cfg(test)]
mod tests;
mod world;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use whimbrel_lab::Lab;

pub(crate) use self::browser::Browser;
use self::browser::Installed;
use self::load::Load;
use self::scenario::{SCENARIOS, Scenario};
use self::servers::Servers;
use self::site::Site;
use self::system::System;
use self::world::World;
use super::{Plan, lanes};
use crate::output::Output;
use crate::report::Trial;

/// Rounds, as in the paper.
const ROUNDS: u32 = 7;
/// Labs at a time for the small loader: one waits for its links most of the time, and takes an eighth of a
/// processor.
const LANES: usize = 4;
/// After so many failures a round is given up.
const MOST_FAILURES: usize = 5;
/// What real browsers load unless other pages are asked for: the pages of the figures.
const FOR_BROWSERS: [&str; 7] =
    ["2 x 1 KB", "64 x 1 KB", "32 x 10 KB", "32 x 100 KB", "4 x 1 MB", "mixed, figure 4", "mixed, figure 5"];
/// Where recorded pages are, from the root of the source.
const RECORDED: &str = "crates/pageload/data/pages.jsonl.gz";
/// Of a quick run.
const QUICK: [&str; 2] = ["8 x 10 KB", "32 x 100 KB"];

/// What is measured.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Choice {
    /// Only these browsers; otherwise all that are installed.
    #[arg(long, value_enum, value_delimiter = ',')]
    browsers: Vec<Browser>,
    /// Only pages whose names begin so, as in "32 x"; may be repeated. "recorded" stands for all of these.
    #[arg(long, value_name = "NAME")]
    pages: Vec<String>,
    /// Only scenarios whose names begin so: symmetric, asymmetric, strongly, recorded.
    #[arg(long, value_name = "NAME")]
    scenario: Option<String>,
    /// The recorded pages.
    #[arg(long, value_name = "FILE", default_value = RECORDED)]
    recorded: PathBuf,
    /// The proxy's `--first-step`, instead of what it has by itself.
    #[arg(long, value_name = "BYTES")]
    first_step: Option<u64>,
    /// Servers as the paper's (Reno), or as this host's kernel is shipped.
    #[arg(long, value_enum, default_value_t)]
    servers: Servers,
    /// Labs at a time for the small loader. More take less time, and disturb each other where the processor
    /// has too much to do.
    #[arg(long, value_name = "LABS", default_value_t = LANES)]
    lanes: usize,
}

impl Default for Choice {
    fn default() -> Self {
        let (browsers, pages, recorded) = (Vec::new(), Vec::new(), RECORDED.into());
        let (scenario, first_step, servers) = (None, None, Servers::default());
        Self { browsers, pages, scenario, recorded, first_step, servers, lanes: LANES }
    }
}

/// One round of one browser in one scenario.
struct Job<'a> {
    scenario: &'static Scenario,
    browser: Browser,
    installed: Option<&'a Installed>,
    traces: &'a Path,
    first_step: Option<u64>,
    servers: Servers,
    round: u32,
    sites: Arc<Vec<Site>>,
}

impl Job<'_> {
    fn name(&self) -> String {
        format!("{}, {}, round {}", self.browser, self.scenario.name, self.round + 1)
    }
}

pub(crate) fn run(plan: &Plan, choice: &Choice, traces: &Path, output: &mut Output) -> Result<()> {
    let rounds = plan.rounds.unwrap_or(if plan.quick { 1 } else { ROUNDS });
    let chosen = |scenario: &&Scenario| match &choice.scenario {
        Some(name) => scenario.name.starts_with(name.as_str()),
        None => !plan.quick || scenario.name == SCENARIOS[0].name,
    };
    let mut scenarios: Vec<&'static Scenario> = SCENARIOS.iter().filter(chosen).collect();
    if !traces.is_dir() && scenarios.iter().any(|scenario| scenario.trace.is_some()) {
        let folder = traces.display();
        eprintln!(
            "access-pages has no recorded network: there is no folder {folder}; name one with --traces"
        );
        scenarios.retain(|scenario| scenario.trace.is_none());
    }
    ensure!(!scenarios.is_empty(), "no scenario is left of symmetric, asymmetric, strongly, recorded");
    let all = all_sites(choice)?;
    let browsers = Browsers::find(choice)?;
    let mut loads = Vec::new();
    let mut failures = Vec::new();
    for There { browser, installed } in &browsers.there {
        let sites = sites(&all, *browser, plan.quick, choice);
        ensure!(!sites.is_empty(), "there is no such page");
        let sites = Arc::new(sites);
        let jobs: Vec<Job<'_>> = (0..rounds)
            .flat_map(|round| scenarios.iter().map(move |scenario| (round, *scenario)))
            .map(|(round, scenario)| {
                let (browser, installed, sites) = (*browser, installed.as_ref(), Arc::clone(&sites));
                let (first_step, servers) = (choice.first_step, choice.servers);
                Job { scenario, browser, installed, traces, first_step, servers, round, sites }
            })
            .collect();
        let lanes = if *browser == Browser::Client { choice.lanes } else { 1 };
        let done = lanes::run(&jobs, lanes, &judge::SPEC, output, Job::name, measure)?;
        for round in done.more {
            loads.extend(round.loads);
            failures.extend(round.failures);
        }
        failures.extend(done.failures);
    }
    let settings = json!({
        "servers": choice.servers.name(),
        "congestion_control": choice.servers.effective(),
        "carrier": "tcp",
        "initial_window": 10,
        "queue_ms": 100,
        "scenarios": scenarios.iter().map(|s| json!({"name": s.name, "rtt_ms": s.rtts, "kbit": s.kbits,
            "trace": s.trace})).collect::<Vec<_>>(),
        "pages": all.iter().map(|site| json!({"name": site.name, "objects": site.objects.len(),
            "bytes": site.bytes(), "recorded": site.is_recorded})).collect::<Vec<_>>(),
        "browsers": browsers.versions()?,
        "absent": browsers.absent,
        "first_step": choice.first_step,
        "lanes": choice.lanes,
        "failures": failures,
    });
    judge::finish(&loads, settings, output)
}

/// All pages.
fn all_sites(choice: &Choice) -> Result<Vec<Site>> {
    let mut all = site::handcrafted();
    let file = &choice.recorded;
    if file.is_file() {
        all.extend(site::recorded(file)?);
    } else {
        eprintln!(
            "access-pages has no recorded pages: there is no {}; name it with --recorded",
            file.display()
        );
    }
    Ok(all)
}

/// The pages that a browser loads.
fn sites(all: &[Site], browser: Browser, quick: bool, choice: &Choice) -> Vec<Site> {
    let is_meant = |site: &&Site| {
        if !choice.pages.is_empty() {
            let named = |name: &String| {
                site.name.starts_with(name.as_str()) || (name == "recorded" && site.is_recorded)
            };
            return choice.pages.iter().any(named);
        }
        match (quick, browser) {
            (true, Browser::Client) => QUICK.contains(&site.name.as_str()),
            (true, _) => site.name == QUICK[0],
            (false, Browser::Client) => true,
            (false, _) => FOR_BROWSERS.contains(&site.name.as_str()),
        }
    };
    all.iter().filter(is_meant).cloned().collect()
}

/// What loads pages here, and why something else does not.
#[derive(Default)]
struct Browsers {
    there: Vec<There>,
    absent: Vec<String>,
}

/// A browser that is there; the small loader is always, and nothing that is installed.
struct There {
    browser: Browser,
    installed: Option<Installed>,
}

impl Browsers {
    fn find(choice: &Choice) -> Result<Self> {
        let mut found = Self::default();
        for browser in [Browser::Client, Browser::Chromium, Browser::Firefox] {
            if !choice.browsers.is_empty() && !choice.browsers.contains(&browser) {
                continue;
            }
            let installed = match browser {
                Browser::Client => None,
                _ => match Installed::find(browser) {
                    Ok(installed) => Some(installed),
                    Err(error) => {
                        eprintln!("access-pages leaves {browser} out: {error:#}");
                        found.absent.push(format!("{error:#}"));
                        continue;
                    }
                },
            };
            found.there.push(There { browser, installed });
        }
        ensure!(!found.there.is_empty(), "none of the browsers is installed: {}", found.absent.join("; "));
        Ok(found)
    }

    fn versions(&self) -> Result<Vec<String>> {
        let lab = Lab::new()?;
        let host = lab.host("versions")?;
        let installed = self.there.iter().filter_map(|there| there.installed.as_ref());
        Ok(installed.map(|installed| installed.version(&host)).collect())
    }
}

/// What came of one round.
struct Round {
    loads: Vec<Load>,
    failures: Vec<String>,
}

/// Loads every page by every system once.
fn measure(job: &Job<'_>) -> Result<(Vec<Trial>, Round)> {
    let sites = Arc::clone(&job.sites);
    let mut world = World::new(job.scenario, job.traces, sites, &System::ALL, job.servers)?;
    world.first_step = job.first_step;
    if !world.is_multipath() {
        eprintln!("access-pages: the kernel has no MPTCP; eaf-mptcp and mptcp go over TCP");
    }
    let (mut loads, mut failures) = (Vec::new(), Vec::new());
    // A page by one system, then another page by another: what the managers have just seen of a recorded link
    // is not the part that the next page meets.
    for turn in 0..System::ALL.len() {
        for (document, site) in job.sites.iter().enumerate() {
            let system = System::ALL[(turn + document + job.round as usize) % System::ALL.len()];
            let what = format!("{}, {}, {system}", job.name(), site.name);
            match one(&mut world, job, document, system) {
                Ok(load) => loads.push(load),
                Err(error) => {
                    eprintln!("  {what} failed: {error:#}");
                    failures.push(format!("{what}: {error:#}"));
                    ensure!(failures.len() < MOST_FAILURES, "too much fails: {}", failures.join("; "));
                }
            }
        }
    }
    Ok((loads.iter().map(judge::trial).collect(), Round { loads, failures }))
}

fn one(world: &mut World, job: &Job<'_>, document: usize, system: System) -> Result<Load> {
    let site = &job.sites[document];
    world.part = job.round * job.sites.len() as u32 + document as u32;
    let before = world.net.carried(1)[1];
    let ms = match job.installed {
        None => world.load(document, system)?.as_secs_f64() * 1000.0,
        Some(installed) => {
            let token = format!("{}-{document}-{system}", job.round).replace(' ', "-");
            let said = installed.load(world, document, system, &token)?;
            let is_whole = said.objects == site.objects.len() - 1 && said.bad == 0 && said.wrong == 0;
            ensure!(is_whole, "the page is not whole: {said:?}");
            said.ms
        }
    };
    let second = world.net.carried(1)[1].saturating_sub(before) as f64 / site.bytes() as f64;
    let predicted = job.scenario.predict(site, system).context("the simulator")?;
    Ok(Load {
        browser: job.browser,
        scenario: job.scenario.name,
        page: site.name.clone(),
        system,
        round: job.round,
        bytes: site.bytes(),
        is_recorded: site.is_recorded,
        ms,
        predicted,
        second,
    })
}
