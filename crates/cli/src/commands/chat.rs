//! `whimbrel chat`: people talk in their terminals.

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use whimbrel_base::{EndpointId, Name, Ticket};
use whimbrel_transport::{CloseCode, Config, ConnectError, Connection, Timeouts};

use crate::access::{Access, AllowFlags, Before, Guests};
use crate::chat::{Conversation, End, Gathering, Lines, News, Page, Show, Typed};
use crate::commands::invite;
use crate::failure::Failure;
use crate::meeting::{self, Acquaintance, Message, Purpose};
use crate::moving::{Sessions, Talk};
use crate::multipath::PathFlags;
use crate::network::{Network, Peer, Wish, connect};
use crate::options::{Globals, after};
use crate::serving::Start;
use crate::status::{About, Reporter};
use crate::{output, serving};

/// Words of a code.
const CODE_WORDS: usize = 3;
/// A peer that is silent for so long is away.
const AWAY: Duration = Duration::from_secs(2);
/// How often it is shown for how long.
const TICK: Duration = Duration::from_millis(999);
/// How long somebody whose code was used may take to come.
const GUEST_LIMIT: Duration = Duration::from_secs(60);
/// Addresses of a ticket that is told in a meeting.
const TICKET_ADDRESSES: usize = 8;
/// Somebody else is in the conversation.
const BUSY: CloseCode = CloseCode::application(3);

/// Chat with somebody, from terminal to terminal
///
/// One side waits, with --as NAME or a ticket for those of --allow, or with --code; the other calls. A line
/// is marked once the other side has it. Both may move, also to another device (`whimbrel handoff`); one out
/// of reach is away, and gets what was said when back. A group is called by its name: each member gets what
/// is said, and answers you alone. Ctrl-D ends it. It needs no terminal.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel chat --code                       (prints a code; there: whimbrel chat CODE)
  whimbrel chat --as chat.laptop.bob@example.org --allow ada@example.org
  whimbrel chat chat.laptop.bob@example.org
  echo hello | whimbrel chat chat.laptop.bob@example.org --json"))]
pub(crate) struct Chat {
    /// Whom to call: a name, a ticket, or the words of a code
    #[arg(num_args = 0..=3, value_name = "NAME|TICKET|CODE", conflicts_with_all = ["as", "allow", "allow_from", "secret", "code"])]
    whom: Vec<String>,
    /// Wait under this name; else a ticket is printed
    #[arg(long = "as", id = "as", value_name = "NAME")]
    name: Option<Name>,
    #[command(flatten)]
    allow: AllowFlags,
    /// Wait for who uses the code that is printed
    #[arg(long, conflicts_with_all = ["as", "allow", "allow_from", "secret"])]
    code: bool,
    /// What those call you that do not know your name [default: $USER]
    #[arg(long, value_name = "NICK")]
    nick: Option<String>,
    /// End when the other side has left
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    paths: PathFlags,
    /// Print JSON for what happens, and no page
    #[arg(long)]
    json: bool,
}

/// How the two come together.
enum Way {
    Call(Peer),
    JoinByCode(whimbrel_names::Code),
    OpenByCode,
    Wait,
}

impl Way {
    fn of(args: &Chat) -> Result<Self> {
        match &args.whom[..] {
            [] if args.code => Ok(Self::OpenByCode),
            [] => {
                args.allow.check(args.name.is_none(), args.name.as_ref())?;
                Ok(Self::Wait)
            }
            [one] if one.contains(['@', '=', ':', '+']) || one.parse::<EndpointId>().is_ok() => {
                one.parse().map(Self::Call).map_err(Failure::usage)
            }
            // Three words with dashes are a code, and else it is what the user calls somebody.
            [one] if !one.contains(char::is_whitespace) && one.split('-').count() != CODE_WORDS => {
                one.parse().map(Self::Call).map_err(Failure::usage)
            }
            words => Ok(Self::JoinByCode(invite::code(words)?)),
        }
    }
}

