//! `whimbrel status --watch`: what the commands do, anew each second.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::Result;

use super::describe;
use crate::failure::Failure;
use crate::options::Globals;
use crate::output;
use crate::shutdown::Shutdown;
use crate::status::{Report, ask_all};

const REFRESH: Duration = Duration::from_secs(1);
/// Where no terminal says how many it has.
const ROWS: usize = 24;

/// The terminal's second page, without a cursor. The first comes back when this is dropped.
pub(crate) struct Page;

impl Page {
    pub(crate) fn open() -> io::Result<Self> {
        let mut out = io::stdout().lock();
        out.write_all(b"\x1b[?1049h\x1b[?25l")?;
        out.flush()?;
        Ok(Self)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let mut out = io::stdout().lock();
        // A terminal that is gone needs no order.
        let _ = out.write_all(b"\x1b[?25h\x1b[?1049l").and_then(|()| out.flush());
    }
}

pub(super) async fn run(globals: &Globals, json: bool) -> Result<()> {
    let mut shutdown = Shutdown::catch(globals.until_eof)?.with_hangup()?;
    let is_page = io::stdout().is_terminal() && !json;
    let _page = if is_page { Some(Page::open()?) } else { None };
    let mut ticks = tokio::time::interval(REFRESH);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = shutdown.requested() => return Ok(()),
        }
        let reports = tokio::select! {
            reports = ask_all() => reports?,
            _ = shutdown.requested() => return Ok(()),
        };
        match (json, is_page) {
            (true, _) => output::json(&reports)?,
            (_, true) => show(&page(&reports, output::width(), rows()))?,
            _ => output::line(page(&reports, output::width(), usize::MAX).join("\n") + "\n")?,
        }
    }
}

fn rows() -> usize {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout());
    size.map_or(ROWS, |size| usize::from(size.ws_row)).max(2)
}

/// The lines to show, cut to what fits.
fn page(reports: &[Report], width: usize, rows: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for report in reports {
        lines.extend(output::fit(&describe(report), width, 4).lines().map(str::to_owned));
    }
    if reports.is_empty() {
        lines.push("no whimbrel command of yours is running".to_owned());
    }
    cut_to_page(lines, width, rows)
}

/// What fits of these lines, and how many do not.
fn cut_to_page(mut lines: Vec<String>, width: usize, rows: usize) -> Vec<String> {
    if lines.len() > rows {
        let more = lines.len() - (rows - 1);
        lines.truncate(rows - 1);
        lines.push(format!("… {more} more lines"));
    }
    lines.into_iter().map(|line| cut(line, width)).collect()
}

/// A word may be wider than the page.
fn cut(line: String, width: usize) -> String {
    if line.chars().count() <= width {
        return line;
    }
    line.chars().take(width - 1).chain(['…']).collect()
}

/// Shows what fits of these lines on the page.
pub(crate) fn show_lines(lines: Vec<String>) -> Result<()> {
    show(&cut_to_page(lines, output::width(), rows()))
}

/// Writes over what is there, so that nothing flickers: each line to its end, and what is below.
fn show(lines: &[String]) -> Result<()> {
    let text = lines.join("\x1b[K\r\n");
    let mut out = io::stdout().lock();
    let written = write!(out, "\x1b[H{text}\x1b[K\x1b[J").and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::silent(1)),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_no_larger_than_the_terminal_and_says_what_is_missing() {
        let report = Report {
            command: "forward".to_owned(),
            name: Some(format!("{}@example.org", "x".repeat(120))),
            connections: Vec::new(),
            ..Report::default()
        };
        let reports = vec![report; 20];
        let lines = page(&reports, 80, 24);
        assert_eq!(lines.len(), 24);
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
        assert!(lines[23].starts_with("… ") && lines[23].ends_with(" more lines"), "{lines:#?}");
        assert_eq!(page(&[], 80, 24).len(), 1);
    }
}
