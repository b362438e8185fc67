//! Shows the user's devices, once or whenever something changes.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use whimbrel_base::EndpointId;
use whimbrel_base::order;
use whimbrel_devices::{Device, Label, Log, Subject};

use crate::options::Globals;
use crate::own_group::{OwnGroup, warn_of_forks};
use crate::presence::{self, Presence, Up};
use crate::shutdown::Shutdown;
use crate::{failure, output};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);

/// What there is to see at one moment.
struct Seen {
    log: Log,
    presence: Presence,
    this: EndpointId,
}

/// Shows the list; with `watch` also each change, until stopped.
pub(super) async fn run(globals: &Globals, as_json: bool, watch: bool) -> Result<()> {
    let own = OwnGroup::open(globals)?;
    let first = Seen::look(&own)?;
    warn_of_forks(globals.quiet, &first.log);
    if !watch {
        return if as_json { output::json(&first.as_json()) } else { first.show() };
    }
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let mut shown: Option<Lines> = None;
    let mut seen = Ok(first);
    loop {
        match seen {
            Ok(seen) => {
                let now = seen.lines(|up| up.state().to_owned());
                tell(&seen, shown.as_ref(), &now, as_json)?;
                shown = Some(now);
            }
            // Another command may have the file for long.
            Err(error) => tracing::warn!(error = failure::line(&error), "the list cannot be read"),
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = shutdown.requested() => return Ok(()),
        }
        seen = Seen::look(&own);
    }
}

/// Tells what is another than was shown; all of it at first.
fn tell(seen: &Seen, shown: Option<&Lines>, now: &Lines, as_json: bool) -> Result<()> {
    let changes = changes(shown.unwrap_or(&Lines::new()), now);
    if as_json {
        return if shown.is_some() && changes.is_empty() { Ok(()) } else { output::json(&seen.as_json()) };
    }
    changes.iter().try_for_each(output::line)
}

/// A line for each device.
type Lines = BTreeMap<EndpointId, String>;

fn changes(shown: &Lines, now: &Lines) -> Vec<String> {
    let fresh = now.iter().filter(|(id, line)| shown.get(*id) != Some(*line)).map(|(_, line)| line.clone());
    let gone = shown.iter().filter(|(id, _)| !now.contains_key(*id)).map(|(_, line)| format!("gone: {line}"));
    fresh.chain(gone).collect()
}

impl Seen {
    fn look(own: &OwnGroup) -> Result<Self> {
        let log = own.look(Clone::clone)?;
        let presence = Presence::read(log.group().user());
        Ok(Self { log, presence, this: own.key.id() })
    }

    fn up(&self, id: EndpointId) -> Option<Up> {
        self.presence.of(id, presence::now())
    }

    /// What there is to say of each device, and in what words whether it is up.
    fn lines(&self, words: impl Fn(Up) -> String) -> Lines {
        let (group, names) = (self.log.group(), self.log.group().names());
        let line = |id, device: &Device| {
            let called = names.get(&Subject::Device(id)).map(Label::as_str);
            describe(called, device, id == self.this, self.up(id).map(&words).as_deref())
        };
        let mut lines: Lines = order::map(group.devices().map(|(id, device)| (id, line(id, device))));
        let user = group.user();
        if let Some(up) = self.up(user).filter(|_| group.device(user).is_none()) {
            lines.insert(user, format!("-  the machine with the user's key, {}", words(up)));
        }
        lines
    }

    fn show(&self) -> Result<()> {
        let lines = self.lines(|up| up.to_string());
        if lines.is_empty() {
            return output::line("no devices yet; invite one with `whimbrel invite --device`");
        }
        lines.values().try_for_each(output::line)
    }

    fn as_json(&self) -> Value {
        let (log, group, this) = (&self.log, self.log.group(), self.this);
        let names = group.names();
        let called = |id| names.get(&Subject::Device(id)).map(Label::as_str);
        let devices = group.devices().map(|(id, device)| {
            json!({
                "called": called(id), "name": device.name().to_string(), "id": id.to_string(),
                "trusted": device.is_trusted(), "since": device.since().wall().as_secs(), "this": id == this,
                "presence": self.up(id).map(|up| up.as_json()),
            })
        });
        let devices: Vec<_> = devices.collect();
        let forked: Vec<String> = log.forked().map(|id| id.to_string()).collect();
        json!({
            "user": group.user().to_string(), "this": this.to_string(), "trusted": group.is_trusted(this),
            "devices": devices, "forked": forked, "user_presence": self.up(group.user()).map(|up| up.as_json()),
        })
    }
}

fn describe(called: Option<&str>, device: &Device, is_this: bool, up: Option<&str>) -> String {
    let trusted = if device.is_trusted() { ", may act for you" } else { "" };
    let this = if is_this { ", this one" } else { "" };
    let up = up.map(|up| format!(", {up}")).unwrap_or_default();
    format!("{}  {}{trusted}{this}{up}", called.unwrap_or("-"), device.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_another_is_told_and_what_is_gone() {
        let id = |number: u8| whimbrel_base::SecretKey::from_bytes(&[number; 32]).id();
        let lines = |lines: &[(u8, &str)]| -> Lines {
            lines.iter().map(|(number, line)| (id(*number), (*line).to_owned())).collect()
        };
        let first = lines(&[(1, "desk"), (2, "phone")]);
        assert_eq!(changes(&Lines::new(), &lines(&[(1, "desk")])), ["desk"]);
        assert!(changes(&first, &first).is_empty());
        assert_eq!(changes(&first, &lines(&[(1, "desk, present")])), ["desk, present", "gone: phone"]);
    }
}