pub(crate) async fn run(globals: &Globals, args: Chat) -> Result<()> {
    let way = Way::of(&args)?;
    let config = Config { timeouts: presence(), ..Config::default() };
    let wish = Wish { config: args.paths.apply(config), ..Wish::default() };
    let serve = async |network: &Network| match &way {
        Way::Call(peer) => call(globals, &args, network, peer).await,
        Way::JoinByCode(code) => join_by_code(globals, &args, network, code).await,
        Way::OpenByCode => open_by_code(globals, &args, network).await,
        Way::Wait => wait(globals, &args, network).await,
    };
    serving::until_stopped(globals, wish, args.name.as_ref(), serve).await
}

/// Who is silent for a moment is asked, and soon called away.
pub(crate) fn presence() -> Timeouts {
    Timeouts {
        heartbeat: Duration::from_secs(1),
        unreachable_after: AWAY,
        unreachable_every: TICK,
        ..Timeouts::default()
    }
}

fn nick(args: &Chat) -> Option<String> {
    args.nick.clone().or_else(|| std::env::var("USER").ok())
}

/// Where the conversation is shown.
enum Shown {
    Page(Page),
    Lines(Lines),
}

impl Shown {
    fn open(json: bool) -> Result<Self> {
        let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        if terminal && !json {
            return Ok(Self::Page(Page::open()?));
        }
        Ok(Self::Lines(Lines::new(json)))
    }
}

impl Show for Shown {
    fn show(&mut self, news: &News) -> Result<()> {
        match self {
            Self::Page(page) => page.show(news),
            Self::Lines(lines) => lines.show(news),
        }
    }

    async fn typed(&mut self) -> Typed {
        match self {
            Self::Page(page) => page.typed().await,
            Self::Lines(lines) => lines.typed().await,
        }
    }
}

/// Goes on with a conversation that was at another device.
///
/// # Errors
/// When it is not there, or something cannot be shown.
pub(crate) async fn go_on(
    globals: &Globals,
    network: &Network,
    (connection, talk): (Connection, Talk),
    json: bool,
) -> Result<()> {
    let conversation = Conversation::going_on(connection, talk)?;
    let sessions = Sessions::default();
    let _reporter = Reporter::start(network, About::new("chat", None).moving(&sessions), globals.quiet)?;
    conversation.run(&mut Shown::open(json)?, &sessions).await.map(drop)
}

/// Calls somebody who waits.
async fn call(globals: &Globals, args: &Chat, network: &Network, peer: &Peer) -> Result<()> {
    let sessions = Sessions::default();
    let about = About::new("chat", Some(peer.to_string())).moving(&sessions);
    let connected = connect(network, peer).await;
    if let Err(error) = &connected
        && let Some(ConnectError::Group(name)) = error.downcast_ref()
    {
        let _reporter = Reporter::start(network, about, globals.quiet)?;
        let gathering = Gathering::begin(&network.endpoint, name, nick(args)).await?;
        return gathering.run(&mut Shown::open(args.json)?).await;
    }
    let connection = connected?;
    let _reporter = Reporter::start(network, about, globals.quiet)?;
    let known_as = peer.name().map(ToString::to_string);
    let conversation = Conversation::begin(connection, known_as, nick(args)).await?;
    conversation.run(&mut Shown::open(args.json)?, &sessions).await.map(drop)
}

/// Makes a code, and calls whoever uses it.
async fn open_by_code(globals: &Globals, args: &Chat, network: &Network) -> Result<()> {
    let mut other = Acquaintance::wait(network, |code| {
        if args.json {
            return output::json(&json!({ "code": code.to_string() }));
        }
        meeting::show(globals.quiet, "chat", code)
    })
    .await?;
    other.say(&Message::Greeting { purpose: Purpose::Chat, user: None, ticket: None }).await?;
    let greeting = other.greeting(&[Purpose::Chat]).await?;
    let ticket = greeting.ticket.filter(|ticket| ticket.id() == other.id());
    let ticket = ticket.context("the other side does not say where it is; update the older program")?;
    other.end().await;
    call(globals, args, network, &Peer::Ticket(ticket)).await
}

