//! `whimbrel access watch`: paths and decisions as they come.

use std::collections::VecDeque;
use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use whimbrel_multiaccess::Client;
use whimbrel_multiaccess::protocol::{Answer, Decided, PathReport, Wifi};

use super::ask::{LONGEST, describe, describe_whimbrel, failure};
use crate::commands::status::Page;
use crate::failure::Failure;
use crate::options::{Globals, after};
use crate::output;
use crate::plain::plain;
use crate::shutdown::Shutdown;

/// On a terminal, and for paths on lines: measurements come ten times a second.
const REFRESH: Duration = Duration::from_millis(250);
const EACH_PATH: Duration = Duration::from_secs(1);
/// Decisions that are shown below the paths.
const SHOWN: usize = 100;

/// Show the networks that the manager measures, and what it decides, until stopped
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel access watch
  whimbrel access watch --json"))]
pub(super) struct Watch {
    /// Print all that the manager says, a JSON object a line
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(globals: &Globals, args: Watch) -> Result<()> {
    let mut shutdown = Shutdown::catch(globals.until_eof)?.with_hangup()?;
    let mut watcher = Client::default().watch(true).await.map_err(failure)?;
    let mut view = View::new(args.json)?;
    let mut due = tokio::time::interval(REFRESH);
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let line = tokio::select! {
            line = watcher.next() => line.map_err(failure)?,
            _ = due.tick(), if view.is_page() => {
                view.draw()?;
                continue;
            }
            _ = shutdown.requested() => return Ok(()),
        };
        view.hear(&line)?;
    }
}

/// How it is shown.
enum View {
    Json,
    Lines { told: Option<Instant>, interfaces: Vec<String> },
    Page { _page: Page, paths: Vec<PathReport>, decided: VecDeque<String>, changed: bool },
}

impl View {
    fn new(json: bool) -> Result<Self> {
        if json {
            return Ok(Self::Json);
        }
        if io::stdout().is_terminal() {
            let page = Page::open()?;
            return Ok(Self::Page {
                _page: page,
                paths: Vec::new(),
                decided: VecDeque::new(),
                changed: true,
            });
        }
        Ok(Self::Lines { told: None, interfaces: Vec::new() })
    }

    fn is_page(&self) -> bool {
        matches!(self, Self::Page { .. })
    }

    fn hear(&mut self, line: &str) -> Result<()> {
        let answer: Answer = match serde_json::from_slice(line.as_bytes()) {
            Ok(answer) => answer,
            // What a newer manager says.
            Err(_) if !matches!(self, Self::Json) => return Ok(()),
            Err(_) => Answer::default(),
        };
        if let Some(error) = answer.error {
            return Err(Failure::new(Failure::REFUSED, plain(&error, LONGEST)).into());
        }
        match self {
            Self::Json if answer.ok => {}
            Self::Json => output::line(line)?,
            Self::Lines { told, interfaces } => {
                if let Some(paths) = answer.paths {
                    let now: Vec<String> = paths.iter().map(|path| path.interface.clone()).collect();
                    if now != *interfaces || told.is_none_or(|at| at.elapsed() >= EACH_PATH) {
                        paths.iter().try_for_each(|path| output::line(path_line(path)))?;
                        (*told, *interfaces) = (Some(Instant::now()), now);
                    }
                }
                if let Some(decided) = answer.decided {
                    output::line(decided_line(&decided))?;
                }
                if let Some(missed) = answer.missed {
                    output::line(format!("{missed} decisions more"))?;
                }
            }
            Self::Page { paths, decided, changed, .. } => {
                if let Some(now) = answer.paths {
                    *paths = now;
                }
                if let Some(one) = answer.decided {
                    decided.push_front(decided_line(&one));
                    decided.truncate(SHOWN);
                }
                *changed = true;
            }
        }
        Ok(())
    }

