//! A decision in words that name interfaces and figures.

use crate::Paths;
use std::fmt::Write as _;
use whimbrel_access::{Estimate, Intents, PathEstimate, Reason};

/// Why a choice has its place.
pub(crate) fn why(reason: &Reason, intents: &Intents, paths: &Paths, estimates: &[PathEstimate]) -> String {
    let mut text = Reason::rule(reason.rule).to_string();
    if let Some(key) = reason.intent {
        // Intents as text are pairs parted by spaces.
        let told = intents.to_string();
        let pair = told.split(' ').find(|pair| pair.split('=').next() == Some(key.as_str()));
        match pair {
            Some(pair) => {
                let _ = write!(text, "; {pair}");
            }
            None => {
                let _ = write!(text, "; {key} not stated");
            }
        }
    }
    if let Some((which, path)) = reason.estimate
        && let (Some(known), Some(estimate)) = (paths.get(path), estimates.get(path.index()))
    {
        let interface = &known.interface;
        let figure = figure(which, estimate);
        let _ = write!(text, "; {interface}: {figure}");
    }
    text
}

/// The figure that decided.
fn figure(which: Estimate, estimate: &PathEstimate) -> String {
    let unknown = || "not measured yet".to_owned();
    match which {
        Estimate::RoundTrip => estimate.srtt_min.map_or_else(unknown, |rtt| format!("round trip {rtt}")),
        Estimate::Rate => estimate.down.best.map_or_else(unknown, |rate| format!("at most {rate} lately")),
        Estimate::Jitter => format!("round trips vary by {}", estimate.jitter()),
        Estimate::Loss => {
            estimate.loss.map_or_else(unknown, |loss| format!("{:.2} % sent again", loss * 100.0))
        }
        Estimate::Signal => match estimate.radio.and_then(|radio| radio.signal_dbm) {
            Some(signal) => format!("hears its access point at {signal} dBm"),
            None => "has no signal that could go".to_owned(),
        },
        Estimate::Metered => if estimate.metered { "costs money" } else { "costs nothing" }.to_owned(),
        Estimate::Age => estimate.age.map_or_else(unknown, |age| format!("last heard {age} ago")),
        Estimate::Queue => format!("{} units and {} bytes scheduled", estimate.objects, estimate.scheduled),
        _ => format!("{which:?}"),
    }
}