/// Uses a code that somebody made, who calls then.
async fn join_by_code(
    globals: &Globals,
    args: &Chat,
    network: &Network,
    code: &whimbrel_names::Code,
) -> Result<()> {
    let mut other = Acquaintance::join(network, code).await?;
    let access = Access::only(other.id(), network, globals.quiet);
    let mut guests = serving::listen(globals, network, None, true, access, Start::Anew).await?;
    other.greeting(&[Purpose::Chat]).await?;
    let ticket = network.ticket(None, None);
    let ticket = Ticket::new(ticket.id(), ticket.addrs().iter().copied().take(TICKET_ADDRESSES), None);
    other.say(&Message::Greeting { purpose: Purpose::Chat, user: None, ticket: Some(ticket) }).await?;
    other.end().await;
    let sessions = Sessions::default();
    let _reporter = Reporter::start(network, About::new("chat", None).moving(&sessions), globals.quiet)?;
    let guest = tokio::time::timeout(GUEST_LIMIT, guests.accept()).await.ok().flatten();
    let guest = guest.context("the other side did not come; start again on both sides")?;
    let conversation = Conversation::begin(guest, None, nick(args)).await?;
    conversation.run(&mut Shown::open(args.json)?, &sessions).await.map(drop)
}

/// Waits for those who are let in, and talks with one at a time.
async fn wait(globals: &Globals, args: &Chat, network: &Network) -> Result<()> {
    let access =
        Access::open(&args.allow, args.name.as_ref(), network, globals.quiet, Before::default()).await?;
    let by_ticket = args.name.is_none();
    let mut guests =
        serving::listen(globals, network, args.name.as_ref(), by_ticket, access.clone(), Start::Anew).await?;
    let sessions = Sessions::default();
    let about = About::new("chat", args.name.as_ref().map(ToString::to_string)).moving(&sessions);
    let _reporter = Reporter::start(network, about, globals.quiet)?;
    let ticket = by_ticket.then(|| network.ticket(None, access.secret()).to_string());
    if args.json {
        output::json(&json!({
            "id": network.id().to_string(), "name": args.name.as_ref().map(ToString::to_string), "ticket": ticket,
        }))?;
    } else if let Some(ticket) = &ticket {
        output::note(globals.quiet, "waiting for somebody; there: `whimbrel chat` and this ticket:");
        output::line(ticket)?;
    } else {
        output::note(globals.quiet, "waiting for somebody");
    }
    // A page hides what was printed before it: it begins when somebody is there.
    let mut next = Some(guests.accept().await.context("the endpoint is closed")?);
    let mut shown = Shown::open(args.json)?;
    loop {
        let guest = match next.take() {
            Some(guest) => guest,
            None => tokio::select! {
                guest = guests.accept() => guest.context("the endpoint is closed")?,
                typed = shown.typed() => match typed {
                    Typed::End => return Ok(()),
                    _ => {
                        shown.show(&News::Note("nobody is here; this was not sent".to_owned()))?;
                        continue;
                    }
                },
            },
        };
        match talk(guest, args, &mut guests, (&mut shown, &sessions)).await? {
            Talked::End(End::Here | End::Elsewhere) => return Ok(()),
            Talked::End(End::There) if args.once => return Ok(()),
            Talked::End(End::There) => {}
            Talked::Again(connection) => next = Some(connection),
        }
    }
}

/// How a talk with a guest came out.
enum Talked {
    End(End),
    /// The same guest has come again: its program was started anew.
    Again(Connection),
}

/// Talks with a guest. Others are told that somebody is here.
async fn talk(
    guest: Connection,
    args: &Chat,
    guests: &mut Guests,
    (shown, sessions): (&mut Shown, &Sessions),
) -> Result<Talked> {
    let conversation = match Conversation::begin(guest.clone(), None, nick(args)).await {
        Ok(conversation) => conversation,
        Err(error) => {
            shown.show(&News::Note(crate::failure::line(&error)))?;
            return Ok(Talked::End(End::There));
        }
    };
    let running = conversation.run(shown, sessions);
    tokio::pin!(running);
    loop {
        tokio::select! {
            end = &mut running => return end.map(Talked::End),
            other = guests.accept() => match other {
                Some(other) if other.peer_id() == guest.peer_id() => {
                    guest.abort(CloseCode::NONE, "");
                    return Ok(Talked::Again(other));
                }
                Some(other) => other.abort(BUSY, "somebody else is in this conversation"),
                None => return Ok(Talked::End(End::There)),
            },
        }
    }
}