    fn draw(&mut self) -> Result<()> {
        let Self::Page { paths, decided, changed, .. } = self else { return Ok(()) };
        if !std::mem::take(changed) {
            return Ok(());
        }
        let mut lines: Vec<String> = paths.iter().map(path_line).collect();
        if paths.is_empty() {
            lines.push("no interface is up and has an address".to_owned());
        }
        lines.push(String::new());
        lines.extend(decided.iter().cloned());
        let width = output::width();
        let fitted = lines.iter().flat_map(|line| {
            let fitted = output::fit(line, width, 4);
            fitted.lines().map(str::to_owned).collect::<Vec<_>>()
        });
        crate::commands::status::show_lines(fitted.collect())
    }
}

/// A path in a line.
fn path_line(path: &PathReport) -> String {
    let addresses: Vec<String> = path.addresses.iter().map(ToString::to_string).collect();
    let mut line = format!("{} {} ({})", path.number, path.interface, addresses.join(", "));
    let rtt = |time: Option<f64>| time.map_or_else(|| "?".to_owned(), |time| format!("{time:.1}"));
    line += &format!(": rtt {}/{} ms", rtt(path.srtt_min_ms), rtt(path.srtt_median_ms));
    let rate =
        |rate: Option<f64>| rate.map_or_else(|| "?".to_owned(), |rate| format!("{:.2}", rate * 8.0 / 1e6));
    line += &format!(", down {} of {} Mbit/s", rate(path.down_now), rate(path.down_best));
    line += &format!(", up {} of {} Mbit/s", rate(path.up_now), rate(path.up_best));
    if let Some(loss) = path.loss {
        line += &format!(", {:.2} % lost", loss * 100.0);
    }
    if let Some(late) = path.late_ms {
        line += &format!(", {late:.0} ms late");
    }
    line += &format!(", {} connections", path.connections);
    if path.scheduled > 0 {
        line += &format!(", {} units scheduled", path.scheduled);
    }
    if path.metered {
        line += ", metered";
    }
    if let Some(wifi) = &path.wifi {
        line += &wifi_words(wifi);
    }
    plain(&line, LONGEST)
}

/// What is known of Wi-Fi, behind the rest of its line.
fn wifi_words(wifi: &Wifi) -> String {
    let rate = |rate: f64| format!("{:.1}", rate * 8.0 / 1e6);
    let mut words = ", Wi-Fi".to_owned();
    if let Some(signal) = wifi.signal_dbm {
        words += &format!(" {signal} dBm");
    }
    if let (Some(down), Some(up)) = (wifi.down, wifi.up) {
        words += &format!(", through the air {} and {} Mbit/s", rate(down), rate(up));
    }
    if let Some(busy) = wifi.busy {
        words += &format!(", channel {:.0} % busy", busy * 100.0);
    }
    words
}

/// A decision in a line.
fn decided_line(decided: &Decided) -> String {
    let to = decided.to.as_deref().unwrap_or("anywhere");
    let to = plain(to, LONGEST);
    let intents = if decided.intents.is_empty() { "no intents" } else { &plain(&decided.intents, LONGEST) };
    if let Some(by) = &decided.whimbrel {
        let networks: Vec<&str> = by.ways.iter().map(|way| way.interface.as_str()).collect();
        let networks = plain(&networks.join(", then "), LONGEST);
        return format!(
            "{to} ({intents}): {} over {networks}: {}",
            describe_whimbrel(by),
            plain(&by.why, LONGEST)
        );
    }
    match &decided.way {
        Some(way) => format!("{to} ({intents}): {}: {}", describe(way), plain(&way.why, LONGEST)),
        None => format!("{to} ({intents}): has to wait"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_over_wifi_says_how_strong_fast_and_busy_that_is_and_others_say_nothing_of_it() {
        let path = PathReport { number: 1, interface: "wlan0".to_owned(), ..PathReport::default() };
        assert!(!path_line(&path).contains("Wi-Fi"));
        let wifi = Wifi {
            signal_dbm: Some(-61),
            down: Some(18_050_000.0),
            up: Some(162_500_000.0),
            busy: Some(0.25),
        };
        let line = path_line(&PathReport { wifi: Some(wifi), ..path });
        assert!(
            line.ends_with(", Wi-Fi -61 dBm, through the air 144.4 and 1300.0 Mbit/s, channel 25 % busy"),
            "{line}"
        );
    }
}
