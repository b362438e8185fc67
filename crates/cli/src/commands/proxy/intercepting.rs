//! The flags with which an HTTP proxy intercepts HTTPS, and `whimbrel proxy intercept-ca`, which makes the
//! key.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde_json::json;
use whimbrel_proxy::{InterceptAuthority, InterceptError, InterceptFiles, InterceptHost, Interception};

use crate::failure::Failure;
use crate::options::after;
use crate::output;

/// Flags of the HTTP proxy. Not of `run`: the programs that it starts do not know the key.
#[derive(Args)]
pub(super) struct InterceptFlags {
    /// End https:// of this host here: HOST, *.DOMAIN or '*'; repeatable
    #[arg(long, value_name = "HOST", requires = "intercept_ca")]
    intercept: Vec<InterceptHost>,
    /// With the key of this folder (whimbrel proxy intercept-ca)
    #[arg(long, value_name = "DIR", requires = "intercept")]
    intercept_ca: Option<PathBuf>,
    /// Verify its servers by these CAs (PEM) alone
    #[arg(long, value_name = "FILE", requires = "intercept")]
    upstream_ca: Option<PathBuf>,
}

impl InterceptFlags {
    /// What they ask for; `None` without them.
    pub(super) fn read(&self) -> Result<Option<Interception>> {
        // One of them may stand in the configuration file, where nothing requires the other.
        let folder = match (&self.intercept_ca, self.intercept.is_empty()) {
            (Some(folder), false) => folder,
            (None, true) => return Ok(None),
            (None, false) => return Err(Failure::usage("--intercept wants a key too: --intercept-ca DIR")),
            (Some(_), true) => return Err(Failure::usage("--intercept-ca is for hosts: --intercept HOST")),
        };
        let authority = InterceptAuthority::read(folder).map_err(told)?;
        let read = Interception::new(self.intercept.clone(), authority, self.upstream_ca.as_deref());
        let read = read.map_err(told)?;
        for host in read.left_untouched() {
            // A warning: --quiet does not suppress it.
            let key = folder.display();
            output::note(
                false,
                format!("WARNING: {host} stays as it is: the key of {key} was not made for it"),
            );
        }
        Ok(Some(read))
    }

    /// What is intercepted is for this user alone, who has the key.
    pub(super) fn may_listen(&self, at: SocketAddr) -> Result<()> {
        if self.intercept.is_empty() || at.ip().to_canonical().is_loopback() {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "--intercept is for programs of this user alone, and others reach {at}: listen on 127.0.0.1"
        )))
    }

    /// Says what is not as usual.
    pub(super) fn tell(&self, quiet: bool) {
        if let Some(folder) = &self.intercept_ca {
            let text =
                format!("HTTPS of the hosts of --intercept ends here, with the key of {}", folder.display());
            output::note(quiet, text);
        }
    }
}

/// Make the key with which `proxy http --intercept` answers as other hosts
///
/// One browser profile is to trust its certificate. The key can be used for the named domains and what is
/// below them alone, for a year; whoever has it can pose as these hosts towards that browser.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel proxy intercept-ca --out ca --for example.org
  whimbrel proxy http --listen 127.0.0.1:8119 --intercept example.org --intercept-ca ca"))]
pub(super) struct InterceptCa {
    /// The folder, which is made; the key in it is for this user alone
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A domain that it is for, with all below it; '*': any; repeatable
    #[arg(long = "for", value_name = "DOMAIN", required = true)]
    domains: Vec<String>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn make(args: &InterceptCa) -> Result<()> {
    let made = InterceptAuthority::create(&args.out, &args.domains).map_err(told)?;
    if args.json {
        return output::json(&json!({
            "certificate": made.certificate,
            "key": made.key,
            "name": made.name,
            "ends": made.ends,
            "for": args.domains,
        }));
    }
    output::line(instructions(&args.out, &args.domains, &made))
}

fn instructions(folder: &Path, domains: &[String], made: &InterceptFiles) -> String {
    let InterceptFiles { certificate, key, name, ends, .. } = made;
    let (folder, certificate, key) = (folder.display(), certificate.display(), key.display());
    let what = match domains.iter().any(|domain| domain == "*") {
        true => "every domain".to_owned(),
        false => domains.join(", "),
    };
    format!(
        "\
{name}: for {what}, until {ends}
  certificate  {certificate}
  key          {key}   (keep it: whoever has it can pose as these hosts)

Have one browser profile trust it, and no more than that (certutil: package libnss3-tools):
  Firefox   certutil -A -d sql:PROFILE -n \"{name}\" -t C,, -i '{certificate}'
            PROFILE is the profile folder that about:support names; close Firefox before
  Chromium  certutil -A -d sql:$HOME/.pki/nssdb -n \"{name}\" -t C,, -i '{certificate}'
            all profiles of this user trust it then

Use it:     whimbrel proxy http --intercept HOST --intercept-ca '{folder}'
Remove it:  certutil -D -d sql:PROFILE -n \"{name}\"   (or sql:$HOME/.pki/nssdb)
            rm '{key}' '{certificate}'"
    )
}

/// What is wrong with the key, or what is asked of it, is for the user to set right.
fn told(error: InterceptError) -> anyhow::Error {
    Failure::usage(error.to_string())
}
