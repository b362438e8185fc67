//! A conversation on a terminal's page: what was said, who is there, and a line to type in.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use anyhow::Result;
use crossterm::event::{Event, KeyCode, KeyEventKind};
use unicode_width::UnicodeWidthStr as _;

use super::editor::Editor;
use super::lines::seconds;
use super::{MAX_LINE, News, Partner, Show, Typed};
use crate::fullscreen::FullScreen;
use crate::plain::plain;

/// Lines that can be looked at.
const MAX_SAID: usize = 1000;
const PROMPT: &str = "> ";

/// A line that was said, on either side.
#[derive(Debug)]
struct Said {
    who: String,
    text: String,
    /// Of a line that was typed here: its number, and whether the other side has it.
    mark: Option<(u64, bool)>,
}

/// What is on the page.
#[derive(Debug, Default)]
struct Content {
    said: VecDeque<Said>,
    partner: Option<Partner>,
    presence: String,
    /// In a group: those who are there, and whether they are in reach.
    members: BTreeMap<String, bool>,
    /// Screen lines that are scrolled back.
    back: usize,
    editor: Editor,
}

impl Content {
    fn take(&mut self, news: &News) {
        let name = self.partner.as_ref().map(Partner::name).unwrap_or_default();
        match news {
            News::Here(partner) => {
                self.note(format!("{} is here", partner.whole_name()));
                self.presence = format!("{} is here", partner.name());
                self.partner = Some(partner.clone());
            }
            News::Said(text) => self.say(name, text, None),
            News::Sent(number, text) => self.say("you".to_owned(), text, Some((*number, false))),
            News::Delivered(number) => {
                let of = self.said.iter_mut().rev().filter_map(|said| said.mark.as_mut());
                of.filter(|(known, _)| known == number).for_each(|mark| mark.1 = true);
            }
            News::Away(since) => self.presence = format!("{name} is away since {}", seconds(*since)),
            News::Back(after) => {
                if *after >= Duration::from_secs(2) {
                    self.note(format!("{name} is back after {}", seconds(*after)));
                }
                self.presence = format!("{name} is back");
            }
            News::Left(why) => {
                let why = if why.is_empty() { String::new() } else { format!(": {why}") };
                self.presence = format!("{name} has left");
                self.note(format!("{name} has left{why}"));
            }
            News::Note(text) => self.note(text.clone()),
            News::Of(member, news) => self.take_of(member, news),
        }
    }

    /// Takes what one member of a group does.
    fn take_of(&mut self, member: &str, news: &News) {
        match news {
            News::Here(partner) => {
                self.note(format!("{} is here", partner.whole_name()));
                self.members.insert(member.to_owned(), true);
            }
            News::Said(text) => self.say(member.to_owned(), text, None),
            News::Away(_) => drop(self.members.insert(member.to_owned(), false)),
            News::Back(_) => drop(self.members.insert(member.to_owned(), true)),
            News::Left(why) => {
                let why = if why.is_empty() { String::new() } else { format!(": {why}") };
                self.members.remove(member);
                self.note(format!("{member} has left{why}"));
            }
            // A line is marked once all have it.
            _ => {}
        }
        let each = self.members.iter().map(|(name, here)| match here {
            true => format!("{name} is here"),
            false => format!("{name} is away"),
        });
        self.presence = each.collect::<Vec<_>>().join(", ");
    }

    fn note(&mut self, text: String) {
        self.say("--".to_owned(), &text, None);
    }

    fn say(&mut self, who: String, text: &str, mark: Option<(u64, bool)>) {
        if self.said.len() == MAX_SAID {
            self.said.pop_front();
        }
        self.said.push_back(Said { who, text: plain(text, MAX_LINE), mark });
    }

