//! `whimbrel status`: what the running commands of this user do.

mod describe;
mod watch;

use std::time::Duration;

use anyhow::Result;
use clap::Args;

pub(crate) use self::describe::{describe, describe_event};
pub(crate) use self::watch::{Page, show_lines};
use crate::options::{Globals, after, duration};
use crate::output;
use crate::shutdown::Shutdown;
use crate::status::{ask_all, follow_all};

/// Show the live connections of this user's running commands
///
/// With --watch, shows them anew each second. With --events, tells what happens to them as it happens: a line
/// for each event of each command, those included that start later.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel status
  whimbrel status --json
  whimbrel status --watch
  whimbrel status --events --json --interval 5s"))]
pub(crate) struct Status {
    /// Show it anew each second, until stopped
    #[arg(long)]
    watch: bool,
    /// Tell what happens, a line an event, until stopped
    #[arg(long, conflicts_with = "watch")]
    events: bool,
    /// Time between statistics among the events: a number and s, m, h or d
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = interval)]
    interval: Duration,
    /// Print a JSON array with an object a command; with --events, an object an event
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| match time.as_secs() {
        ..=3600 => Ok(time),
        _ => Err("at most an hour".to_owned()),
    })
}

pub(crate) async fn run(globals: &Globals, args: Status) -> Result<()> {
    if args.events {
        return events(globals, &args).await;
    }
    if args.watch {
        return watch::run(globals, args.json).await;
    }
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

/// Tells what happens until stopped.
async fn events(globals: &Globals, args: &Status) -> Result<()> {
    let mut shutdown = Shutdown::catch(globals.until_eof)?.with_hangup()?;
    let mut heard = follow_all(args.interval)?;
    loop {
        let heard = tokio::select! {
            heard = heard.recv() => heard,
            _ = shutdown.requested() => return Ok(()),
        };
        let Some(heard) = heard else { return Ok(()) };
        match heard.event {
            _ if args.json => output::json(&heard.value)?,
            Some(event) => output::line(describe_event(&event))?,
            // What a newer program says has no words here.
            None => {}
        }
    }
}
