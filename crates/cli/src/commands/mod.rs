//! The commands, one file each.

pub(crate) mod demo;
pub(crate) mod expose;
pub(crate) mod forward;
pub(crate) mod help;
pub(crate) mod id;
pub(crate) mod names;
pub(crate) mod pageload;
pub(crate) mod paths;
pub(crate) mod pipe;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod status;

use std::time::Duration;

use anyhow::Result;

use crate::args::Globals;
use crate::identity::{self, Identity};
use crate::{output, places};

/// This user's key. Says so if it had to be made.
pub(crate) fn identity(globals: &Globals) -> Result<Identity> {
    let file = match &globals.identity {
        Some(file) => file.clone(),
        None => places::config()?.join("identity"),
    };
    let identity = identity::load_or_create(&file)?;
    if identity.created {
        output::note(globals.quiet, format!("made a new identity in {}", identity.file.display()));
    }
    Ok(identity)
}

/// `HOST:PORT`, where the host may be a name.
pub(crate) fn host_and_port(text: &str) -> Result<String, String> {
    let fits = text
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0));
    if fits { Ok(text.to_owned()) } else { Err("write it as HOST:PORT, as in 127.0.0.1:22".to_owned()) }
}

/// A number and a unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "write it as a number and s, m, h or d, as in 365d".to_owned();
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).filter(|seconds| *seconds > 0).map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration("365d"), Ok(Duration::from_secs(365 * 86_400)));
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        for wrong in ["", "d", "0d", "-1d", "1w", "1", "99999999999999999999d", "1é"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
