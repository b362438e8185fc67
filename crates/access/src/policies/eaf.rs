//! `eaf` and `eaf-mptcp`: earliest arrival first (Socket Intents §IV-D, §VI-D).

use super::arrival::{Race, enter_path};
use crate::{Decision, Forecast, MAX_PATHS, PathId, PathList, Policy, Situation};

/// Each unit goes where it is predicted to complete first.
#[derive(Default)]
pub(super) struct Eaf;

impl Policy for Eaf {
    fn name(&self) -> &str {
        "eaf"
    }

    fn decide(&mut self, situation: &Situation<'_>, forecast: &mut dyn Forecast, decision: &mut Decision) {
        let mut race = Race::new(forecast);
        for path in situation.usable() {
            enter_path(&mut race, situation, path);
        }
        race.run(decision);
    }
}

/// As `eaf`, but multipath connections on every ordered selection of paths take part too.
#[derive(Default)]
pub(super) struct EafMptcp {
    paths: Vec<PathId>,
    selections: Vec<PathList>,
}

/// More paths than this are not combined with one another: the number of ordered selections explodes.
const MAX_COMBINED: usize = 4;

impl Policy for EafMptcp {
    fn name(&self) -> &str {
        "eaf-mptcp"
    }

    fn needs_server_support(&self) -> bool {
        true
    }

    fn decide(&mut self, situation: &Situation<'_>, forecast: &mut dyn Forecast, decision: &mut Decision) {
        if !situation.usable().eq(self.paths.iter().copied()) {
            self.paths = situation.usable().collect();
            self.selections = ordered_selections(&self.paths);
        }
        let mut race = Race::new(forecast);
        race.enter_connections(situation, |_| true);
        for paths in &self.selections {
            race.enter_openings(situation, *paths);
        }
        race.run(decision);
    }
}

/// Single paths in order; then for two, three, … paths all subsets in lexicographic order, each in all its
/// orders.
fn ordered_selections(paths: &[PathId]) -> Vec<PathList> {
    let mut selections: Vec<PathList> = paths.iter().copied().map(PathList::one).collect();
    let combined = &paths[..paths.len().min(MAX_COMBINED)];
    for size in 2..=combined.len() {
        for subset in subsets(combined, size) {
            permute(&subset, &mut Vec::with_capacity(MAX_PATHS), &mut selections);
        }
    }
    selections
}

fn subsets(paths: &[PathId], size: usize) -> Vec<Vec<PathId>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (n, &first) in paths.iter().enumerate() {
        for mut rest in subsets(&paths[n + 1..], size - 1) {
            rest.insert(0, first);
            all.push(rest);
        }
    }
    all
}

fn permute(rest: &[PathId], taken: &mut Vec<PathId>, into: &mut Vec<PathList>) {
    if rest.is_empty() {
        into.push(PathList::from_slice(taken));
    }
    for &path in rest {
        let others: Vec<PathId> = rest.iter().copied().filter(|other| *other != path).collect();
        taken.push(path);
        permute(&others, taken, into);
        taken.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selections_are_singles_then_pairs_then_triples_each_in_lexicographic_order() {
        let paths = [PathId(0), PathId(1), PathId(2)];
        let shown: Vec<Vec<u8>> = ordered_selections(&paths)
            .iter()
            .map(|list| list.as_slice().iter().map(|path| path.0).collect())
            .collect();
        let expected: Vec<Vec<u8>> = vec![
            vec![0],
            vec![1],
            vec![2],
            vec![0, 1],
            vec![1, 0],
            vec![0, 2],
            vec![2, 0],
            vec![1, 2],
            vec![2, 1],
            vec![0, 1, 2],
            vec![0, 2, 1],
            vec![1, 0, 2],
            vec![1, 2, 0],
            vec![2, 0, 1],
            vec![2, 1, 0],
        ];
        assert_eq!(shown, expected);
    }
}