    /// The rows of the page, and where the cursor is in the last.
    fn rows(&mut self, width: usize, height: usize) -> (Vec<String>, usize) {
        let room = height.saturating_sub(2);
        let mut lines: Vec<String> = Vec::new();
        for said in &self.said {
            lines.extend(said.lines(width));
        }
        self.back = self.back.min(lines.len().saturating_sub(room));
        let end = lines.len() - self.back;
        let mut rows: Vec<String> = lines[end.saturating_sub(room)..end].to_vec();
        rows.resize(room, String::new());
        let waiting = self.said.iter().filter(|said| matches!(said.mark, Some((_, false)))).count();
        let waiting = if waiting > 0 { format!("; {waiting} on the way") } else { String::new() };
        let presence = if self.presence.is_empty() { "nobody is here yet" } else { &self.presence };
        rows.push(cut(&format!("-- {presence}{waiting}; Ctrl-D ends"), width));
        let (typed, column) = self.editor.shown(width.saturating_sub(PROMPT.len() + 1));
        rows.push(format!("{PROMPT}{typed}"));
        (rows, PROMPT.len() + column)
    }
}

impl Said {
    fn lines(&self, width: usize) -> Vec<String> {
        let mark = match self.mark {
            Some((_, true)) => " ✓",
            Some((_, false)) => " ·",
            None => "",
        };
        let colon = if self.who == "--" { "" } else { ":" };
        wrap(&format!("{}{colon} {}{mark}", self.who, self.text), width)
    }
}

/// Breaks at spaces, or within a word that is wider than the page.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(2);
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split_inclusive(' ') {
        if !line.is_empty() && line.width() + word.trim_end().width() > width {
            lines.push(std::mem::take(&mut line));
        }
        for c in word.chars() {
            if line.width() + c.to_string().width() > width {
                lines.push(std::mem::take(&mut line));
                if c == ' ' {
                    continue;
                }
            }
            line.push(c);
        }
    }
    lines.push(line);
    lines
}

fn cut(text: &str, width: usize) -> String {
    wrap(text, width).into_iter().next().unwrap_or_default()
}

/// The terminal's second page. The first comes back when this is dropped, with what was said.
pub(crate) struct Page {
    content: Content,
    screen: FullScreen,
}

impl Page {
    /// Takes the terminal.
    ///
    /// # Errors
    /// When it does not let itself be taken.
    pub(crate) fn open() -> Result<Self> {
        let mut this = Self { content: Content::default(), screen: FullScreen::open()? };
        this.draw()?;
        Ok(this)
    }

    /// Writes over what is there, so that nothing flickers.
    fn draw(&mut self) -> Result<()> {
        let (width, height) = self.screen.size();
        let (rows, column) = self.content.rows(width, height);
        let last = rows.len();
        let mut text = "\x1b[?25l\x1b[H".to_owned();
        for (at, row) in rows.iter().enumerate() {
            let end = if at + 1 < last { "\r\n" } else { "" };
            // Who is there, in reverse.
            let (on, off) = if at + 2 == last { ("\x1b[7m", "\x1b[0m") } else { ("", "") };
            text += &format!("{on}{row}{off}\x1b[K{end}");
        }
        text += &format!("\x1b[{last};{}H\x1b[?25h", column + 1);
        Ok(self.screen.put(&text)?)
    }
}

impl Show for Page {
    fn show(&mut self, news: &News) -> Result<()> {
        self.content.take(news);
        self.draw()
    }

