//! `whimbrel help`: help on a topic that is no command.

use anyhow::Result;
use clap::{Args, Command};

use crate::failure::{EXIT_CODES, Failure};
use crate::options::after;
use crate::{output, pages};

/// Explain commands, options and files; print completions and manual pages
#[derive(Args)]
#[command(after_help = after("Examples:\n  whimbrel help options\n  whimbrel help config\n  whimbrel help names serve\n  whimbrel help completions bash\n  whimbrel help man DIR"))]
pub(crate) struct Help {
    /// A command, `options`, `exit-codes`, `config`, `completions SHELL`, or `man DIR`
    topic: Vec<String>,
}

/// An example of a configuration file.
pub(crate) const CONFIG: &str = r#"# ~/.config/whimbrel/config.toml (or --config FILE) may hold every flag, under its name without
# dashes. Flags on the command line win. Unknown keys are an error.

# For all commands:
names = "ID@names.example.org:4480"    # or a ticket, whimbrel:…
# identity = "/path/to/identity"
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

/// Explains a topic. Commands are looked for in `command`, the whole command line.
pub(crate) fn run(args: Help, command: Command) -> Result<()> {
    let topic: Vec<&str> = args.topic.iter().map(String::as_str).collect();
    match topic[..] {
        ["config"] => return output::line(CONFIG),
        ["options"] => return output::line(pages::global_options(&command)),
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
