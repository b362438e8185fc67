//! `whimbrel invite` and `whimbrel join`: two machines learn each other's keys by three words.

mod nearby;

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::json;
use whimbrel::UserError;
use whimbrel_base::{EndpointId, Name, NameKind};
use whimbrel_devices::Op;
use whimbrel_names::{Code, Origin};

use crate::commands::id::check_time;
use crate::failure::Failure;
use crate::meeting::{self, Acquaintance, Message, Purpose};
use crate::network::{Network, Wish};
use crate::options::{Globals, after, duration, user_name};
use crate::shutdown::Shutdown;
use crate::{identity, output, own_group, places, qr};

/// Print a code by which another machine or user gets to know this one
///
/// Tell the three words to somebody you trust, or type them at your other machine: `whimbrel join CODE`. The
/// code works once, for ten minutes. Both sides then know each other's keys, and each other's user names if
/// both have one. With --device, the other machine gets one of your names. With --lan on both, machines in
/// one network need no name service.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel invite --as ada@example.org
  whimbrel invite --device laptop.ada@example.org    (the other machine may use this name then)"))]
pub(crate) struct Invite {
    /// Your user name, for the other side to remember
    #[arg(long = "as", id = "as", value_name = "USER", value_parser = user_name)]
    user: Option<Name>,
    /// Give the other machine this device's or service's name
    #[arg(long, value_name = "NAME", conflicts_with = "as")]
    device: Option<Name>,
    /// How long the other machine may use the name unless it is renewed: a number and s, m, h or d
    #[arg(long = "for", value_name = "TIME", default_value = "7d", value_parser = duration, requires = "device")]
    duration: Duration,
    /// Show the code as a QR code too
    #[arg(long, conflicts_with = "json")]
    qr: bool,
    /// Print JSON objects: one with the code, one with the result
    #[arg(long)]
    json: bool,
}

/// Use a code of `whimbrel invite`
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel join harvest-otter-violin
  whimbrel join harvest-otter-violin --as bob@example.org"))]
