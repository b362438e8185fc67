//! The testbed at work, in a small form.
#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_lab::{Rate, require};

use super::browser::{Browser, Installed};
use super::loader::Loader;
use super::server::Sent;
use super::servers::Servers;
use super::site::Site;
use super::system::System;
use super::world::{PAGE_LIMIT, World};
use crate::lab::{Access, Loss};

/// Where this is set, a browser that is absent fails its test.
const REQUIRED: &str = "WHIMBREL_BROWSERS";

/// Links fast enough that a page takes a moment only.
fn world(sites: Vec<Site>, systems: &[System]) -> World {
    let access = |name| Access::new(name, Rate::mbit(20), Duration::from_millis(10));
    World::with([access("one"), access("two")], Arc::new(sites), systems, Servers::Paper).unwrap()
}

/// A page of three hosts, some of whose objects are known late.
fn dependent() -> Site {
    let mut objects = vec![(0, 200_000, 0), (1, 100, 0), (1, 30_000, 1), (2, 5_000, 3), (2, 80_000, 4)];
    objects.extend((0..12).map(|n| (n % 3, 20_000 + u64::from(n), 0)));
    Site::dependent("dependent", &objects)
}

/// Whether every byte of every object was sent.
fn assert_all_was_sent(site: &Site, sent: &[Sent]) {
    for (number, object) in (0..).zip(&site.objects).skip(1) {
        let mut parts: Vec<(u64, u64)> = sent
            .iter()
            .filter(|sent| (sent.host, sent.number) == (object.host, number))
            .map(|sent| (sent.first, sent.end))
            .collect();
        parts.sort_unstable();
        let end = parts.iter().fold(0, |end, (first, last)| if *first <= end { end.max(*last) } else { end });
        assert_eq!(end, object.bytes, "object {number} came in parts {parts:?}");
    }
}

/// The client's addresses that something was sent to.
fn addresses(sent: &[Sent]) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = sent.iter().map(|sent| sent.to).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn pages_come_whole_through_the_proxy_and_the_manager_and_over_both_links() {
    if !require!() {
        return;
    }
    let sites = vec![
        Site::handcrafted("16 x 10 KB", &[(16, 10_000)]),
        Site::handcrafted("8 x 100 KB", &[(8, 100_000)]),
        dependent(),
    ];
    let systems = [System::NoProxy, System::Single(2), System::RoundRobin, System::Eaf, System::Whimbrel];
    let mut world = world(sites, &systems);
    let own = [0, 1].map(|link| world.net.address(link));
    for document in 0..3 {
        for system in systems {
            world.load(document, system).unwrap_or_else(|error| panic!("{document}, {system}: {error:#}"));
            let sent = world.server.take_sent();
            assert_all_was_sent(&world.sites[document], &sent);
            match system {
                System::NoProxy => assert_eq!(addresses(&sent), [own[0]]),
                System::Single(2) => assert_eq!(addresses(&sent), [own[1]]),
                System::RoundRobin => assert_eq!(addresses(&sent), own),
                _ => {}
            }
        }
    }
    assert!(world.net.carried(0)[1] > 1_000_000 && world.net.carried(1)[1] > 1_000_000);
}

/// A page of three hosts that takes two seconds over both links below.
fn long() -> Site {
    let mut objects = vec![(0, 200_000, 0), (1, 100, 0), (1, 30_000, 1), (2, 5_000, 3), (2, 80_000, 4)];
    objects.extend((0..16).map(|n| (n % 3, 90_000 + u64::from(n), 0)));
    Site::dependent("long", &objects)
}

