//! `whimbrel id`: who this user is, and the names that belong to it.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use serde_json::json;
use whimbrel::{Registered, UserError};
use whimbrel_base::{Delegation, EndpointId, Name, NameKind, UnixTime};
use whimbrel_names::ErrorCode;

use crate::devices::Devices;
use crate::failure::{self, Failure};
use crate::network::{Network, Wish};
use crate::options::{Globals, after, duration, user_name};
use crate::{identity, leases, output, own_group};

use self::appointing::Word;

/// The longest time that a delegation holds.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Refuses to delegate for longer than [`LONGEST`].
pub(crate) fn check_time(duration: Duration) -> Result<()> {
    if duration > LONGEST {
        return Err(Failure::usage("a delegation holds for 365 days at most; give a shorter time"));
    }
    Ok(())
}

/// Print this user's endpoint id; register and hand out names
///
/// The key is made on first use. Its public half is the endpoint id: give it to those who are to
/// let you in.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel id
  whimbrel id register ada@example.org
  whimbrel id delegate laptop.ada@example.org --to ID   (where ada's key is)
  whimbrel id accept whimbrel-delegation:…              (on the laptop)
  whimbrel id devices"))]
pub(crate) struct Id {
    #[command(subcommand)]
    action: Option<Action>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Register a user's name for this key
    ///
    /// The first key that registers a user's name owns it, and all names of that user's devices and
    /// services. `expose` and `receive` do it by themselves when the name is free.
    #[command(after_help = after("Example:\n  whimbrel id register ada@example.org"))]
    Register {
        /// The user's name
        #[arg(value_parser = user_name)]
        user: Name,
        /// A code of `whimbrel names invite`, where the service lets nobody else register
        #[arg(long, value_name = "CODE")]
        invite: Option<String>,
        /// The code that came by mail, where the service wants a proof of the address
        #[arg(long, value_name = "CODE")]
        code: Option<String>,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Let another key use one of this user's names
    ///
    /// Prints a delegation; give it to the other machine for `whimbrel id accept`. One for a device
    /// covers the services on it. It is no secret.
    #[command(after_help = after("Example:\n  whimbrel id delegate laptop.ada@example.org --to ID"))]
    Delegate {
        /// The device's or service's name
        name: Name,
        /// The other machine's endpoint id, as `whimbrel id` prints it there
        #[arg(long, value_name = "ID")]
        to: EndpointId,
        /// How long it holds, 365d at most: a number and s, m, h or d
        ///
        /// Commands that run where the user's key is renew it (`whimbrel id renew`). Give it longer if none
        /// does.
        #[arg(long = "for", value_name = "TIME", default_value = "7d", value_parser = duration)]
        duration: Duration,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Let a device renew what this user's other devices were given
    ///
    /// For a user's key that is kept offline. Leaves an appointment, which is no secret, with the name
    /// service, where the device takes it by itself, and prints it for `whimbrel id accept` on a device that
    /// cannot. The device must be one that may act for the user (`whimbrel devices trust`), and publish a
    /// name of its own, as `whimbrel agent --as NAME` does. It renews services that have keys of their own,
    /// too. It does not renew itself: appoint two.
    #[command(after_help = after("Example:\n  whimbrel id appoint laptop.ada@example.org --to ID"))]
    Appoint {
        /// The device's name
        name: Name,
        /// The device's endpoint id, as `whimbrel id` prints it there
        #[arg(long, value_name = "ID")]
        to: EndpointId,
        /// How long it may renew, 90d at most: a number and s, m, h or d
        #[arg(long = "for", value_name = "TIME", default_value = "30d", value_parser = duration)]
        duration: Duration,
        /// Leave it with nobody: it is carried to the device
        #[arg(long)]
        by_hand: bool,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Take a device's or service's name back from the key that has it
    ///
    /// For a machine that was lost. The name is withdrawn at once, and so are the services on the device;
    /// delegations that were made before no longer count. Those who let the name in with --allow lose its
    /// connections within a second. Run it where the user's key is; if that is on several machines, where the
    /// name was delegated. It is remembered, and said again to a service that lost it.
    #[command(after_help = after("Example:\n  whimbrel id revoke laptop.ada@example.org"))]
    Revoke {
        /// The device's or service's name
        name: Name,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// List the devices that have names of this user, and the names that this key was given
    #[command(after_help = after("Example:\n  whimbrel id devices"))]
    Devices {
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Renew the delegations of this user's devices, once
    ///
    /// Gives the name service a new delegation for each device that was delegated on this machine and has
    /// less than half of its time left; the device takes it from there. `expose`, `receive` and `forward` do
    /// so all the time: this is for a timer where none of them runs. What was revoked is revoked again if the
    /// service lost it. On a device that was appointed (`whimbrel id appoint`) it renews the user's other
    /// devices.
    #[command(after_help = after("Example:\n  whimbrel id renew"))]
    Renew {
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Keep a delegation or an appointment that another machine made for this key
    ///
    /// From then on `expose` and `receive` use a delegation by themselves.
    #[command(after_help = after("Example:\n  whimbrel id accept whimbrel-delegation:…"))]
    Accept {
        /// What `whimbrel id delegate` or `whimbrel id appoint` printed
        delegation: Word,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
}

mod appointing;
pub(crate) mod devices;

pub(crate) async fn run(globals: &Globals, args: Id) -> Result<()> {
    let identity = identity::of_user(globals)?;
    let id = identity.key.id();
    match args.action {
        None if args.json => output::json(&json!({
            "id": id.to_string(), "file": identity.file, "created": identity.is_new,
        })),
        None => {
            output::line(id.to_string())?;
            // The id is said whatever is wrong beside it.
            let warnings = devices::warnings(&identity).unwrap_or_else(|error| vec![failure::line(&error)]);
            for warning in warnings {
                output::note(globals.quiet, format!("warning: {warning}"));
            }
            Ok(())
        }
        Some(Action::Devices { json }) => {
            devices::show(&identity, json)?;
            for warning in devices::warnings(&identity)? {
                output::note(globals.quiet, format!("warning: {warning}"));
            }
            Ok(())
        }
        Some(Action::Renew { json }) => devices::renew(globals, identity, json).await,
        Some(Action::Register { user, invite, code, json }) => {
            let network = Network::start(globals, identity.key, Wish::default()).await?;
            let registered = register(&network, &user, invite.as_deref(), code.as_deref()).await;
            leases::note(&network, &user, globals.quiet);
            network.close().await;
            let new = match registered? {
                Ok(Registered::New) => true,
                Ok(_) => false,
                Err(error @ UserError::Taken(_)) => {
                    let message = format!("{error}; choose another name, or use that key");
                    return Err(Failure::new(Failure::REFUSED, message).into());
                }
                Err(error) => return Err(error).with_context(|| format!("cannot register {user}")),
            };
            if json {
                return output::json(&json!({ "user": user.to_string(), "id": id.to_string(), "new": new }));
            }
            let how = if new { "is registered for" } else { "was registered before for" };
            output::line(format!("{user} {how} {id}"))
        }
        Some(Action::Delegate { name, to, duration, json }) => {
            check_time(duration)?;
            let now = UnixTime::from(SystemTime::now());
            let delegation = Delegation::sign(name, to, now, now.saturating_add(duration), &identity.key)
                .map_err(|error| Failure::usage(error.to_string()))?;
            Devices::beside(&identity.file).delegated(&delegation)?;
            own_group::note_device(&identity.key, globals.quiet, delegation.name(), to);
            if json {
                return output::json(&json!({
                    "delegation": delegation.to_string(), "name": delegation.name().to_string(),
                    "to": to.to_string(), "expires": delegation.expires().as_secs(),
                }));
            }
            output::line(delegation.to_string())
        }
        Some(Action::Revoke { name, json }) => {
            if name.kind() == NameKind::User {
                return Err(Failure::usage(format!(
                    "{name} is a user's name; name the device, as in laptop.{name}"
                )));
            }
            let devices = Devices::beside(&identity.file);
            // Before all else: the other devices hear of it without any service. A service is told whatever
            // comes of it.
            let removed = match name.kind() {
                NameKind::Device => {
                    own_group::remove_revoked(&identity.key, &name, devices.key_of(&name)).map(Some)
                }
                _ => Ok(None),
            };
            let network = Network::start(globals, identity.key, Wish::default()).await?;
            network.resolver()?;
            // Before the service is asked, which may not answer. A registry that is damaged keeps nobody from
            // revoking.
            let noted = devices.revoke(&name);
            let revoked = network.endpoint.revoke(&name).await;
            network.close().await;
            let is_known = matches!(noted, Ok(true));
            let revoked = revoked.with_context(|| match is_known {
                true => format!(
                    "cannot revoke {name} yet; it is renewed no more, and `whimbrel id renew` tries again"
                ),
                false => format!("cannot revoke {name}"),
            })?;
            let noted = noted.and_then(|is_known| if is_known { Ok(()) } else { devices.remember(&name) });
            noted.with_context(|| format!("{name} is revoked, but this could not be noted here"))?;
            if !is_known {
                output::note(
                    globals.quiet,
                    format!(
                        "{name} was not delegated on this machine; run the same where it was, if another machine \
                         has your key: it must not renew it"
                    ),
                );
            }
            let revoked: Vec<String> = revoked.iter().map(ToString::to_string).collect();
            let count = removed.as_ref().ok().copied().flatten();
            if json {
                output::json(&json!({ "revoked": revoked, "removed": count }))?;
            } else {
                output::line(format!("withdrawn: {}", revoked.join(", ")))?;
            }
            if removed? == Some(0) {
                let text = format!(
                    "{name} is not in the list of your devices here, so that nothing was removed from it; \
                     `whimbrel devices list` shows them"
                );
                output::note(globals.quiet, text);
            }
            Ok(())
        }
        Some(Action::Appoint { name, to, duration, by_hand, json }) => {
            let device = appointing::Appointee { name, to };
            let way = appointing::Way { by_hand, json };
            appointing::appoint(globals, &identity, device, duration, way).await
        }
        Some(Action::Accept { delegation, json }) => appointing::accept(&identity, &delegation, json),
    }
}

/// Registers a user's name. Where the service wants a proof of the address first, has it send a code.
///
/// # Errors
/// When the name service cannot be asked; after a code was sent, what to do with it.
async fn register(
    network: &Network,
    user: &Name,
    invite: Option<&str>,
    code: Option<&str>,
) -> Result<Result<Registered, UserError>> {
    let resolver = network.resolver()?;
    if let Some(code) = code {
        resolver.prove_mail(user, code).await.with_context(|| format!("cannot register {user}"))?;
    }
    let registered = match invite {
        Some(invite) => network.endpoint.register_user_invited(user, invite).await,
        None => network.endpoint.register_user(user).await,
    };
    match registered {
        Err(UserError::Names(error)) if error.code() == Some(ErrorCode::NotProved) => {
            resolver.send_code(user).await.with_context(|| format!("cannot send a code to {user}"))?;
            let text =
                format!("a code was sent to {user}; run `whimbrel id register {user} --code CODE` with it");
            Err(Failure::new(Failure::REFUSED, text).into())
        }
        registered => Ok(registered),
    }
}
