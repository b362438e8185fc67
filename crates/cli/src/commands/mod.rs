//! The commands, one file each.

pub(crate) mod demo;
pub(crate) mod expose;
pub(crate) mod forward;
pub(crate) mod help;
pub(crate) mod id;
pub(crate) mod names;
pub(crate) mod pipe;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod status;

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
