//! People talk, a line at a time, each line a reliable sequenced message.
//!
//! ```text
//! message        what they say to each other
//! conversation   one of them: what is typed goes out, what arrives and what happens is shown
//! gathering      one person and the members of a group
//! lines          shown line by line, for pipes and scripts
//! editor, page   shown on a terminal's page, with a line to type in
//! ```

mod conversation;
mod editor;
mod gathering;
mod lines;
mod message;
mod page;

use std::time::Duration;

use whimbrel_base::EndpointId;
use whimbrel_transport::{CloseCode, Connection};

pub(crate) use self::conversation::{Conversation, End};
pub(crate) use self::gathering::Gathering;
pub(crate) use self::lines::Lines;
pub(crate) use self::page::Page;
use crate::plain::plain;

/// Bytes of a line, at most.
pub(crate) const MAX_LINE: usize = 4096;
/// Characters of a name that the other side gives itself.
const MAX_NICK: usize = 24;

/// The other side, as it is called here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partner {
    pub(crate) id: EndpointId,
    /// What the user called it: a name that was looked up, whose key was checked.
    known_as: Option<String>,
    /// What it calls itself, which proves nothing.
    nick: Option<String>,
}

impl Partner {
    pub(crate) fn new(id: EndpointId, known_as: Option<String>) -> Self {
        Self { id, known_as, nick: None }
    }

    /// Takes the name that the other side gives itself, if it cannot be taken for anything else.
    fn call(&mut self, nick: Option<String>) {
        let nick = nick.map(|nick| plain(nick.trim(), MAX_NICK));
        let fits =
            |nick: &String| !nick.is_empty() && !nick.contains(['[', ':', '>']) && !nick.starts_with('-');
        self.nick = nick.filter(|nick| fits(nick) && !nick.eq_ignore_ascii_case("you"));
    }

    /// In front of its lines.
    pub(crate) fn name(&self) -> String {
        self.known_as.clone().or(self.nick.clone()).unwrap_or_else(|| self.id.short())
    }

    /// With its key, to which others can be told.
    fn whole_name(&self) -> String {
        match &self.known_as {
            Some(name) => name.clone(),
            None => format!("{} [{}]", self.nick.as_deref().unwrap_or("somebody"), self.id.short()),
        }
    }
}

/// What is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The other side is there.
    Here(Partner),
    /// It has said this.
    Said(String),
    /// This was typed here, and goes out.
    Sent(u64, String),
    /// The other side has the line with this number.
    Delivered(u64),
    /// It is out of reach, for so long by now.
    Away(Duration),
    /// It is in reach again, after so long.
    Back(Duration),
    /// It has gone, or was lost.
    Left(String),
    /// Something else that the user should know.
    Note(String),
    /// In a group: of the member with this name.
    Of(String, Box<News>),
}

/// Why a connection is over, if that is more than that the other side has left.
fn parting_words(connection: &Connection) -> String {
    match connection.close_reason() {
        Some(reason) if reason.code == CloseCode::NONE || reason.code == CloseCode::GOING_AWAY => {
            String::new()
        }
        Some(reason) => plain(&reason.to_string(), 200),
        None => String::new(),
    }
}

/// What is typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Typed {
    Line(String),
    /// More than [`MAX_LINE`] bytes without an end.
    TooLong,
    End,
}

/// Where a conversation is shown, and where its user types.
pub(crate) trait Show {
    /// Shows something. An error ends the conversation.
    fn show(&mut self, news: &News) -> anyhow::Result<()>;

    /// What is typed next. Cancel-safe.
    fn typed(&mut self) -> impl Future<Output = Typed> + Send;
}

/// Decodes whatever comes as a message, and shows it.
#[cfg(feature = "fuzzing")]
pub(crate) fn decode_anything(bytes: &[u8]) {
    let said = message::Message::decode(bytes);
    if let Some(message::Message::Line { text }) = &said {
        assert!(!plain(text, MAX_LINE).chars().any(char::is_control));
    }
    if let Some(message::Message::Hello { name, .. }) = said {
        let mut partner = Partner::new(whimbrel_base::SecretKey::from_bytes(&[7; 32]).id(), None);
        partner.call(name);
        assert!(!partner.whole_name().chars().any(char::is_control));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_the_other_side_gives_itself_cannot_be_taken_for_anything_else() {
        let id = whimbrel_base::SecretKey::from_bytes(&[7; 32]).id();
        let called = |nick: &str| {
            let mut partner = Partner::new(id, None);
            partner.call(Some(nick.to_owned()));
            partner.name()
        };
        assert_eq!(called(" bob "), "bob");
        for wrong in ["", "you", "You", "-- bob", "you [1]", "bob: hello", "> x"] {
            assert_eq!(called(wrong), id.short(), "{wrong}");
        }
        assert_eq!(called("\x1b[31mbob"), id.short());
        assert!(!called("b\x1bob").contains('\x1b'));
        let mut known = Partner::new(id, Some("ada@example.org".to_owned()));
        known.call(Some("eve".to_owned()));
        assert_eq!(known.name(), "ada@example.org");
    }
}
