//! `whimbrel status`: what the running commands of this user do.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::Args;
use whimbrel_base::UnixTime;

use crate::options::{Globals, after};
use crate::output;
use crate::status::{ConnectionReport, PathReport, Report, ask_all};

/// Show the live connections of this user's running commands
#[derive(Args)]
#[command(after_help = after("Examples:\n  whimbrel status\n  whimbrel status --json"))]
pub(crate) struct Status {
    /// Print a JSON array with an object a command
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(_: &Globals, args: Status) -> Result<()> {
    let reports = ask_all().await?;
    if args.json {
        return output::json(&reports);
    }
    if reports.is_empty() {
        return output::line("no whimbrel command of yours is running");
    }
    let width = output::width();
    reports.iter().try_for_each(|report| output::line(output::fit(&describe(report), width, 4)))
}

pub(crate) fn describe(report: &Report) -> String {
    let age = UnixTime::from(SystemTime::now()).since(UnixTime::from_millis(report.started_ms));
    let name = report.name.as_deref().unwrap_or_default();
    let mut text = format!("{} {name} (process {}, since {})", report.command, report.pid, rounded(age))
        .replace("  ", " ");
    if let Some(sockets) = report.sockets {
        text += &format!("; {} sockets open", sockets.open);
        if sockets.refused > 0 {
            text += &format!(", {} refused", sockets.refused);
        }
    }
    if report.connections.is_empty() {
        text.push_str("\n  no connections");
    }
    for connection in &report.connections {
        text.push_str(&describe_connection(connection));
    }
    text
}

fn describe_connection(connection: &ConnectionReport) -> String {
    let way = if connection.accepted { "from" } else { "to" };
    let mut text = format!(
        "\n  {way} {} {}: sent {}, received {}, sent again {}, sent twice {}; mode {}",
        connection.peer.get(..8).unwrap_or(&connection.peer),
        connection.name.as_deref().map(|name| format!("({name})")).unwrap_or_default(),
        output::bytes(connection.bytes_sent),
        output::bytes(connection.bytes_received),
        output::bytes(connection.bytes_resent - connection.bytes_twice.min(connection.bytes_resent)),
        output::bytes(connection.bytes_twice),
        connection.mode,
    )
    .replace(" :", ":");
    let times = if connection.moves == 1 { "once" } else { "times" };
    match (connection.moves, connection.last_recovery_ms) {
        (0, _) => {}
        (1, Some(took)) => text += &format!("; moved {times}, in {took:.0} ms"),
        (moves, Some(took)) => text += &format!("; moved {moves} {times}, last in {took:.0} ms"),
        (moves, None) => text += &format!("; moved {moves} {times}"),
    }
    if let Some(away) = connection.unreachable_ms {
        text += &format!("; out of reach for {}", rounded(Duration::from_secs_f64(away / 1e3)));
    }
    for path in &connection.paths {
        text.push_str(&describe_path(path));
    }
    text
}

fn describe_path(path: &PathReport) -> String {
    let place = path.interface.as_deref().map(|name| format!(" ({name})")).unwrap_or_default();
    let rate = path.rate_mbit.map(|rate| format!(", {rate:.1} Mbit/s")).unwrap_or_default();
    let priority = if path.priority == "backup" { ", backup" } else { "" };
    format!(
        "\n    {} {} {}{place} → {} {}{priority}, RTT {:.1} ms{rate}, sent {}, received {}",
        path.id,
        path.carrier,
        path.local,
        path.remote,
        path.state,
        path.rtt_ms,
        output::bytes(path.bytes_sent),
        output::bytes(path.bytes_received),
    )
}

fn rounded(duration: Duration) -> String {
    match duration.as_secs() {
        0..60 => format!("{} s", duration.as_secs()),
        60..3600 => format!("{} min", duration.as_secs() / 60),
        3600..172_800 => format!("{} h", duration.as_secs() / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
