//! What runs on this host and could go on at another device, without a gateway.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::digits;
use super::rate::{self, Rates, Ways};
use crate::failure::Failure;
use crate::moving::{Elsewhere, Movable};
use crate::output;
use crate::plain::plain;
use crate::status::{self, Report};

/// So many are told to another device.
const MOST: usize = 64;
/// Characters of a peer's name.
const LONGEST: usize = 100;
/// The command of which nothing moves before it is on its way.
const SEND: &str = "send";

/// A session, and the command that has it.
pub(crate) struct Here {
    pub(crate) report: Report,
    pub(crate) session: Movable,
}

impl Here {
    /// Bytes that came from the peer and that went there, as its connection counts them.
    fn bytes(&self) -> (u64, u64) {
        if let Some(down) = self.session.down {
            return (down, 0);
        }
        let connection = self.report.connections.iter().find(|one| one.id == self.session.id);
        connection.map_or((0, 0), |one| (one.bytes_received, one.bytes_sent))
    }

    fn told(&self) -> Elsewhere {
        let (down, up) = self.bytes();
        Elsewhere {
            id: self.session.id.clone(),
            command: self.report.command.clone(),
            peer: plain(&self.session.peer, LONGEST),
            age: self.session.age_ms / 1000,
            down,
            up,
        }
    }
}

/// What the connection of a session has counted.
pub(super) fn counted(told: &Elsewhere) -> (String, Ways) {
    (told.id.clone(), Ways { down: told.down, up: told.up })
}

fn describe(told: &Elsewhere, rates: &Rates) -> String {
    let age = humantime::format_duration(Duration::from_secs(told.age));
    let [id, command, peer] = [&told.id, &told.command, &told.peer].map(|text| plain(text, LONGEST));
    let (id, down, up) = (id.get(..8).unwrap_or(&id), told.down, told.up);
    let rate = rate::describe(rates.of(&told.id));
    format!("{id}  {command}  {peer}  for {age}; {down} bytes down, {up} up{rate}")
}

fn as_json(told: &Elsewhere, rates: &Rates) -> Value {
    let mut value = json!({
        "id": told.id, "command": told.command, "peer": told.peer, "age": told.age, "down": told.down,
        "up": told.up,
    });
    rate::put(&mut value, rates.of(&told.id));
    value
}

/// What there is, for another device.
pub(crate) async fn all_here() -> Result<Vec<Elsewhere>> {
    Ok(all().await?.iter().take(MOST).map(Here::told).collect())
}

/// All of them.
async fn all() -> Result<Vec<Here>> {
    Ok(status::ask_all().await?.into_iter().flat_map(sessions).collect())
}

/// What of a command could move.
fn sessions(mut report: Report) -> impl Iterator<Item = Here> {
    let (first, more) = (report.session.take(), std::mem::take(&mut report.more_sessions));
    first.into_iter().chain(more).map(move |session| Here { report: report.clone(), session })
}

/// Tells the user of commands that cannot move, although one might think so.
pub(super) async fn tell_what_stays(quiet: bool) -> Result<()> {
    let stays = |report: &&Report| report.command == SEND && report.session.is_none();
    for report in status::ask_all().await?.iter().filter(stays) {
        let to = plain(report.name.as_deref().unwrap_or("somebody"), LONGEST);
        let text = format!(
            "a `whimbrel send` to {to} stays here until the receiver has said that it takes what is sent"
        );
        output::note(quiet, text);
    }
    Ok(())
}

/// Why what begins so cannot move, if it is a connection of this command.
fn stays(report: &Report, wanted: &str) -> Option<Failure> {
    report.connections.iter().find(|connection| connection.id.starts_with(wanted))?;
    let message = match report.command.as_str() {
        SEND => "this `whimbrel send` does not move yet: it does once the receiver has said that it takes it"
            .to_owned(),
        command => format!("this connection of `whimbrel {}` does not move", plain(command, LONGEST)),
    };
    Some(Failure::new(Failure::REFUSED, message))
}

/// Shows what there is, here or at another device.
pub(super) fn show(all: &[Elsewhere], rates: &Rates, in_json: bool) -> Result<()> {
    if in_json {
        let sessions: Vec<_> = all.iter().map(|told| as_json(told, rates)).collect();
        return output::json(&json!({ "sessions": sessions }));
    }
    all.iter().try_for_each(|told| output::line(describe(told, rates)))?;
    if all.is_empty() {
        output::line(
            "there is nothing that could move without a gateway; --through GATEWAY shows what can with it",
        )?;
    }
    Ok(())
}

/// The one whose id begins so.
pub(crate) async fn find(wanted: &str) -> Result<Here> {
    let wanted = digits(wanted)?;
    let reports = status::ask_all().await?;
    let fixed = reports.iter().find_map(|report| stays(report, &wanted));
    let mut found =
        reports.into_iter().flat_map(sessions).filter(|here| here.session.id.starts_with(&wanted));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => {
            if let Some(fixed) = fixed {
                return Err(fixed.into());
            }
            let message = format!(
                "no session that begins with {wanted} runs here; `whimbrel sessions` shows those that do, and \
                 --through GATEWAY means those of a gateway"
            );
            Err(Failure::new(Failure::NOT_FOUND, message).into())
        }
        (Some(_), Some(_)) => {
            Err(Failure::usage(format!("more than one session begins with {wanted}; give more digits")))
        }
    }
}
