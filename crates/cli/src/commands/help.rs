//! `whimbrel help`: help on a topic that is no command.

use anyhow::Result;
use clap::{Args, Command};

use crate::commands::names::limits;
use crate::failure::{EXIT_CODES, Failure};
use crate::options::{GLOBAL, LIMITS, NETWORKS, after};
use crate::{output, pages};

/// Explain commands, options, files; print completions and man pages
#[derive(Args)]
#[command(after_help = after("Examples:\n  whimbrel help options\n  whimbrel help networks\n  whimbrel help config\n  whimbrel help apps\n  whimbrel help publishing\n  whimbrel help service-limits\n  whimbrel help names serve\n  whimbrel help completions bash\n  whimbrel help man DIR"))]
pub(crate) struct Help {
    /// A command, `options`, `networks`, `exit-codes`, `config`, `apps`, `publishing`, `service-limits`,
    /// `completions SHELL`, or `man DIR`
    topic: Vec<String>,
}

/// An example of a configuration file.
pub(crate) const CONFIG: &str = r#"# ~/.config/whimbrel/config.toml (or --config FILE) may hold every flag, under its name without
# dashes. Flags on the command line win. Unknown keys are an error.

# For all commands:
names = "ID@names.example.org:4480"    # or a ticket, whimbrel:…
# identity = "/path/to/identity"
# pin = ["bob@example.org=ID"]         # the key that a name stands for, whatever the name service says
# port = 4433
# lan = true                           # find peers of this network by mDNS, and be found
# quiet = true

# For one command; a command of two words is joined with a dash.
[names-serve]
listen = "0.0.0.0:4480"
store = "/var/lib/whimbrel/names.redb"
allow = ["@example.org"]

[expose]
name = "ssh.home.ada@example.org"
to = "127.0.0.1:22"
allow = ["ID", "bob@example.org"]

[forward]
listen = "127.0.0.1:2222"
mode = "backup"                        # or policy = "prefer-wifi"
interface = ["wlan0", "usb0=cellular,metered"]

[receive]
dir = "/home/ada/incoming"
allow = ["bob@example.org"]"#;

/// The list of `whimbrel agent`.
pub(crate) const APPS: &str = r#"The list of programs, of which the first that matches is taken:
  [[app]]
  match = "http"          # or any, *:PORT, HOST[:PORT], *.DOMAIN[:PORT], NET[:PORT], a forward's peer
  adapter = "http"        # asks by HTTP for the rest; http-time: a film plays on; raw; line: anew
  run = ["mpv", "--", "{url}"]
  ask = false             # also for all entries, above the first one"#;

/// How clients that know nothing of Whimbrel reach a server that moves.
pub(crate) const PUBLISHING: &str = "\
A gateway can publish servers of its peers: any browser or program reaches them through it, and goes on when
they move. The gateway has no key of theirs: TLS passes as it is, by the host that its client asks for.

On the gateway, whose operator says which key may publish what:
  whimbrel gateway serve gate.home.ada@example.org --allow ID --publish 8443=ID
  whimbrel gateway serve gate.home.ada@example.org --allow ID --publish www.example.org=ID \\
      --public-tls 0.0.0.0:443 --public-http 0.0.0.0:80

Where the server is:
  whimbrel expose --public 8443 --gateway gate.home.ada@example.org --to 127.0.0.1:8080
  whimbrel expose --public www.example.org --gateway gate.home.ada@example.org --to 127.0.0.1:443
  whimbrel expose --public http://www.example.org --gateway gate.home.ada@example.org --to 127.0.0.1:80

Options of `whimbrel gateway serve`:
  --publish HOST=ID               This host, by TLS (SNI) and by HTTP (Host), for the peer with this key alone
  --publish *.DOMAIN=ID           All hosts below a domain, but for those that have an entry of their own
  --publish [ADDR:]PORT[-PORT]=ID Ports of the gateway, for TCP of any kind; on all addresses without ADDR
  --public-tls ADDR:PORT          Where clients of published hosts come with TLS; repeatable
  --public-http ADDR:PORT         Where they come with plain HTTP; repeatable
  --most EACH ALL                 Clients at once, of one publication and of all
  --idle TIME                     Break a client's connection without a byte for so long

Options of `whimbrel expose`:
  --public PORT|[http://]HOST     What of the gateway leads here; repeatable. Without NAME and --ticket
  --gateway NAME|TICKET           The gateway, which must let this key in (--allow)
  --proxy-protocol                Tell the local server where clients are, by the PROXY protocol, version 2

By HTTP the server reads where a client is in X-Forwarded-For. A connection is for one host: requests for
another one on it are refused (421). What is published nowhere has 404, or TLS' alert unrecognized_name.";

/// Which commands have the options of several networks, and what else decides.
const NETWORK_NOTES: &str = "\
Commands that connect to peers, or let them in, have these; --intent and --manager are for what is dialled.
Where nothing is said, a connection uses one network at a time, and goes to another one when it fails.
`whimbrel paths` shows the networks of running connections, and changes how these are used.";

/// Explains a topic. Commands are looked for in `command`, the whole command line.
pub(crate) fn run(args: Help, command: Command) -> Result<()> {
    let topic: Vec<&str> = args.topic.iter().map(String::as_str).collect();
    match topic[..] {
        ["config"] => return output::line(CONFIG),
        ["options"] => return output::line(pages::options_under(&command, GLOBAL)),
        ["networks"] => return output::line(networks(&command)),
        ["apps"] => return output::line(APPS),
        ["publishing"] => return output::line(PUBLISHING),
        ["service-limits"] => return output::line(service_limits(&command)),
        ["exit-codes"] => return output::line(EXIT_CODES),
        ["completions", shell] => return output::line(pages::completions(command, shell)?.trim_end()),
        ["man", directory] => return pages::manual(command, directory.as_ref()),
        [] => return output::line(pages::on_a_screen(command).render_help().to_string().trim_end()),
        _ => {}
    }
    let mut command = pages::on_a_screen(command);
    command.build();
    let mut found = &mut command;
    for word in &args.topic {
        found = found
            .find_subcommand_mut(word)
            .ok_or_else(|| Failure::usage(format!("there is no help on `{word}`; see `whimbrel --help`")))?;
    }
    output::line(found.render_help().to_string().trim_end())
}

/// The options of a command below this one that have a heading.
fn options_of(command: &Command, name: &str, heading: &str) -> String {
    command.find_subcommand(name).map(|command| pages::options_under(command, heading)).unwrap_or_default()
}

/// How several networks are used.
fn networks(command: &Command) -> String {
    // It has all of them.
    let options = options_of(command, "forward", NETWORKS);
    format!("{options}\n\n{NETWORK_NOTES}")
}

/// What services allow each of their users.
fn service_limits(command: &Command) -> String {
    // It is both, a name service and a relay.
    let options = options_of(command, "serve", LIMITS);
    format!("{}\n\n{options}", limits::table())
}
