//! A conversation line by line, for pipes and scripts.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tokio::sync::mpsc;

use super::{MAX_LINE, News, Partner, Show, Typed};
use crate::output;
use crate::plain::plain;

/// Lines that were read and not sent yet.
const BACKLOG: usize = 16;

/// Reads standard input, and shows on standard output.
pub(crate) struct Lines {
    typed: mpsc::Receiver<Typed>,
    json: bool,
    partner: Option<Partner>,
    /// Those of whom it was shown that they are away.
    away: BTreeSet<String>,
}

impl Lines {
    pub(crate) fn new(json: bool) -> Self {
        let (sender, typed) = mpsc::channel(BACKLOG);
        // Nothing ends a read of standard input but the end of the program.
        std::thread::spawn(move || read(&sender));
        Self { typed, json, partner: None, away: BTreeSet::new() }
    }

    fn name(&self) -> String {
        self.partner.as_ref().map(Partner::name).unwrap_or_default()
    }
}

impl Show for Lines {
    fn show(&mut self, news: &News) -> Result<()> {
        if let News::Here(partner) = news {
            self.partner = Some(partner.clone());
        }
        if self.json {
            return output::json(&as_json(news, &self.name()));
        }
        let (name, news, to) = match news {
            News::Of(name, news) => (name.clone(), &**news, format!(" to {name}")),
            news => (self.name(), news, String::new()),
        };
        let was_away = self.away.contains(&name);
        match news {
            News::Away(_) => drop(self.away.insert(name.clone())),
            News::Back(_) | News::Left(_) | News::Here(_) => drop(self.away.remove(&name)),
            _ => {}
        }
        output::line(match news {
            News::Here(partner) => format!("-- {} is here", partner.whole_name()),
            News::Said(text) => format!("{name}: {text}"),
            News::Sent(number, text) => format!("you [{number}]: {}", plain(text, MAX_LINE)),
            News::Delivered(number) => format!("-- [{number}] delivered{to}"),
            // Said again each second; once is enough here.
            News::Away(_) if was_away => return Ok(()),
            News::Away(since) => format!("-- {name} is away since {}", seconds(*since)),
            News::Back(after) => format!("-- {name} is back after {}", seconds(*after)),
            News::Left(why) if why.is_empty() => format!("-- {name} has left"),
            News::Left(why) => format!("-- {name} has left: {why}"),
            News::Note(text) => format!("-- {text}"),
            News::Of(..) => return Ok(()),
        })
    }

    async fn typed(&mut self) -> Typed {
        self.typed.recv().await.unwrap_or(Typed::End)
    }
}

/// `12 s`, and less than one in tenths.
pub(super) fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{:.1} s", time.as_secs_f64()),
        seconds @ 1..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
}

fn as_json(news: &News, name: &str) -> serde_json::Value {
    let ms = |time: &Duration| (time.as_secs_f64() * 1e3).round();
    match news {
        News::Here(partner) => json!({ "event": "here", "peer": partner.id.to_string(), "name": name }),
        News::Said(text) => json!({ "event": "line", "from": name, "text": text }),
        News::Sent(number, text) => json!({ "event": "sent", "number": number, "text": text }),
        News::Delivered(number) => json!({ "event": "delivered", "number": number }),
        News::Away(since) => json!({ "event": "away", "for_ms": ms(since) }),
        News::Back(after) => json!({ "event": "back", "after_ms": ms(after) }),
        News::Left(why) => json!({ "event": "left", "reason": why }),
        News::Note(text) => json!({ "event": "note", "text": text }),
        News::Of(member, news) => {
            let mut of = as_json(news, member);
            of["member"] = json!(member);
            of
        }
    }
}

fn read(typed: &mpsc::Sender<Typed>) {
    let mut split = Split::default();
    let mut input = std::io::stdin().lock();
    let mut buffer = [0; 4096];
    loop {
        let read = match input.read(&mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Ok(read @ 1..) => read,
            Ok(0) | Err(_) => break,
        };
        for line in split.feed(&buffer[..read]) {
            if typed.blocking_send(line).is_err() {
                return;
            }
        }
    }
    for last in split.end().into_iter().chain([Typed::End]) {
        if typed.blocking_send(last).is_err() {
            return;
        }
    }
}

/// Cuts input into lines, in bounded memory.
#[derive(Default)]
struct Split {
    line: Vec<u8>,
    too_long: bool,
}

impl Split {
    fn feed(&mut self, bytes: &[u8]) -> Vec<Typed> {
        let mut lines = Vec::new();
        for byte in bytes {
            match byte {
                b'\n' => lines.extend(self.end()),
                _ if self.line.len() >= MAX_LINE => self.too_long = true,
                byte => self.line.push(*byte),
            }
        }
        lines
    }

    fn end(&mut self) -> Option<Typed> {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.too_long) {
            return Some(Typed::TooLong);
        }
        let text = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
        // What is no UTF-8 becomes longer.
        match text.len() {
            0 => None,
            1..=MAX_LINE => Some(Typed::Line(text)),
            _ => Some(Typed::TooLong),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_cut_into_lines_and_one_that_is_too_long_is_not_sent_in_parts() {
        let mut split = Split::default();
        let line = |text: &str| Typed::Line(text.to_owned());
        assert_eq!(split.feed(b"one\r\ntw"), [line("one")]);
        assert_eq!(split.feed(b"o\n\n"), [line("two")]);
        let longest = "x".repeat(MAX_LINE);
        assert_eq!(split.feed(format!("{longest}\n").as_bytes()), [line(&longest)]);
        assert_eq!(split.feed(format!("{longest}y\nnext\n").as_bytes()), [Typed::TooLong, line("next")]);
        assert_eq!(split.feed(&[0xff; MAX_LINE]), []);
        assert_eq!(split.end(), Some(Typed::TooLong));
        assert_eq!(split.feed(b"last"), []);
        assert_eq!((split.end(), split.end()), (Some(line("last")), None));
    }
}
