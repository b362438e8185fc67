//! A small SMTP client (RFC 5321): one message of plain text to one address, by a relay nearby that takes it
//! without a password. There is no TLS: the relay is to be on this host, or in a network that is trusted.
//!
//! Addresses are [`Name`]s, which have neither spaces nor ends of lines: nobody writes headers or commands by
//! one.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use whimbrel_base::Name;

const SCHEME: &str = "smtp://";
const PORT: u16 = 25;
/// For all of it: those who wait for the answer wait for ten seconds.
const LIMIT: Duration = Duration::from_secs(8);
/// Bytes of a line of an answer.
const LINE: u64 = 2048;
/// Lines of an answer.
const LINES: usize = 64;

/// A mail relay, as `smtp://HOST[:PORT][/SENDER]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Smtp {
    host: String,
    port: u16,
    /// The sender; `names@` the receiver's domain if none is given.
    sender: Option<Name>,
}

/// Why a text names no mail relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write it as smtp://HOST[:PORT][/SENDER], as in smtp://localhost:25/names@example.org")]
pub struct SmtpError;

impl FromStr for Smtp {
    type Err = SmtpError;

    fn from_str(text: &str) -> Result<Self, SmtpError> {
        let rest = text.strip_prefix(SCHEME).ok_or(SmtpError)?;
        let (place, sender) = match rest.split_once('/') {
            Some((place, sender)) => (place, Some(sender.parse().map_err(|_| SmtpError)?)),
            None => (rest, None),
        };
        // An IPv6 address stands in brackets.
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| SmtpError)?),
            _ => (place, PORT),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':');
        if host.is_empty() || port == 0 || !host.chars().all(is_plain) {
            return Err(SmtpError);
        }
        Ok(Self { host: host.to_owned(), port, sender })
    }
}

impl fmt::Display for Smtp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let brackets = if self.host.contains(':') { ["[", "]"] } else { ["", ""] };
        write!(f, "{SCHEME}{}{}{}:{}", brackets[0], self.host, brackets[1], self.port)?;
        self.sender.iter().try_for_each(|sender| write!(f, "/{sender}"))
    }
}

impl Smtp {
    /// Gives the relay a message; takes eight seconds at most. `text` is lines of ASCII.
    ///
    /// # Errors
    /// When the relay cannot be reached, or does not take it.
    pub async fn send(&self, to: &Name, subject: &'static str, text: &str) -> io::Result<()> {
        let sender = match &self.sender {
            Some(sender) => sender.to_string(),
            None => format!("names@{}", to.domain()),
        };
        let talking = self.talk(&sender, to, message(&sender, to, subject, text));
        tokio::time::timeout(LIMIT, talking).await.map_err(io::Error::from)?
    }

    async fn talk(&self, sender: &str, to: &Name, message: String) -> io::Result<()> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let own = stream.local_addr()?.ip();
        let own = if own.is_ipv6() { format!("[IPv6:{own}]") } else { format!("[{own}]") };
        let mut relay = Relay(BufReader::new(stream));
        relay.hear("2").await?;
        relay.say(&format!("EHLO {own}\r\n")).await?;
        relay.hear("2").await?;
        relay.say(&format!("MAIL FROM:<{sender}>\r\n")).await?;
        relay.hear("2").await?;
        relay.say(&format!("RCPT TO:<{to}>\r\n")).await?;
        relay.hear("2").await?;
        relay.say("DATA\r\n").await?;
        relay.hear("3").await?;
        relay.say(&message).await?;
        relay.hear("2").await?;
        // It has the message, whatever it says to this.
        let _ = relay.say("QUIT\r\n").await;
        Ok(())
    }
}

/// A message as it is sent, with its end.
fn message(sender: &str, to: &Name, subject: &str, text: &str) -> String {
    let mut message = format!(
        "From: {sender}\r\nTo: {to}\r\nSubject: {subject}\r\nAuto-Submitted: auto-generated\r\n\
         MIME-Version: 1.0\r\nContent-Type: text/plain; charset=us-ascii\r\n\r\n"
    );
    for line in text.lines() {
        // A line that is a dot alone would be the end.
        if line.starts_with('.') {
            message.push('.');
        }
        message.push_str(line);
        message.push_str("\r\n");
    }
    message.push_str(".\r\n");
    message
}

/// The other side.
struct Relay(BufReader<TcpStream>);

impl Relay {
    async fn say(&mut self, text: &str) -> io::Result<()> {
        self.0.write_all(text.as_bytes()).await?;
        self.0.flush().await
    }

    /// Hears an answer of one line or more, whose code begins with this.
    async fn hear(&mut self, wanted: &str) -> io::Result<()> {
        for _ in 0..LINES {
            let mut line = Vec::new();
            (&mut self.0).take(LINE).read_until(b'\n', &mut line).await?;
            if !line.ends_with(b"\n") {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let text = String::from_utf8_lossy(&line);
            // All but the last line have a dash behind the code.
            if text.get(3..4) == Some("-") {
                continue;
            }
            if text.starts_with(wanted) {
                return Ok(());
            }
            return Err(io::Error::other(format!("the mail server says {:?}", text.trim_end())));
        }
        Err(io::Error::other("the mail server says too much"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_is_written_in_one_way() {
        let read = |text: &str| text.parse::<Smtp>().map(|smtp| smtp.to_string());
        assert_eq!(read("smtp://localhost").unwrap(), "smtp://localhost:25");
        assert_eq!(
            read("smtp://mail.example.org:587/names@example.org").unwrap(),
            "smtp://mail.example.org:587/names@example.org"
        );
        assert_eq!(read("smtp://[::1]:2525").unwrap(), "smtp://[::1]:2525");
        assert_eq!(read("smtp://[::1]").unwrap(), "smtp://[::1]:25");
        for wrong in [
            "",
            "localhost",
            "smtps://x",
            "smtp://",
            "smtp://x:0",
            "smtp://x:y",
            "smtp://x/y",
            "smtp://a b",
            "smtp://x/a@b\r\nRCPT",
        ] {
            assert_eq!(read(wrong), Err(SmtpError), "{wrong}");
        }
    }

    #[test]
    fn no_line_of_a_text_ends_the_message() {
        let to = "ada@example.org".parse().unwrap();
        let message = message("names@example.org", &to, "a code", "one\n.\n..two");
        assert!(message.ends_with("\r\n\r\none\r\n..\r\n...two\r\n.\r\n"), "{message:?}");
        assert_eq!(message.matches("\r\n.\r\n").count(), 1);
    }
}
