//! Circles among modules that stand beside each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use super::modules::{Inside, Modules};

/// Which of a module's children name each other, each with a place where it does.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// Modules beside each other that name each other in a circle.
#[derive(Debug)]
pub(crate) struct Circle {
    /// Whose children they are, from the root of the crate.
    pub(crate) within: String,
    /// All that can be reached from each other, in order.
    pub(crate) modules: Vec<String>,
    /// A shortest way around, with the lines that name the next.
    pub(crate) around: String,
}

/// All circles of a crate.
///
/// What a module names counts at the level where the two part: `a::b` that names `c::d` makes `a` name `c`. A
/// module and those inside of it may name each other.
pub(crate) fn circles(modules: &Modules, source: &Path) -> Vec<Circle> {
    let mut levels: BTreeMap<Inside, Graph> = BTreeMap::new();
    for (from, module) in &modules.0 {
        for reference in &module.references {
            let to = modules.find(&reference.to);
            let parting = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
            let (Some(one), Some(other)) = (from.get(parting), to.get(parting)) else { continue };
            let file = module.file.strip_prefix(source).unwrap_or(&module.file);
            let place = format!("{}:{} {}", file.display(), reference.line, reference.to.join("::"));
            let graph = levels.entry(from[..parting].to_vec()).or_default();
            graph.entry(one.clone()).or_default().entry(other.clone()).or_insert(place);
        }
    }
    levels.iter().flat_map(|(within, graph)| of_level(&within.join("::"), graph)).collect()
}

fn of_level(within: &str, graph: &Graph) -> Vec<Circle> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|module| (module, reached_from(graph, module))).collect();
    let mut found: Vec<Circle> = Vec::new();
    for (module, others) in &reached {
        if !others.contains(module) || found.iter().any(|circle| circle.modules.contains(module)) {
            continue;
        }
        let is_back = |other: &&&String| reached.get(*other).is_some_and(|back| back.contains(module));
        let modules = others.iter().filter(is_back).map(|other| (*other).clone()).collect();
        found.push(Circle { within: within.to_owned(), modules, around: around(graph, module) });
    }
    found
}

fn reached_from<'g>(graph: &'g Graph, module: &str) -> BTreeSet<&'g String> {
    let (mut reached, mut waiting) = (BTreeSet::new(), vec![module]);
    while let Some(module) = waiting.pop() {
        for next in graph.get(module).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(next) {
                waiting.push(next);
            }
        }
    }
    reached
}

/// A shortest way from a module to itself, in words.
fn around(graph: &Graph, module: &str) -> String {
    let mut waiting = VecDeque::from([vec![module]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = waiting.pop_front() {
        let Some(last) = way.last() else { continue };
        for next in graph.get(*last).into_iter().flat_map(BTreeMap::keys) {
            if next == module {
                let steps = way.iter().zip(way[1..].iter().chain([&module]));
                let step = |(from, to): (&&str, &&str)| format!("    {from} -> {to}: {}", graph[*from][*to]);
                return steps.map(step).collect::<Vec<_>>().join("\n");
            }
            if seen.insert(next) {
                waiting.push_back([&way[..], &[next.as_str()]].concat());
            }
        }
    }
    String::new()
}
