//! `mptcp`: every connection runs over all paths.

use super::arrival::Race;
use super::settings::{self, PathNumber, sensible};
use crate::{Connection, Decision, Forecast, PathId, PathList, Policy, Situation};
use serde::Deserialize;

/// Where connections start.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Settings {
    /// Always on this path: the first unless stated.
    path: Option<PathNumber>,
    /// Each on a random path.
    random: bool,
}

impl settings::Settings for Settings {
    fn make(self) -> Result<Box<dyn Policy>, String> {
        sensible(!(self.random && self.path.is_some()), || {
            "path and random exclude each other: leave one out".to_owned()
        })?;
        let first = if self.random { First::Random } else { First::Path(self.path.unwrap_or_default().0) };
        Ok(Box::new(Mptcp { first, random: 0 }))
    }
}

/// The path that a new connection sets up first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    /// Always this one.
    Path(PathId),
    /// A random one, drawn anew for each decision.
    Random,
}

/// Opens multipath connections only.
struct Mptcp {
    first: First,
    random: u64,
}

impl Mptcp {
    /// SplitMix64: the whole state is one number, which a seed sets.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn order(&mut self, situation: &Situation<'_>) -> PathList {
        let mut paths = [PathId(0); crate::MAX_PATHS];
        let mut count = 0;
        for path in situation.usable() {
            paths[count] = path;
            count += 1;
        }
        let paths = &mut paths[..count];
        match self.first {
            First::Path(first) => {
                if let Some(position) = paths.iter().position(|path| *path == first) {
                    paths[..=position].rotate_right(1);
                }
            }
            First::Random => {
                for place in (1..paths.len()).rev() {
                    paths.swap(place, (self.draw() % (place as u64 + 1)) as usize);
                }
            }
        }
        PathList::from_slice(paths)
    }
}

impl Policy for Mptcp {
    fn name(&self) -> &str {
        "mptcp"
    }

    fn needs_server_support(&self) -> bool {
        true
    }

    fn decide(&mut self, situation: &Situation<'_>, forecast: &mut dyn Forecast, decision: &mut Decision) {
        let paths = self.order(situation);
        if paths.as_slice().is_empty() {
            return;
        }
        let mut race = Race::new(forecast);
        race.enter_connections(situation, |_: &Connection| true);
        race.enter_openings(situation, paths);
        race.run(decision);
    }

    fn reset(&mut self, seed: u64) {
        self.random = seed;
    }
}