pub(crate) struct Join {
    /// The three words
    #[arg(required = true, num_args = 1..=3, value_name = "CODE")]
    code: Vec<String>,
    /// Your user name, for the other side to remember; this machine does not become its device then
    #[arg(long = "as", id = "as", value_name = "USER", value_parser = user_name)]
    user: Option<Name>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Reads the words of a code, however they were separated.
pub(crate) fn code(words: &[String]) -> Result<Code> {
    words.join(" ").parse().map_err(|error: whimbrel_names::CodeError| Failure::usage(error.to_string()))
}

pub(crate) async fn run(globals: &Globals, args: Invite) -> Result<()> {
    if let Some(device) = args.device.as_ref().filter(|device| device.kind() == NameKind::User) {
        return Err(Failure::usage(format!(
            "{device} is a user's name; name a device, as in laptop.{device}"
        )));
    }
    check_time(args.duration)?;
    with_network(globals, async |network| invite(globals, &args, network).await).await
}

pub(crate) async fn run_join(globals: &Globals, args: Join) -> Result<()> {
    let code = code(&args.code)?;
    with_network(globals, async |network| join(globals, &args, &code, network).await).await
}

/// Runs until done or interrupted, and closes the endpoint in order.
pub(super) async fn with_network(
    globals: &Globals,
    work: impl AsyncFnOnce(&Network) -> Result<()>,
) -> Result<()> {
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let network = Network::of_user(globals, Wish::default()).await?;
    let result = tokio::select! {
        result = work(&network) => result,
        request = shutdown.requested() => Err(request.error()),
    };
    network.close().await;
    result
}

async fn invite(globals: &Globals, args: &Invite, network: &Network) -> Result<()> {
    let user = args.device.as_ref().map(Name::user).or_else(|| args.user.clone());
    if let Some(user) = &user {
        claim(network, user).await?;
    }
    let purpose = if args.device.is_some() { Purpose::Device } else { Purpose::Users };
    let mut other = Acquaintance::wait(network, |code| {
        if args.json {
            return output::json(&json!({ "code": code.to_string() }));
        }
        meeting::show(globals.quiet, "join", code)?;
        if args.qr {
            qr::print(globals.quiet, &code.to_string())?;
        }
        Ok(())
    })
    .await?;
    let made = introduce_to(globals, args, network, &mut other, (purpose, user)).await;
    let (met, id) = end(other, made).await?;
    report(args.json, id, met.as_ref(), args.device.as_ref().map(|device| (device, "the other machine")))
}

/// What an inviter says and hears, until both are done.
async fn introduce_to(
    globals: &Globals,
    args: &Invite,
    network: &Network,
    other: &mut Acquaintance,
    (purpose, user): (Purpose, Option<Name>),
) -> Result<Option<Name>> {
    other.say(&Message::Greeting { purpose, user, ticket: None }).await?;
    let theirs = other.greeting(&[Purpose::Users, Purpose::Device]).await?;
    let met = remember(globals, network, other, theirs.user).await?;
    note_friend(globals, network, other.id(), met.as_ref());
    if let Some(device) = &args.device {
        let delegation = network.endpoint.delegate(device, other.id(), args.duration)?;
        if let Some(devices) = &network.devices {
            devices.delegated(&delegation)?;
        }
        own_group::note_device(&network.key, globals.quiet, device, other.id());
        other.say(&Message::Delegation(delegation.to_string())).await?;
    }
    other.say(&Message::Done).await?;
    expect_done(other).await?;
    Ok(met)
}

/// Ends it once the other side can have heard all. It is told where nothing comes of it, or it would only see
/// that the meeting has ended; what failed here, such as a file, is for who sits here. Returns the other's id
/// too.
async fn end<T>(mut other: Acquaintance, made: Result<T>) -> Result<(T, EndpointId)> {
    if made.is_err() {
        other.refuse("something failed there, and is said there").await;
    }
    let id = other.id();
    other.end().await;
    made.map(|made| (made, id))
}

async fn join(globals: &Globals, args: &Join, code: &Code, network: &Network) -> Result<()> {
    if let Some(user) = &args.user {
        claim(network, user).await?;
    }
    let mut other = Acquaintance::join(network, code).await?;
    let made = introduced_by(globals, args, network, &mut other).await;
    let ((met, given), id) = end(other, made).await?;
    report(args.json, id, met.as_ref(), given.as_ref().map(|name| (name, "this machine")))
}

/// What a joiner hears and says, until both are done. Returns the other user's name, and the name that this
/// machine was given.
async fn introduced_by(
    globals: &Globals,
    args: &Join,
    network: &Network,
    other: &mut Acquaintance,
) -> Result<(Option<Name>, Option<Name>)> {
    let theirs = other.greeting(&[Purpose::Users, Purpose::Device]).await?;
    if let Some(user) = args.user.as_ref().filter(|_| theirs.purpose == Purpose::Device) {
        let why = format!("{user} does not become a device of another user");
        other.refuse(&why).await;
        let message = format!(
            "the other side wants to make this machine one of its devices; {why}: join without --as if it is \
             to be one, or have it run `whimbrel invite` without --device"
        );
        return Err(Failure::new(Failure::REFUSED, message).into());
    }
    let user = args.user.clone();
    other.say(&Message::Greeting { purpose: theirs.purpose, user, ticket: None }).await?;
    let met = remember(globals, network, other, theirs.user).await?;
    if theirs.purpose == Purpose::Users {
        note_friend(globals, network, other.id(), met.as_ref());
    }
    let mut given = None;
    if theirs.purpose == Purpose::Device {
        let Message::Delegation(text) = other.hear().await? else {
            bail!("the other side gives no name; update the older program");
        };
        let delegation = meeting::delegation(&text, other.id(), network.id())?;
        identity::store_delegation(&places::config()?, &delegation)?;
        tell_of_own_group(globals, network, delegation.issuer());
        given = Some(delegation.name().clone());
    }
    expect_done(other).await?;
    other.say(&Message::Done).await?;
    Ok((met, given))
}

/// Makes sure that a user name is this key's before it is told to others, as far as there is somebody to ask.
pub(super) async fn claim(network: &Network, user: &Name) -> Result<()> {
    if nearby::is_all(network) {
        return nearby::claim(network, user);
    }
    match network.endpoint.register_user(user).await {
        Ok(_) => Ok(()),
        Err(error @ UserError::Taken(_)) => {
            Err(Failure::new(Failure::REFUSED, format!("{error}; run this where that key is")).into())
        }
        Err(error) => Err(error).with_context(|| format!("cannot register {user}")),
    }
}

/// Pins the other side's user name to its key, if the name service gives it to the same key, or there is no
/// service to ask.
async fn remember(
    globals: &Globals,
    network: &Network,
    other: &mut Acquaintance,
    user: Option<Name>,
) -> Result<Option<Name>> {
    let Some(user) = user else { return Ok(None) };
    let checked = check(globals, network, other, &user).await;
    if let Err(error) = &checked {
        other.refuse(&crate::failure::line(error)).await;
    }
    checked?;
    Ok(Some(user))
}

/// Notes that two users met. One who gives a device a name is no friend of it.
fn note_friend(globals: &Globals, network: &Network, friend: EndpointId, name: Option<&Name>) {
    if let Some(name) = name {
        let op = Op::AddFriend { friend, name: Some(name.clone()) };
        own_group::note(&network.key, globals.quiet, vec![op]);
    }
}

/// Says so where this key goes on with devices and friends of its own, although another user gave it a name.
pub(super) fn tell_of_own_group(globals: &Globals, network: &Network, issuer: EndpointId) {
    let user = own_group::OwnGroup::of(network.key.clone()).and_then(|group| group.user());
    if user.is_ok_and(|user| user != issuer) {
        let text = "warning: this machine has devices and friends of its own, and keeps them: it may use the \
                    name, but has no part in the other user's list. To have it, move the folder `groups` of \
                    its data directory aside";
        output::note(globals.quiet, text);
    }
}

async fn check(globals: &Globals, network: &Network, other: &Acquaintance, user: &Name) -> Result<()> {
    if user.kind() != NameKind::User {
        let message = format!("the other side says that it is {user}, which is no user's name");
        return Err(Failure::new(Failure::UNTRUSTED, message).into());
    }
    if nearby::is_all(network) {
        return nearby::check(network, other.id(), user, globals.quiet);
    }
    let record = network.resolver()?.lookup_record(user).await;
    let record = record.with_context(|| format!("cannot check that the other side is {user}"))?;
    if record.authority() != other.id() {
        let message = format!("the other side says that it is {user}, which belongs to another key");
        return Err(Failure::new(Failure::UNTRUSTED, message).into());
    }
    network.known.confirm(user, other.id(), Origin::Code, SystemTime::now().into())?;
    Ok(())
}

async fn expect_done(other: &mut Acquaintance) -> Result<()> {
    match other.hear().await? {
        Message::Done => Ok(()),
        _ => bail!("the other side goes on with something else; update the older program"),
    }
}

fn report(as_json: bool, id: EndpointId, met: Option<&Name>, given: Option<(&Name, &str)>) -> Result<()> {
    if as_json {
        let given = given.map(|(name, _)| name.to_string());
        return output::json(&json!({ "id": id.to_string(), "user": met.map(Name::as_str), "given": given }));
    }
    match met {
        Some(user) => output::line(format!("{user} is {id}"))?,
        None => output::line(format!("the other machine is {id}"))?,
    }
    match given {
        Some((name, who)) => output::line(format!("{who} may use {name} now")),
        None => Ok(()),
    }
}
