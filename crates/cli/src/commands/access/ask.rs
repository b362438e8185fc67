//! `whimbrel access ask`: one decision.

use anyhow::Result;
use clap::{Args, ValueEnum};
use whimbrel_access::Granularity;
use whimbrel_base::Name;
use whimbrel_multiaccess::protocol::{self, ByWhimbrel, Protocol, Verdict, Way};
use whimbrel_multiaccess::{Client, ClientError};

use crate::failure::Failure;
use crate::intent;
use crate::options::{after, host_and_port};
use crate::output;
use crate::plain::plain;

/// What is decided about.
#[derive(Clone, Copy, ValueEnum)]
enum About {
    Message,
    Stream,
    Connection,
}

/// Ask the manager which way something would go, and why
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel access ask --intent size-received=300KB --to example.org:443
  whimbrel access ask --to ssh.laptop.user@example.org
  whimbrel access ask --intent category=query --intent cost=no-expense --json"))]
pub(super) struct Ask {
    /// What is known of the traffic: KEY=VALUE, as in size-received=300KB or category=bulk; repeatable
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = intent::pair)]
    intent: Vec<String>,
    /// Where it goes: a host, looked up by each interface for itself, or a name of Whimbrel
    #[arg(long, value_name = "HOST:PORT|NAME", value_parser = destination)]
    to: Option<String>,
    /// What is decided about
    #[arg(long, value_enum, value_name = "WHAT", default_value = "message")]
    about: About,
    /// Print the answer as a JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Ask) -> Result<()> {
    let intents = intent::all(&args.intent).map_err(Failure::usage)?;
    let granularity = match args.about {
        About::Message => Granularity::Message,
        About::Stream => Granularity::Stream,
        About::Connection => Granularity::Connection,
    };
    let ask = protocol::Ask { intents, granularity, to: args.to, ..protocol::Ask::default() };
    let verdict = Client::default().ask(ask).await.map_err(failure)?;
    if args.json {
        output::json(&verdict)?;
    } else {
        let width = output::width();
        lines(&verdict).iter().try_for_each(|line| output::line(output::fit(line, width, 4)))?;
    }
    match verdict.ways.is_empty() && verdict.whimbrel.is_none() {
        true => Err(Failure::new(Failure::UNREACHABLE, verdict.problems.join("; ")).into()),
        false => Ok(()),
    }
}

/// A host and a port, or a name of Whimbrel, which needs no port.
fn destination(text: &str) -> Result<String, String> {
    if !text.contains('@') {
        return host_and_port(text);
    }
    let name = match text.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => text,
    };
    name.parse::<Name>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// With the exit code that the program has for it.
pub(super) fn failure(error: ClientError) -> anyhow::Error {
    let code = match &error {
        ClientError::Stranger { .. } => Failure::UNTRUSTED,
        ClientError::Refused(_) => Failure::NOT_FOUND,
        _ => Failure::UNREACHABLE,
    };
    Failure::new(code, error.to_string()).into()
}

/// What a manager, its clients and programs that decide may say on a line.
pub(super) const LONGEST: usize = 300;

/// A decision for people.
fn lines(verdict: &Verdict) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(by) = &verdict.whimbrel {
        lines.push(describe_whimbrel(by));
        lines.push(format!("    {}", plain(&by.why, LONGEST)));
        for (n, way) in by.ways.iter().enumerate() {
            let place = if n > 0 { "others stand by: " } else { "it uses " };
            lines.push(format!("    {place}{}: {}", network(way), plain(&way.why, LONGEST)));
        }
    }
    for (n, way) in verdict.ways.iter().enumerate() {
        let else_ = if n > 0 || verdict.whimbrel.is_some() { "else " } else { "" };
        lines.push(format!("{else_}{}", describe(way)));
        lines.push(format!("    {}", plain(&way.why, LONGEST)));
    }
    if !verdict.parts.is_empty() {
        let parts = verdict
            .parts
            .iter()
            .map(|part| format!("{} over {}", output::bytes(part.bytes), part.way.interface));
        lines.push(format!("in parts: {}", parts.collect::<Vec<_>>().join(", then ")));
    }
    if let Some(warm) = &verdict.warm {
        lines.push(format!("besides, opened for what comes next: {}", describe(warm)));
    }
    lines.push(format!("decided by {}", verdict.policy));
    // Where there is no way, the error says why.
    if !verdict.ways.is_empty() || verdict.whimbrel.is_some() {
        lines.extend(verdict.problems.iter().map(|problem| plain(problem, LONGEST)));
    }
    lines
}

/// A connection of Whimbrel in a line.
pub(super) fn describe_whimbrel(by: &ByWhimbrel) -> String {
    let leads = if by.gateway { "through" } else { "to" };
    plain(&format!("by whimbrel {leads} {}", by.endpoint), LONGEST)
}

/// A network of a connection of Whimbrel.
fn network(way: &Way) -> String {
    let mut line = way.interface.clone();
    if let Some(source) = way.source {
        line += &format!(" from {source}");
    }
    if !way.also.is_empty() {
        line += &format!(" and {} with it", way.also.join(", "));
    }
    plain(&line, LONGEST)
}

/// A way in a line.
pub(super) fn describe(way: &Way) -> String {
    let mut line = way.interface.clone();
    if let Some(source) = way.source {
        line += &format!(" from {source}");
    }
    if let Some(destination) = way.destination {
        line += &format!(" to {destination}");
    }
    line += match (way.reuse, way.protocol) {
        (Some(_), _) => " over an open connection",
        (None, Protocol::Tcp) => " by tcp",
        (None, Protocol::Mptcp) => " by mptcp",
        (None, Protocol::Whimbrel) => " by whimbrel",
    };
    if !way.also.is_empty() {
        line += &format!(" and over {}", way.also.join(", "));
    }
    if let Some(millis) = way.completes_ms {
        line += &format!(", complete in {millis:.0} ms");
    }
    plain(&line, LONGEST)
}