/// Loads that page, and loses the link that carried most of it when a third is there.
fn comes_whole_when_a_link_is_lost(system: System, how: Loss) {
    let access = |name| Access::new(name, Rate::mbit(4), Duration::from_millis(20));
    let sites = Arc::new(vec![long()]);
    let accesses = [access("one"), access("two")];
    let world = World::with(accesses, Arc::clone(&sites), &[system], Servers::Shipped).unwrap();
    let proxy = world.proxy(system).unwrap().unwrap();
    let (address, part) = (proxy.address, sites[0].bytes() / 3);
    let carried = || [0, 1].map(|link| world.net.carried(link)[1]);
    let what = format!("{system}, {}", how.name());
    let before = carried();
    let loading = world.net.client.runtime.spawn(async move {
        // It checks every byte of every object.
        Loader::new(&sites[0], 0, Some(address)).load(PAGE_LIMIT).await
    });
    let end = Instant::now() + PAGE_LIMIT;
    let lost = loop {
        let now = carried();
        let came = [now[0] - before[0], now[1] - before[1]];
        if came[0] + came[1] > part {
            break usize::from(came[1] > came[0]);
        }
        assert!(!loading.is_finished() && Instant::now() < end, "{what}: only {came:?} came");
        std::thread::sleep(Duration::from_millis(2));
    };
    world.net.lose(lost, how).unwrap();
    assert!(!loading.is_finished(), "{what}: the page was there before the link was lost");
    let before = carried()[1 - lost];
    let loaded = world.net.client.within(2 * PAGE_LIMIT, &what, loading).unwrap().unwrap();
    assert!(loaded.is_ok(), "{what}: {loaded:?}");
    assert!(carried()[1 - lost] > before, "{what}: the rest came over the other link");
}

#[test]
fn a_page_comes_whole_when_the_link_that_carries_most_of_it_is_lost_under_it() {
    if !require!() {
        return;
    }
    comes_whole_when_a_link_is_lost(System::Whimbrel, Loss::Down);
    comes_whole_when_a_link_is_lost(System::RoundRobin, Loss::Down);
}

#[test]
fn a_page_comes_whole_when_the_link_that_carries_most_of_it_falls_silent_under_it() {
    if !require!() {
        return;
    }
    comes_whole_when_a_link_is_lost(System::Whimbrel, Loss::Blackhole);
}

/// Finds a browser; where there is none, that is told past the test's own output.
fn installed(browser: Browser) -> Option<Installed> {
    match Installed::find(browser) {
        Ok(installed) => Some(installed),
        Err(error) => {
            assert!(std::env::var_os(REQUIRED).is_none(), "{error:#}");
            let _ = writeln!(std::io::stderr(), "skipped a page load by {browser}: {error:#}");
            None
        }
    }
}

fn loads_a_page_whole(browser: Browser) {
    let Some(installed) = installed(browser) else { return };
    // A browser takes long to begin: all systems are for those who require browsers (`make eval-access`).
    let systems: &[System] = match std::env::var_os(REQUIRED) {
        Some(_) => &System::ALL,
        None => &[System::NoProxy, System::RoundRobin, System::Whimbrel],
    };
    let mut world = world(vec![dependent()], systems);
    let own = [0, 1].map(|link| world.net.address(link));
    for (number, system) in systems.iter().copied().enumerate() {
        let said = installed.load(&mut world, 0, system, &format!("{browser}-{number}")).unwrap();
        let site = &world.sites[0];
        assert_eq!((said.objects, said.bad, said.wrong), (site.objects.len() - 1, 0, 0), "{system}");
        assert!(said.ms > 0.0);
        let sent = world.server.take_sent();
        assert_all_was_sent(site, &sent);
        let expected = match system {
            System::NoProxy | System::Single(1) => &own[..1],
            System::Single(_) => &own[1..],
            System::RoundRobin => &own[..],
            // These may find one link enough.
            _ => continue,
        };
        assert_eq!(addresses(&sent), expected, "{system}");
    }
}

#[test]
fn chromium_loads_a_page_whole_through_the_proxy_over_both_links() {
    if !require!() {
        return;
    }
    loads_a_page_whole(Browser::Chromium);
}

#[test]
fn firefox_loads_a_page_whole_through_the_proxy_over_both_links() {
    if !require!() {
        return;
    }
    loads_a_page_whole(Browser::Firefox);
}
