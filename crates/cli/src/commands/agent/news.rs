//! What an agent says on standard output: lines for people, or JSON objects.

use anyhow::Result;
use serde_json::{Value, json};
use whimbrel_proxy::Listed;

use crate::output;
use crate::plain::plain;

/// The longest text of a line: one that has a ticket in it, with places behind relays, is of no use if it is
/// cut.
const LONGEST: usize = 1300;

/// Says what happens.
#[derive(Debug, Clone, Copy)]
pub(super) struct News {
    json: bool,
}

impl News {
    /// As JSON objects, or as lines.
    pub(super) fn new(json: bool) -> Self {
        Self { json }
    }

    /// The agent waits for sessions from now on.
    ///
    /// # Errors
    /// When nobody reads that.
    pub(super) fn ready(self, gateway: &str, apps: usize) -> Result<()> {
        match self.json {
            true => output::json(&json!({ "event": "ready", "through": gateway, "apps": apps })),
            false => output::line(status(gateway, apps)),
        }
    }

    /// Something about the gateway.
    pub(super) fn note(self, event: &str, text: &str) {
        let text = plain(text, LONGEST);
        told(match self.json {
            true => output::json(&json!({ "event": event, "text": text })),
            false => output::line(text),
        });
    }

    /// Something about a session, with further fields for programs.
    pub(super) fn of(self, event: &str, session: &Listed, text: &str, more: Value) {
        self.about((&session.id.to_string(), &session.to.to_string()), event, text, more);
    }

    /// The same about one with this id, that leads there.
    pub(super) fn about(self, (id, to): (&str, &str), event: &str, text: &str, more: Value) {
        let (to, text) = (plain(to, LONGEST), plain(text, LONGEST));
        if !self.json {
            return told(output::line(format!("{}  {to}  {text}", id.get(..8).unwrap_or(id))));
        }
        let mut object = json!({ "event": event, "session": id, "to": to, "text": text });
        if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
            object.extend(more);
        }
        told(output::json(&object));
    }
}

/// What the agent does, in one line.
pub(super) fn status(gateway: &str, apps: usize) -> String {
    let programs = if apps == 1 { "program" } else { "programs" };
    format!("waiting for sessions of {gateway}, with {apps} {programs}")
}

/// Programs go on where nobody reads about them.
fn told(written: Result<()>) {
    if let Err(error) = written {
        tracing::debug!(error = crate::failure::line(&error), "nobody reads what the agent says");
    }
}
