//! What is on the page, what keys do, and its rows: no terminal is needed for any of it.

use std::ops::Range;
use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};
use whimbrel_base::EndpointId;
use whimbrel_proxy::SessionId;

use crate::commands::sessions::{Rates, Ways};
use crate::output;
use crate::plain::plain;

const KEYS: &str = "up/down session, left/right device, Enter moves it there, q ends";
/// The two headings, what was said last, and the keys.
const AROUND: usize = 4;
/// With fewer rows there are no headings and no devices.
const SMALL: usize = 8;
/// Columns of what a device is called; what is longer moves the rest.
const CALLED: usize = 12;
/// Columns of a rate.
const RATE: usize = 30;
/// Characters of a row. Also others have a say in it: gateways, and agents of other devices.
const LONGEST: usize = 1000;

/// A device of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) id: EndpointId,
    /// By the user.
    pub(super) called: String,
    /// By everybody.
    pub(super) name: String,
    /// How it is, if it is up.
    pub(super) up: Option<String>,
    pub(super) is_this: bool,
}

/// Where a session is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// By a command of this host.
    Here,
    /// By the gateway, which has moved it so often.
    Gateway { id: SessionId, moves: u32 },
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) id: String,
    /// What it is, and where it leads.
    pub(super) what: String,
    /// The device that has it, if that is another one.
    pub(super) holder: Option<String>,
    /// Bytes until now.
    pub(super) carried: Ways,
    pub(super) place: Place,
    /// Why it does not move from here.
    pub(super) stays: Option<&'static str>,
}

impl Session {
    /// What stands for it on command lines.
    pub(super) fn short(&self) -> &str {
        self.id.get(..8).unwrap_or(&self.id)
    }
}

/// What a key asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Move(Box<Session>, Device),
    End,
    /// Ctrl-C.
    Interrupt,
}

/// How a row stands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Plain,
    Heading,
    Chosen,
    /// A device that is up.
    Up,
}

/// A row of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    text: String,
    style: Style,
}

impl Row {
    /// For a terminal, to its end. Without colours it may still be bold or in reverse.
    pub(super) fn drawn(&self, colours: bool) -> String {
        let on = match self.style {
            Style::Heading => "\x1b[1m",
            Style::Chosen => "\x1b[7m",
            Style::Up if colours => "\x1b[32m",
            Style::Up | Style::Plain => return format!("{}\x1b[K", self.text),
        };
        format!("{on}{}\x1b[0m\x1b[K", self.text)
    }
}

/// What there is to see, and what is chosen.
#[derive(Debug, Default)]
pub(super) struct Page {
    devices: Vec<Device>,
    sessions: Vec<Session>,
    rates: Rates,
    /// The chosen session and device, by their ids: both lists change.
    session: Option<String>,
    device: Option<EndpointId>,
    note: String,
    is_moving: bool,
    /// What is wrong, if anything is.
    pub(super) problem: Option<String>,
}

impl Page {
    /// Takes what was seen. Devices that were not are as before.
    pub(super) fn take(&mut self, devices: Option<Vec<Device>>, sessions: Vec<Session>, now: Instant) {
        if let Some(devices) = devices {
            self.devices = devices;
        }
        self.rates.look(now, sessions.iter().map(|one| (one.id.clone(), one.carried)).collect());
        let place = self.chosen();
        self.sessions = sessions;
        // What is gone is no more chosen; the one in its place is.
        if !self.sessions.iter().any(|one| Some(&one.id) == self.session.as_ref()) {
            let place = place.min(self.sessions.len().saturating_sub(1));
            self.session = self.sessions.get(place).map(|one| one.id.clone());
        }
        self.device = self.target().map(|device| device.id);
    }

    /// A move has ended so.
    pub(super) fn moved(&mut self, note: String) {
        self.note = note;
        self.is_moving = false;
    }

