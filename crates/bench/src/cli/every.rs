//! Every bench, one after the other.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use whimbrel_lab::Lab;

use crate::benches::recovery::AWAY_MS;
use crate::benches::{self, Plan};
use crate::output::Output;

/// Runs all of them: those of the lab last.
pub(super) fn run(plan: &Plan, traces: &Path, output: &mut Output) -> Result<()> {
    benches::bulk::throughput(plan, output)?;
    benches::bulk::small_writes(plan, output)?;
    benches::ping_pong::run(plan, output)?;
    benches::messages::run(plan, output)?;
    benches::rate_limit::run(plan, output)?;
    benches::relays::run(plan, output)?;
    benches::connect::run(plan, output)?;
    benches::idle::run(plan, None, output)?;
    benches::accept::run(plan, None, output)?;
    benches::standby::run(plan, None, output)?;
    in_lab(plan, traces, output)
}

/// The benches in the lab, if it can run in this very process: inside a user namespace, which has a
/// network of its own, the other benches could not.
fn in_lab(plan: &Plan, traces: &Path, output: &mut Output) -> Result<()> {
    if let Err(reason) = Lab::available() {
        eprintln!("the benches in the lab are skipped: {reason}");
        return Ok(());
    }
    benches::connect_lab::run(plan, output)?;
    benches::recovery::run(plan, Duration::from_millis(AWAY_MS), &[], output)?;
    benches::server_move::run(plan, &[], output)?;
    benches::recovery::run_quic(plan, output)?;
    benches::lossy::run(plan, output)?;
    benches::message_delay::run(plan, output)?;
    benches::message_outage::run(plan, output)?;
    benches::mockets_tables::run(plan, output)?;
    benches::suspend::run(plan, output)?;
    benches::hand_over_gap::run(plan, output)?;
    benches::access_decision::run(plan, None, output)?;
    if plan.quick {
        // The whole takes hours, and is run by itself: `make eval-access`.
        benches::access_pages::run(plan, &benches::access_pages::Choice::default(), traces, output)?;
    }
    benches::aggregate::aggregate(plan, None, output)?;
    benches::aggregate::start_up(plan, None, output)?;
    benches::small_objects::run(plan, output)?;
    benches::beside_bulk::run(plan, output)?;
    benches::smooth::run(plan, output)?;
    benches::take_over::run(plan, output)?;
    benches::failover::run(plan, output)?;
    benches::traces::run(plan, traces, output)?;
    benches::both_move::run(plan, output)?;
    benches::cpu::run(plan, output)?;
    benches::handover::run(plan, &[], output)?;
    benches::relayed::first_byte::run(plan, output)?;
    benches::reach::run(plan, &[], output)?;
    // The last, because they need programs that a machine may not have.
    benches::session_move::run(plan, &[], output)?;
    benches::relayed::speed::run(plan, output)?;
    benches::relayed::idle::run(plan, None, output)?;
    benches::manager_rest::run(plan, None, output)?;
    benches::gateway::download::run(plan, output)?;
    benches::gateway::moves::run(plan, output)?;
    benches::gateway::sessions::run(plan, None, output)?;
    benches::proxy_http::run(plan, output)?;
    benches::tunnel::run(plan, output)
}
