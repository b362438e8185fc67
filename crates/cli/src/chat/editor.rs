//! A line that is typed.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use unicode_width::UnicodeWidthChar as _;

use super::{MAX_LINE, Typed};

/// The line so far, and where the cursor is in it.
#[derive(Debug, Default)]
pub(super) struct Editor {
    text: Vec<char>,
    cursor: usize,
}

impl Editor {
    /// Takes a key. Returns what it finishes.
    pub(super) fn key(&mut self, key: KeyEvent) -> Option<Typed> {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Some(Typed::End),
            KeyCode::Char('d') if control && self.text.is_empty() => return Some(Typed::End),
            KeyCode::Char('d') if control => self.delete(),
            KeyCode::Char('a') if control => self.cursor = 0,
            KeyCode::Char('e') if control => self.cursor = self.text.len(),
            KeyCode::Char('u') if control => drop(self.text.drain(..std::mem::take(&mut self.cursor))),
            KeyCode::Char('k') if control => self.text.truncate(self.cursor),
            KeyCode::Char('w') if control => self.delete_word(),
            KeyCode::Char(_) if control || key.modifiers.contains(KeyModifiers::ALT) => {}
            KeyCode::Char(c) => self.insert(c),
            KeyCode::Backspace if self.cursor > 0 => {
                self.cursor -= 1;
                self.delete();
            }
            KeyCode::Delete => self.delete(),
            KeyCode::Left => self.cursor = self.cursor.saturating_sub(1),
            KeyCode::Right => self.cursor = (self.cursor + 1).min(self.text.len()),
            KeyCode::Home => self.cursor = 0,
            KeyCode::End => self.cursor = self.text.len(),
            KeyCode::Enter => {
                self.cursor = 0;
                return Some(Typed::Line(std::mem::take(&mut self.text).into_iter().collect()));
            }
            _ => {}
        }
        None
    }

    fn insert(&mut self, c: char) {
        let bytes: usize = self.text.iter().map(|c| c.len_utf8()).sum();
        if bytes + c.len_utf8() <= MAX_LINE && !c.is_control() {
            self.text.insert(self.cursor, c);
            self.cursor += 1;
        }
    }

    fn delete(&mut self) {
        if self.cursor < self.text.len() {
            self.text.remove(self.cursor);
        }
    }

    fn delete_word(&mut self) {
        let before = &self.text[..self.cursor];
        let end = before.iter().rposition(|c| !c.is_whitespace()).map_or(0, |at| at + 1);
        let begin = before[..end].iter().rposition(|c| c.is_whitespace()).map_or(0, |at| at + 1);
        self.text.drain(begin..self.cursor);
        self.cursor = begin;
    }

    /// The part around the cursor that fits into so many columns, and the cursor's column in it.
    pub(super) fn shown(&self, columns: usize) -> (String, usize) {
        let width = |c: &char| c.width().unwrap_or(0);
        let mut begin = 0;
        let mut at: usize = self.text[..self.cursor].iter().map(width).sum();
        while at >= columns && begin < self.cursor {
            at -= width(&self.text[begin]);
            begin += 1;
        }
        let (mut shown, mut used) = (String::new(), 0);
        for c in &self.text[begin..] {
            if used + width(c) > columns {
                break;
            }
            used += width(c);
            shown.push(*c);
        }
        (shown, at)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn key(code: KeyCode) -> KeyEvent {
        KeyEvent::new(code, KeyModifiers::NONE)
    }

    fn control(c: char) -> KeyEvent {
        KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL)
    }

    fn typed(keys: impl IntoIterator<Item = KeyEvent>) -> Editor {
        let mut editor = Editor::default();
        keys.into_iter().for_each(|key| assert_eq!(editor.key(key), None));
        editor
    }

    fn text(text: &str) -> impl Iterator<Item = KeyEvent> {
        text.chars().map(|c| key(KeyCode::Char(c)))
    }

    #[test]
    fn a_line_is_edited_where_the_cursor_is() {
        let mut editor =
            typed(text("hallo").chain([key(KeyCode::Home), key(KeyCode::Right), key(KeyCode::Delete)]));
        editor.key(key(KeyCode::Char('e')));
        assert_eq!(editor.shown(80), ("hello".to_owned(), 2));
        assert_eq!(editor.key(key(KeyCode::Enter)), Some(Typed::Line("hello".to_owned())));
        assert_eq!(editor.shown(80), (String::new(), 0));
        let mut editor = typed(text("one two  ").chain([control('w')]));
        assert_eq!(editor.shown(80).0, "one ");
        editor.key(control('u'));
        assert_eq!(editor.key(control('d')), Some(Typed::End));
        assert_eq!(editor.key(control('c')), Some(Typed::End));
    }

    #[test]
    fn a_long_line_shows_what_is_around_the_cursor() {
        let editor = typed(text("日本語テキスト"));
        assert_eq!(editor.shown(6), ("スト".to_owned(), 4));
        let editor = typed(text(&"x".repeat(MAX_LINE + 5)));
        assert_eq!(editor.text.len(), MAX_LINE);
    }
}