    /// Takes a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Option<Wanted> {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if !self.is_moving {
            // It was seen. What is wrong may be said in its place.
            self.note.clear();
        }
        match key.code {
            KeyCode::Char('c') if control => return Some(Wanted::Interrupt),
            KeyCode::Char('d') if control => return Some(Wanted::End),
            KeyCode::Char(_) if control => {}
            KeyCode::Char('q') | KeyCode::Esc => return Some(Wanted::End),
            KeyCode::Up | KeyCode::Char('k') => self.choose_session(false),
            KeyCode::Down | KeyCode::Char('j') => self.choose_session(true),
            KeyCode::Left | KeyCode::Char('h') | KeyCode::BackTab => self.choose_device(false),
            KeyCode::Right | KeyCode::Char('l') | KeyCode::Tab => self.choose_device(true),
            KeyCode::Enter | KeyCode::Char('m') => return self.begin_move(),
            _ => {}
        }
        None
    }

    fn begin_move(&mut self) -> Option<Wanted> {
        if self.is_moving {
            // What it says comes yet.
            return None;
        }
        let (session, to) = (self.sessions.get(self.chosen()).cloned(), self.target().cloned());
        let (session, to) = match (session, to) {
            (Some(session), Some(to)) => (session, to),
            (None, _) => {
                self.note = "there is no session to move".to_owned();
                return None;
            }
            (_, None) => {
                self.note = "there is no other device: `whimbrel invite --device` has one join".to_owned();
                return None;
            }
        };
        if let Some(why) = session.stays {
            self.note = format!("{}: {why}", session.short());
            return None;
        }
        self.note = format!("{} goes to {} …", session.short(), to.called);
        self.is_moving = true;
        Some(Wanted::Move(Box::new(session), to))
    }

    /// Where the chosen session is in the list; 0 if there is none.
    fn chosen(&self) -> usize {
        self.sessions.iter().position(|one| Some(&one.id) == self.session.as_ref()).unwrap_or(0)
    }

    fn choose_session(&mut self, next: bool) {
        let last = self.sessions.len().saturating_sub(1);
        let now = self.chosen();
        let then = if next { (now + 1).min(last) } else { now.saturating_sub(1) };
        self.session = self.sessions.get(then).map(|one| one.id.clone());
    }

    /// Devices that a session could move to.
    fn others(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(|device| !device.is_this)
    }

    /// The chosen device, or the first one.
    fn target(&self) -> Option<&Device> {
        self.others().find(|device| Some(device.id) == self.device).or_else(|| self.others().next())
    }

    fn choose_device(&mut self, next: bool) {
        let target = self.target().map(|device| device.id);
        let others: Vec<EndpointId> = self.others().map(|device| device.id).collect();
        let Some(at) = others.iter().position(|id| Some(*id) == target) else { return };
        let step = if next { 1 } else { others.len() - 1 };
        self.device = others.get((at + step) % others.len()).copied();
    }

    /// As many rows as the terminal has, none as wide as it is: the last column is left alone, since
    /// terminals differ in what comes behind it.
    pub(super) fn rows(&self, width: usize, height: usize) -> Vec<Row> {
        let mut rows = Vec::new();
        if height >= SMALL {
            let room = height - AROUND;
            let devices = self.device_rows();
            // Half of the page at most, and never less than one.
            let count = devices.len().min(room / 2);
            rows.push(Row { text: "Devices".to_owned(), style: Style::Heading });
            let target = devices.iter().position(|row| row.style == Style::Chosen).unwrap_or(0);
            rows.extend_from_slice(&devices[window(devices.len(), target, count)]);
            rows.push(Row { text: "Sessions".to_owned(), style: Style::Heading });
        }
        let below = if height >= SMALL { 2 } else { 1 };
        let room = height.saturating_sub(rows.len() + below);
        let sessions = self.session_rows();
        rows.extend_from_slice(&sessions[window(sessions.len(), self.chosen(), room)]);
        rows.resize(height.saturating_sub(below), Row { text: String::new(), style: Style::Plain });
        let said: &str =
            if self.note.is_empty() { self.problem.as_deref().unwrap_or_default() } else { &self.note };
        let last = if below == 2 || said.is_empty() { KEYS } else { said };
        if below == 2 {
            rows.push(Row { text: said.to_owned(), style: Style::Plain });
        }
        rows.push(Row { text: last.to_owned(), style: Style::Plain });
        for row in &mut rows {
            row.text = cut(&plain(&row.text, LONGEST), width.saturating_sub(1));
        }
        rows
    }

    fn device_rows(&self) -> Vec<Row> {
        let target = self.target().map(|device| device.id);
        let each = self.devices.iter().map(|device| {
            let is_target = Some(device.id) == target;
            let mark = if is_target { '>' } else { ' ' };
            let up = match (device.is_this, device.up.as_deref()) {
                (true, _) => "this one",
                (false, Some(up)) => up,
                (false, None) => "not heard of",
            };
            let style = match (is_target, device.up.is_some() && !device.is_this) {
                (true, _) => Style::Chosen,
                (false, true) => Style::Up,
                (false, false) => Style::Plain,
            };
            Row { text: format!("{mark} {}  {up}  {}", filled(&device.called, CALLED), device.name), style }
        });
        let mut rows: Vec<Row> = each.collect();
        if rows.is_empty() {
            let text = "  none yet: `whimbrel invite --device` has one join".to_owned();
            rows.push(Row { text, style: Style::Plain });
        }
        rows
    }

    fn session_rows(&self) -> Vec<Row> {
        let chosen = self.chosen();
        let each = self.sessions.iter().enumerate().map(|(at, session)| {
            let rate = match self.rates.of(&session.id) {
                Some(Ways { down, up }) => {
                    format!("{}/s down, {}/s up", output::bytes(down), output::bytes(up))
                }
                None => String::new(),
            };
            let (mark, style) = if at == chosen { ('>', Style::Chosen) } else { (' ', Style::Plain) };
            let holder = session.holder.as_ref().map(|holder| format!("  at {holder}")).unwrap_or_default();
            let rate = filled(&rate, RATE);
            Row { text: format!("{mark} {}  {rate}  {}{holder}", session.short(), session.what), style }
        });
        let mut rows: Vec<Row> = each.collect();
        if rows.is_empty() {
            let text = "  nothing here could move now".to_owned();
            rows.push(Row { text, style: Style::Plain });
        }
        rows
    }
}

/// Which of so many rows are shown where there is room for some, so that the chosen one is among them.
fn window(count: usize, chosen: usize, room: usize) -> Range<usize> {
    let begin = chosen.saturating_sub(room / 2).min(count.saturating_sub(room));
    begin..(begin + room).min(count)
}

/// With spaces up to so many columns.
fn filled(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(text.width())))
}

/// What fits into so many columns; an ellipsis says that there is more.
fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let (mut cut, mut used) = (String::new(), 0);
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used >= columns {
            break;
        }
        cut.push(c);
    }
    if columns > 0 {
        cut.push('…');
    }
    cut
}

#[cfg(test)]
mod tests;
