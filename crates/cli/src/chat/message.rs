//! What two programs say to each other in a chat: JSON, each in a message of its own.

use serde::{Deserialize, Serialize};

use super::MAX_LINE;

/// No message is longer: a line whose every byte is escaped, and what is around it.
const MAX: usize = 6 * MAX_LINE + 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Message {
    /// The first of each side.
    Hello {
        /// What the sender calls itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// A line that was typed.
    Line { text: String },
    /// What a newer program says beside that.
    #[serde(other)]
    Other,
}

impl Message {
    /// `None` for what no program says.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let message = if bytes.len() <= MAX { serde_json::from_slice(bytes).ok()? } else { return None };
        match &message {
            Self::Line { text } if text.len() > MAX_LINE => None,
            _ => Some(message),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_line_that_may_be_typed_is_understood_and_nothing_longer() {
        for text in ["", "grüße", &"\0".repeat(MAX_LINE)] {
            let line = Message::Line { text: text.to_owned() };
            assert_eq!(Message::decode(&serde_json::to_vec(&line).unwrap()), Some(line));
        }
        let long = Message::Line { text: "x".repeat(MAX_LINE + 1) };
        assert_eq!(Message::decode(&serde_json::to_vec(&long).unwrap()), None);
        assert_eq!(Message::decode(b"{\"type\":\"wave\",\"hand\":\"left\"}"), Some(Message::Other));
        assert_eq!(Message::decode(b"hello"), None);
    }
}
