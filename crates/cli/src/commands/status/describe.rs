//! What a command says of itself, in words.

use std::time::{Duration, SystemTime};

use whimbrel_base::UnixTime;

use crate::output;
use crate::plain::plain;
use crate::status::{
    ConnectionReport, Event, FlowReport, MessageCounts, MessageReport, PathReport, Report, What,
};

/// No text of a peer that is shown is longer.
const MAX_TEXT: usize = 200;

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
    for rule in &report.limits {
        text += &format!("\n  limited to {rule}");
    }
    for relay in &report.relays {
        let places: Vec<String> = relay.addresses.iter().map(ToString::to_string).collect();
        let id = relay.id.get(..8).unwrap_or(&relay.id);
        text += &format!("\n  through relay {id} at {}, RTT {:.1} ms", places.join(" and "), relay.rtt_ms);
        if let Some(why) = &relay.unserved {
            text += &format!("; {why}");
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
    if let Some(limit) = connection.rate_limit {
        text += &format!("; limited to {:.2} Mbit/s", limit as f64 * 8.0 / 1e6);
    }
    if is_relayed(connection) {
        if connection.looks_for_direct {
            text += "; a direct path is being looked for";
        } else if !connection.accepted && connection.chooses {
            text += "; stays relayed unless the system's routes lead out by the chosen network";
        }
    }
    if let Some(messages) = &connection.messages {
        text.push_str(&describe_messages(messages));
    }
    for path in &connection.paths {
        text.push_str(&describe_path(path));
    }
    text
}

/// Whether all that carries goes through relays.
fn is_relayed(connection: &ConnectionReport) -> bool {
    let mut active = connection.paths.iter().filter(|path| path.state == "active").peekable();
    active.peek().is_some() && active.all(|path| path.relayed)
}

fn describe_path(path: &PathReport) -> String {
    let place = path.interface.as_deref().map(|name| format!(" ({name})")).unwrap_or_default();
    let rate = path.rate_mbit.map(|rate| format!(", {rate:.1} Mbit/s")).unwrap_or_default();
    let priority = if path.priority == "backup" { ", backup" } else { "" };
    let relay = if path.relayed { "relay " } else { "" };
    let weak = path.signal.filter(|signal| signal.weak);
    let weak = weak.map(|signal| format!(", weak Wi-Fi ({} dBm)", signal.dbm)).unwrap_or_default();
    format!(
        "\n    {} {} {}{place} → {relay}{} {}{priority}{weak}, RTT {:.1} ms{rate}, sent {}, received {}",
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

fn describe_messages(messages: &MessageReport) -> String {
    let mut text = String::new();
    if messages.counts.sent + messages.counts.queued > 0 {
        text += &format!("\n    messages: {}", describe_counts(&messages.counts));
    }
    if messages.received > 0 {
        let dropped = some(messages.discarded, "stale");
        text += &format!("\n    messages received: {}{dropped}", messages.received);
    }
    if let [_, _, ..] = &messages.flows[..] {
        for flow in messages.flows.iter().filter(|flow| flow.counts.sent + flow.counts.queued > 0) {
            text += &format!("\n      {}: {}", describe_flow(flow), describe_counts(&flow.counts));
        }
    }
    text
}

fn describe_flow(flow: &FlowReport) -> String {
    let reliable = if flow.reliable { "reliable" } else { "unreliable" };
    let sequenced = if flow.sequenced { " sequenced" } else { "" };
    let closed = if flow.open { "" } else { ", closed" };
    format!("flow {} ({reliable}{sequenced}, urgency {}{closed})", flow.id, flow.urgency)
}

fn describe_counts(counts: &MessageCounts) -> String {
    let mut text = format!("queued {}, sent {}, delivered {}", counts.queued, counts.sent, counts.delivered);
    for (count, word) in [
        (counts.retransmitted, "sent again"),
        (counts.expired, "expired"),
        (counts.replaced, "replaced"),
        (counts.cancelled, "cancelled"),
        (counts.lost, "lost"),
    ] {
        text += &some(count, word);
    }
    if let (Some(half), Some(most)) = (counts.delay_p50_ms, counts.delay_p99_ms) {
        text += &format!("; delay {half:.1} ms (p50), {most:.1} ms (p99)");
    }
    text
}

/// `, 3 lost`, if there are any.
fn some(count: u64, word: &str) -> String {
    if count == 0 { String::new() } else { format!(", {word} {count}") }
}

/// An event on one line; nothing for statistics, which would be a page.
pub(crate) fn describe_event(event: &Event) -> String {
    let of = |which: &crate::status::Which| {
        let way = if which.accepted { "from" } else { "to" };
        let purpose = which.purpose.as_deref().map(|name| format!(" ({})", plain(name, MAX_TEXT)));
        let peer = plain(which.peer.get(..8).unwrap_or(&which.peer), MAX_TEXT);
        format!("{way} {peer}{}", purpose.unwrap_or_default())
    };
    let ms = |ms: f64| match ms {
        ..10_000.0 => format!("{ms:.0} ms"),
        _ => rounded(Duration::try_from_secs_f64(ms / 1e3).unwrap_or(Duration::MAX)),
    };
    let what = match &event.what {
        What::Running { version, .. } => format!("runs (whimbrel {})", plain(version, MAX_TEXT)),
        What::Ended => "ended".to_owned(),
        What::Silent { for_ms } => format!("does not answer since {}", ms(*for_ms)),
        What::Established(which) => format!("connection {} is established", of(which)),
        What::Failed { peer, target, accepted, reason } => {
            let way = if *accepted { "from" } else { "to" };
            let peer = peer.as_deref().map(|peer| peer.get(..8).unwrap_or(peer));
            let whom = target.as_deref().or(peer).unwrap_or("a peer");
            format!("no connection {way} {}: {}", plain(whom, MAX_TEXT), plain(reason, MAX_TEXT))
        }
        What::PathUp { which, path, local, remote } => {
            format!("connection {}: path {path} up, {local} → {remote}", of(which))
        }
        What::PathSuspect { which, path } => {
            format!("connection {}: path {path} makes no progress", of(which))
        }
        What::PathDown { which, path, local, remote, cause } => {
            let cause = cause.as_deref().map(|cause| format!(" ({})", plain(cause, MAX_TEXT)));
            let cause = cause.unwrap_or_default();
            format!("connection {}: path {path} down, {local} → {remote}{cause}", of(which))
        }
        What::PathSignal { which, path, dbm, weak } => {
            let how = match (weak, dbm) {
                (true, Some(dbm)) => format!("is weak ({dbm} dBm)"),
                (true, None) => "is weak".to_owned(),
                (false, Some(dbm)) => format!("is well again ({dbm} dBm)"),
                (false, None) => "is not told of any more".to_owned(),
            };
            format!("connection {}: the Wi-Fi of path {path} {how}", of(which))
        }
        What::PeerSuspended(which) => format!("connection {}: the peer sleeps", of(which)),
        What::PeerResumed(which) => format!("connection {}: the peer is awake again", of(which)),
        What::PeerHandedOver { which, to, .. } => {
            let to = plain(to.get(..8).unwrap_or(to), MAX_TEXT);
            format!("connection {}: the peer's end went over to {to}", of(which))
        }
        What::Unreachable { which, elapsed_ms } => {
            format!("connection {}: out of reach for {}", of(which), ms(*elapsed_ms))
        }
        What::Reachable { which, after_ms } => {
            format!("connection {}: in reach again after {}", of(which), ms(*after_ms))
        }
        What::Moved { which, took_ms, local, remote, .. } => {
            let took = took_ms.map(|took| format!(" in {}", ms(took)));
            format!("connection {}: moved to {local} → {remote}{}", of(which), took.unwrap_or_default())
        }
        What::Mode { which, mode } => {
            format!("connection {}: the peer set the mode {}", of(which), plain(mode, MAX_TEXT))
        }
        What::Priority { which, path, priority } => {
            format!("connection {}: the peer made path {path} {}", of(which), plain(priority, MAX_TEXT))
        }
        What::Closed { which, code, reason } => {
            let reason =
                if reason.is_empty() { String::new() } else { format!(": {}", plain(reason, MAX_TEXT)) };
            format!("connection {} is over: {}{reason}", of(which), plain(code, MAX_TEXT))
        }
        What::Statistics { report } => {
            let (sent, received) = report
                .connections
                .iter()
                .fold((0, 0), |(sent, received), one| (sent + one.bytes_sent, received + one.bytes_received));
            format!(
                "{} connections, sent {}, received {}",
                report.connections.len(),
                output::bytes(sent),
                output::bytes(received)
            )
        }
        What::Missed { count } => format!("{count} events were missed"),
    };
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(event.time_ms));
    // Years that have more than four digits are no times of an event.
    let time = time.filter(|_| event.time_ms < 253_402_300_800_000).unwrap_or(SystemTime::UNIX_EPOCH);
    let name = event.name.as_deref().map(|name| format!(" {}", plain(name, MAX_TEXT))).unwrap_or_default();
    format!(
        "{} {}{name} ({}): {what}",
        humantime::format_rfc3339_seconds(time),
        plain(&event.command, MAX_TEXT),
        event.pid
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_relayed_connection_says_that_it_looks_for_a_direct_path_or_what_it_needs_to_be_direct() {
        let described = |chooses: bool, looks: bool, relayed: &[bool]| {
            let path = |relayed: &bool| {
                json!({
                    "id": 0, "local": "192.0.2.1:1", "remote": "192.0.2.2:1", "relayed": relayed,
                    "interface": null, "state": "active", "carrier": "tcp", "priority": "normal", "rtt_ms": 1.0,
                    "rate_mbit": null, "bytes_sent": 0, "bytes_received": 0, "in_flight": 0, "age_ms": 1.0,
                })
            };
            let connection = json!({
                "id": "c", "peer": "p", "name": null, "accepted": false, "bytes_sent": 0, "bytes_received": 0,
                "bytes_resent": 0, "bytes_twice": 0, "mode": "backup", "scheduler": "min-rtt", "moves": 0,
                "last_recovery_ms": null, "unreachable_ms": null, "chooses": chooses,
                "looks_for_direct": looks, "paths": relayed.iter().map(path).collect::<Vec<_>>(),
            });
            describe_connection(&serde_json::from_value(connection).unwrap())
        };
        let stays = |chooses, relayed: &[bool]| described(chooses, false, relayed).contains("stays relayed");
        assert!(stays(true, &[true, true]));
        assert!(!stays(false, &[true]) && !stays(true, &[true, false]) && !stays(true, &[]));
        for chooses in [true, false] {
            let text = described(chooses, true, &[true]);
            assert!(
                text.contains("a direct path is being looked for") && !text.contains("stays relayed"),
                "{text}"
            );
            assert!(!described(chooses, true, &[true, false]).contains("looked for"), "it has one");
        }
    }

    #[test]
    fn weak_wifi_is_told_where_its_path_and_what_happened_are() {
        let path = |signal: serde_json::Value| {
            let mut path = json!({
                "id": 3, "local": "192.0.2.1:1", "remote": "192.0.2.2:1", "interface": "wlan0",
                "state": "active", "carrier": "tcp", "priority": "normal", "rtt_ms": 1.0, "rate_mbit": null,
                "bytes_sent": 0, "bytes_received": 0, "in_flight": 0, "age_ms": 1.0,
            });
            path["signal"] = signal;
            describe_path(&serde_json::from_value(path).unwrap())
        };
        let weak = path(json!({ "dbm": -84, "weak": true }));
        assert!(weak.contains("active, weak Wi-Fi (-84 dBm), RTT"), "{weak}");
        for well in [json!({ "dbm": -60, "weak": false }), json!(null)] {
            assert!(!path(well).contains("Wi-Fi"));
        }
        let event = |dbm: Option<i8>, weak: bool| {
            let event = json!({
                "time_ms": 0, "pid": 7, "command": "forward", "name": null, "event": "path-signal",
                "connection": "c", "peer": "p", "accepted": false, "for": null, "path": 3, "dbm": dbm,
                "weak": weak,
            });
            describe_event(&serde_json::from_value(event).unwrap())
        };
        let told = [event(Some(-84), true), event(Some(-75), false), event(None, false)];
        let ends = ["is weak (-84 dBm)", "is well again (-75 dBm)", "is not told of any more"];
        for (told, end) in told.iter().zip(ends) {
            assert!(told.ends_with(&format!("connection to p: the Wi-Fi of path 3 {end}")), "{told}");
        }
    }

    fn flow(id: u64, reliable: bool, sent: u64) -> FlowReport {
        let counts = MessageCounts { sent, delivered: sent, ..MessageCounts::default() };
        FlowReport { id, open: id == 0, reliable, sequenced: true, urgency: 3, counts }
    }

    #[test]
    fn several_flows_have_a_line_each() {
        let counts = MessageCounts { sent: 5, delivered: 5, ..MessageCounts::default() };
        let mut report = MessageReport { counts, received: 0, discarded: 0, flows: vec![flow(0, true, 3)] };
        assert_eq!(describe_messages(&report), "\n    messages: queued 0, sent 5, delivered 5");
        report.flows.extend([flow(2, false, 2), flow(4, false, 0)]);
        let text = describe_messages(&report);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        let shown = [
            "      flow 0 (reliable sequenced, urgency 3): queued 0, sent 3, delivered 3",
            "      flow 2 (unreliable sequenced, urgency 3, closed): queued 0, sent 2, delivered 2",
        ];
        assert_eq!(lines, shown, "the third has sent nothing");
    }
}
