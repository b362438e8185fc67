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

/// A session, and the command that has it.
pub(crate) struct Here {
    pub(crate) report: Report,
    pub(crate) session: Movable,
}

impl Here {
    /// Bytes that came from the peer and that went there, as its connection counts them.
    fn bytes(&self) -> (u64, u64) {
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
    let reports = status::ask_all().await?;
    let having = reports.into_iter().filter_map(|mut report| {
        let session = report.session.take()?;
        Some(Here { report, session })
    });
    Ok(having.collect())
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
    let mut found = all().await?.into_iter().filter(|here| here.session.id.starts_with(&wanted));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => {
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
