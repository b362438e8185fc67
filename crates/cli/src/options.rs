//! Flags that all commands have, and what commands read and say in the same way.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use whimbrel_base::{Name, NameError, NameKind};
use whimbrel_names::{Pin, ServiceAddress};
use whimbrel_transport::Carriers;

use crate::arguments::Source;
use crate::dns::WhichDomain;

/// Flags of every command.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Globals {
    /// Configuration file; may hold every flag [default: ~/.config/whimbrel/config.toml]
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL)]
    pub(crate) config: Option<PathBuf>,
    /// File with this user's key [default: ~/.config/whimbrel/identity, made on first use]
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL)]
    pub(crate) identity: Option<PathBuf>,
    /// Name service: its ticket, or ID@HOST:PORT
    #[arg(long, global = true, value_name = "SERVICE", help_heading = GLOBAL)]
    pub(crate) names: Option<ServiceAddress>,
    /// Use names of this domain (or `any`) only from the service that its owner names in DNS; repeatable
    #[arg(
        long,
        global = true,
        value_name = "DOMAIN",
        hide_short_help = true,
        help_heading = GLOBAL
    )]
    pub(crate) prove_domain: Vec<WhichDomain>,
    /// Ask this DNS server for --prove-domain [default: the system's]
    #[arg(long, global = true, value_name = "IP:PORT", hide_short_help = true, help_heading = GLOBAL)]
    pub(crate) dns: Option<SocketAddr>,
    /// The key that a name stands for, which the name service cannot change; repeatable
    #[arg(
        long,
        global = true,
        value_name = "NAME=ID",
        hide_short_help = true,
        help_heading = GLOBAL
    )]
    pub(crate) pin: Vec<Pin>,
    /// Find peers in this network by mDNS, and be found: it hears this id, and names shown to `any`
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) lan: bool,
    /// Port for TCP and UDP; any free one by default
    #[arg(long, global = true, value_name = "PORT", help_heading = GLOBAL)]
    pub(crate) port: Option<u16>,
    /// Dial with auto, tcp, quic or mptcp; auto is TCP and QUIC, whichever gets through first
    #[arg(long, global = true, value_name = "CARRIER", help_heading = GLOBAL)]
    pub(crate) carrier: Option<Carriers>,
    /// File with limits of what is sent, read again when it changes; see `whimbrel limit`
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL)]
    pub(crate) limits: Option<PathBuf>,
    /// Say more: -v what happens to connections, -vv everything. RUST_LOG has the last word
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = GLOBAL)]
    pub(crate) verbose: u8,
    /// How log lines look [default: text, or what WHIMBREL_LOG_FORMAT says]
    #[arg(long, global = true, value_enum, value_name = "FORMAT", help_heading = GLOBAL)]
    pub(crate) log_format: Option<LogFormat>,
    /// Print errors and results only
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = GLOBAL)]
    pub(crate) quiet: bool,
    /// Use exactly these local addresses instead of the system's; repeatable. For demos and tests
    #[arg(long, global = true, value_name = "IP", hide_short_help = true, help_heading = GLOBAL)]
    pub(crate) address: Vec<IpAddr>,
    /// End when standard input ends: for programs that start this one and may die
    #[arg(long, global = true, hide = true)]
    pub(crate) until_eof: bool,
    /// Where all flags come from, to read them again.
    #[arg(skip)]
    pub(crate) source: Source,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// An object a line.
    Json,
}

/// The heading of the flags that every command has.
pub(crate) const GLOBAL: &str = "Global options";
/// The heading of those that say how several networks are used.
pub(crate) const NETWORKS: &str = "Several networks";
/// The heading of those that say how much a service does for each of its users.
pub(crate) const LIMITS: &str = "Limits";

/// The text under a command's options: its example, and where the rest is.
pub(crate) fn after(example: &str) -> String {
    format!("{example}\n\nGlobal options: whimbrel help options. Exit codes: whimbrel help exit-codes")
}

/// `HOST:PORT`, where the host may be a name.
pub(crate) fn host_and_port(text: &str) -> Result<String, String> {
    let fits = text
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0));
    if fits { Ok(text.to_owned()) } else { Err("write it as HOST:PORT, as in 127.0.0.1:22".to_owned()) }
}

/// A user's name, and no device's or service's.
pub(crate) fn user_name(text: &str) -> Result<Name, String> {
    let name: Name = text.parse().map_err(|error: NameError| error.to_string())?;
    if name.kind() == NameKind::User {
        return Ok(name);
    }
    Err(format!("this is a {}'s name; that of its user is {}", name.kind(), name.user()))
}

/// A number and a unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "write it as a number and s, m, h or d, as in 365d".to_owned();
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).filter(|seconds| *seconds > 0).map(Duration::from_secs).ok_or_else(wrong)
}

/// A number of bytes, or of KiB, MiB, GiB or TiB.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || "write it as a number and K, M, G or T, as in 500M".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("500M"), Ok(500 << 20));
        assert_eq!(size("16GiB"), Ok(16 << 30));
        assert_eq!(size("12"), Ok(12));
        for wrong in ["", "M", "-1M", "1.5G", "1E", "99999999999T", "1 M", "é"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration("365d"), Ok(Duration::from_secs(365 * 86_400)));
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        for wrong in ["", "d", "0d", "-1d", "1w", "1", "99999999999999999999d", "1é"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