    async fn typed(&mut self) -> Typed {
        loop {
            let Some(event) = self.screen.event().await else { return Typed::End };
            let page = self.screen.size().1 / 2;
            let typed = match event {
                Event::Key(key) if key.kind == KeyEventKind::Release => continue,
                Event::Key(key) => match key.code {
                    KeyCode::PageUp => {
                        self.content.back += page;
                        None
                    }
                    KeyCode::PageDown => {
                        self.content.back = self.content.back.saturating_sub(page);
                        None
                    }
                    _ => self.content.editor.key(key),
                },
                _ => None,
            };
            if self.draw().is_err() {
                return Typed::End;
            }
            if let Some(typed) = typed {
                self.content.back = 0;
                return typed;
            }
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.screen.close();
        for said in &self.content.said {
            let colon = if said.who == "--" { "" } else { ":" };
            // A terminal that is gone needs nothing.
            let _ = self.screen.put(&format!("{}{colon} {}\n", said.who, said.text));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn partner() -> Partner {
        Partner::new(whimbrel_base::SecretKey::from_bytes(&[7; 32]).id(), Some("bob@example.org".to_owned()))
    }

    #[test]
    fn a_line_is_marked_as_sent_and_then_as_delivered_where_it_stands() {
        let mut content = Content::default();
        content.take(&News::Here(partner()));
        content.take(&News::Sent(1, "hello".to_owned()));
        content.take(&News::Sent(2, "again".to_owned()));
        let (rows, _) = content.rows(80, 10);
        assert_eq!(&rows[..3], ["-- bob@example.org is here", "you: hello ·", "you: again ·"]);
        assert!(rows[8].contains("is here; 2 on the way"), "{rows:#?}");
        content.take(&News::Delivered(1));
        let (rows, column) = content.rows(80, 10);
        assert_eq!(&rows[1..3], ["you: hello ✓", "you: again ·"]);
        assert_eq!((rows.len(), rows[9].as_str(), column), (10, "> ", 2));
        content.take(&News::Away(Duration::from_secs(12)));
        assert!(content.rows(80, 10).0[8].contains("bob@example.org is away since 12 s"));
        content.take(&News::Back(Duration::from_secs(13)));
        assert!(content.rows(80, 10).0[8].contains("is back"));
    }

    #[test]
    fn of_a_group_it_is_shown_who_is_there_and_a_line_is_marked_once_all_have_it() {
        let mut content = Content::default();
        let mut of = |name: &str, news| content.take(&News::Of(name.to_owned(), Box::new(news)));
        of("bob", News::Here(partner()));
        of("cleo", News::Here(partner()));
        of("cleo", News::Away(Duration::from_secs(2)));
        of("bob", News::Said("hello".to_owned()));
        content.take(&News::Sent(1, "hi".to_owned()));
        content.take(&News::Of("bob".to_owned(), Box::new(News::Delivered(1))));
        let (rows, _) = content.rows(80, 10);
        assert_eq!(&rows[2..4], ["bob: hello", "you: hi ·"]);
        assert!(rows[8].contains("bob is here, cleo is away; 1 on the way"), "{rows:#?}");
        content.take(&News::Delivered(1));
        content.take(&News::Of("cleo".to_owned(), Box::new(News::Left(String::new()))));
        let (rows, _) = content.rows(80, 10);
        assert_eq!(&rows[3..5], ["you: hi ✓", "-- cleo has left"]);
        assert!(rows[8].contains("-- bob is here; Ctrl-D"), "{rows:#?}");
    }

    #[test]
    fn no_row_is_wider_than_the_page_and_the_newest_is_at_the_end() {
        let mut content = Content::default();
        content.take(&News::Here(partner()));
        for n in 0..2000 {
            content.take(&News::Said(format!("{n} {} {}", "word ".repeat(20), "日本".repeat(30))));
        }
        assert_eq!(content.said.len(), MAX_SAID);
        for (width, height) in [(80, 24), (20, 5), (7, 3), (1, 1)] {
            let (rows, _) = content.rows(width, height);
            let limit = width.max(PROMPT.len());
            assert!(rows.iter().all(|row| row.trim_end().width() <= limit), "{width}: {rows:#?}");
            assert_eq!(rows.len(), height.max(2));
        }
        content.back = usize::MAX;
        assert!(content.rows(80, 24).0[0].contains(": 1000 "), "the oldest that is kept");
    }

    #[test]
    fn what_the_other_side_says_cannot_control_the_terminal() {
        let mut content = Content::default();
        content.take(&News::Said("\x1b[2J\x1b]0;title\x07\u{9b}1A\u{202e}".to_owned()));
        let (rows, _) = content.rows(80, 5);
        assert!(!rows.concat().chars().any(char::is_control), "{rows:?}");
    }
}
