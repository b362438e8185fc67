//! Simulations per second and core.

use crate::modern::{Network, Settings};
use crate::page::Page;
use crate::scenario::{Link, Outcome};
use crate::simulator::{Conditions, Model, Simulator};
use rustix::time::{ClockId, clock_gettime};
use whimbrel_access::{Policy, PolicyError, PolicySpec};

/// The eight settings of the oracle: round-trip time (ms) and rate (Mbit/s) of two paths.
pub const SETTINGS: [[(f64, f64); 2]; 8] = [
    [(10.0, 50.0), (20.0, 50.0)],
    [(20.0, 6.0), (50.0, 20.0)],
    [(30.0, 2.0), (50.0, 5.0)],
    [(50.0, KBIT_500), (200.0, KBIT_500)],
    [(10.0, 12.0), (100.0, 5.0)],
    [(30.0, 20.0), (200.0, KBIT_500)],
    [(10.0, KBIT_500), (50.0, 50.0)],
    [(50.0, 6.0), (50.0, 5.0)],
];
/// 500 kbit/s of 1024 bits, in Mbit/s of 2^20 bits.
const KBIT_500: f64 = 500.0 / 1024.0;

/// What was measured of one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The policy.
    pub policy: PolicySpec,
    /// Page loads.
    pub loads: usize,
    /// Seconds of processor time that they took.
    pub seconds: f64,
}

/// Load all pages in all settings under each policy, `rounds` times; the fastest round of a policy counts,
/// since other programs can only make it slower. Policies take turns, so that a bad moment of the machine
/// hits none of them alone.
///
/// # Errors
/// [`PolicyError`] if a policy does not exist.
pub fn measure(
    pages: &[Page],
    policies: &[PolicySpec],
    model: Model,
    rounds: usize,
) -> Result<Vec<Measured>, PolicyError> {
    let mut built = policies.iter().map(PolicySpec::build).collect::<Result<Vec<_>, _>>()?;
    let loads = pages.len() * SETTINGS.len();
    let unmeasured = |policy: &PolicySpec| Measured { policy: policy.clone(), loads, seconds: f64::INFINITY };
    let mut measured: Vec<Measured> = policies.iter().map(unmeasured).collect();
    let (mut simulator, mut outcome) = (Simulator::new(), Outcome::default());
    for _ in 0..rounds.max(1) {
        for (policy, measured) in built.iter_mut().zip(&mut measured) {
            let start = processor_seconds();
            load_all(&mut simulator, pages, policy.as_mut(), model, &mut outcome);
            measured.seconds = measured.seconds.min(processor_seconds() - start);
        }
    }
    Ok(measured)
}

fn load_all(
    simulator: &mut Simulator,
    pages: &[Page],
    policy: &mut dyn Policy,
    model: Model,
    outcome: &mut Outcome,
) {
    let settings = &Settings::default();
    for (page, setting) in pages.iter().flat_map(|page| SETTINGS.iter().map(move |s| (page, s))) {
        let networks = &setting.map(|(rtt, mbit)| Network::plain(Link::paper(rtt, mbit)));
        simulator.load(page, Conditions { model, networks, settings, seed: 0 }, policy, outcome);
    }
}

/// Time that this thread spent on a processor.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
